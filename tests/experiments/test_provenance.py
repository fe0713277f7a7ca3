"""What a result says of its commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from experiments import provenance


def test_a_checkout_without_commits_names_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """git itself prints "HEAD" there, which is no commit."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    assert provenance.circumstances()["commit"] is None
