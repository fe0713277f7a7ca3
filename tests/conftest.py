"""What tests of several folders share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import tiny_network, tiny_tokenizer


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Qwen2 as a model folder, for tests that go through the command line or another process."""
    folder = tmp_path_factory.mktemp("models") / "tiny-qwen2"
    tiny_network("qwen2").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
