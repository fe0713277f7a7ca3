"""A GGUF file becomes, once, a folder of bf16 safetensors, tokenizer and config in livingkv's cache.

The work is done by gguf_reading.py in a process of its own, so that its memory is given back and what other libraries
print is kept out. Here: where the folder is, one conversion at a time, and all of it or nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from livingkv import errors
from livingkv.errors import ModelDamaged, ModelError, ModelNotFound
from livingkv.model_fetch import Progress, disk_errors, exclusive, sync_folder

CONVERTER_VERSION = 1
"""Raised whenever the converted bytes may change."""

REPORT_MARK = "@livingkv "
"""Begins every line of the converting process that is meant for this module; JSON follows."""


def converted_folder(gguf: Path, sha256: str, cache: Path) -> Path:
    """Where the conversion of the file with that SHA-256 is, or will be."""
    return cache / "converted" / f"{gguf.stem}-{sha256[:16]}-v{CONVERTER_VERSION}"


def convert_gguf(gguf: Path, sha256: str, cache: Path, progress: Progress | None = None) -> Path:
    """The model folder of the GGUF file, made if it is not there. Blocks for a minute or more; durable on return.

    Raises ModelDamaged for a file that is not a whole GGUF, UnsupportedModel for one that livingkv cannot serve,
    ModelNotFound when the disk is full or cannot be written. Nothing is left behind by a failure.
    """
    with gguf.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelDamaged(f"{gguf}: not a GGUF file")
    folder = converted_folder(gguf, sha256, cache)
    with disk_errors(cache, 4 * gguf.stat().st_size), exclusive(cache, folder.name, progress):
        if folder.is_dir():
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        for left_over in folder.parent.glob(f"{folder.name}.making-*"):
            shutil.rmtree(left_over, ignore_errors=True)
        making = folder.with_name(f"{folder.name}.making-{os.getpid()}")
        making.mkdir()
        try:
            _run_conversion(gguf, making, sha256, progress)
            _sync_files(making)
            making.replace(folder)
        finally:
            shutil.rmtree(making, ignore_errors=True)
        sync_folder(folder.parent)
    return folder


def _run_conversion(gguf: Path, target: Path, sha256: str, progress: Progress | None) -> None:
    package_parent = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join([package_parent, *filter(None, [os.environ.get("PYTHONPATH")])])
    quiet = {"PYTHONWARNINGS": "ignore", "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "livingkv.gguf_reading", str(gguf.absolute()), str(target), sha256]
    failure: ModelError | None = None
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as noise,
        subprocess.Popen(
            command,
            env={**os.environ, **quiet, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=noise,
            encoding="utf-8",
        ) as process,
    ):
        try:
            for line in process.stdout or ():
                if line.startswith(REPORT_MARK):
                    report = json.loads(line.removeprefix(REPORT_MARK))
                    failure = _failure(report) or failure
                    if progress and "done" in report:
                        progress("convert", report["done"], report["total"])
            status = process.wait()
        finally:
            process.kill()
        noise.seek(0)
        last_words = ([line.strip() for line in noise if line.strip()] or [""])[-1][:300]
    if failure:
        raise failure
    if status < 0:
        raise ModelNotFound(f"{gguf}: the conversion was killed by signal {-status}; is there enough memory?")
    if status:
        raise ModelDamaged(f"{gguf}: the file could not be converted ({last_words or status})")


def _failure(report: dict[str, Any]) -> ModelError | None:
    """The error that the converting process reports, as the same class."""
    kind = getattr(errors, report.get("error", ""), None)
    return kind(report["message"]) if isinstance(kind, type) and issubclass(kind, ModelError) else None


def _sync_files(folder: Path) -> None:
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    sync_folder(folder)
