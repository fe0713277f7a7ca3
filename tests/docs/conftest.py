"""A place where the README can be followed: its files, and a tiny model wherever a model is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

import livingkv.model_sources
import livingkv.models
import livingkv.planner.probe
import livingkv.planner.probe_drive
from livingkv.model_sources import ModelFolder
from tests.docs.modules import ROOT
from tests.in_memory import tmp_path as tmp_path


@pytest.fixture
def clone(tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of this test, with the beginnings of README.md and of the notes, for speed.

    Every model spec means a tiny random model, but for the folder that one of the examples makes.
    """
    find_real = livingkv.model_sources.find_model

    def find_tiny(spec: object, progress: object = None, **_: object) -> ModelFolder:
        return find_real(str(spec)) if Path(str(spec)).name == "tiny-moe" else ModelFolder("tiny-qwen2", tiny_folder)

    for file in (ROOT / "README.md", *(ROOT / "examples" / "notes").iterdir()):
        copy = tmp_path / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text("\n\n".join(file.read_text("utf-8").split("\n\n")[:3]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIVINGKV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(livingkv.model_sources, "find_model", find_tiny)
    monkeypatch.setattr(livingkv.models, "find_model", find_tiny)
    monkeypatch.setattr(livingkv.planner.probe, "_SECONDS", 0.02)
    monkeypatch.setattr(livingkv.planner.probe_drive, "_FILE_BYTES", 1 << 24)
    return tmp_path
