"""Fitted matrices in the cache folder: read instead of fitted, and fitted anew where a file is damaged."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies
from torch import Tensor

from livingkv.engine import Engine
from livingkv.models import DecodeWeights
from livingkv.packed import kept
from livingkv.packed.fitting import found_int4, int4_of
from livingkv.packed.kept import KeptMatrices
from livingkv.packed.matrices import Int4Codes, Int4Matrix, kernel_refusal
from tests.packed.test_packed_step import model_with, read

pytestmark = pytest.mark.skipif(kernel_refusal("int4") is not None, reason="no kernel for 4 bits here")

WEIGHT = torch.randn(96, 128, generator=torch.Generator().manual_seed(3)).bfloat16() * 0.05


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "LEAST_WEIGHTS", 0)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    caplog.set_level(logging.WARNING, "livingkv.packed")
    found: list[str] = []
    yield found
    assert [record.getMessage() for record in caplog.get_records("call") if record.name == "livingkv.packed"] == found


def fails(weight: Tensor) -> Int4Codes:
    raise AssertionError("it was kept")


def kept_matrix(cache: Path, weight: Tensor = WEIGHT, model: str = "m") -> Int4Matrix:
    made = KeptMatrices(cache, model, "a model").matrix("0.down.fitted", weight, int4_of)
    assert made is not None
    return made


def same(one: Int4Matrix, other: Int4Matrix) -> bool:
    return torch.equal(one.packed, other.packed) and torch.equal(one.table, other.table)


def files(cache: Path) -> list[Path]:
    return sorted(path for path in cache.rglob("*") if path.is_file())


def test_what_was_fitted_once_is_read(tmp_path: Path, lines: list[str]) -> None:
    made = kept_matrix(tmp_path)
    again = KeptMatrices(tmp_path, "m", "a model").matrix("0.down.fitted", WEIGHT, fails)
    assert again is not None and same(made, again) and same(made, int4_of(WEIGHT).matrix())
    x = torch.randn(3, 128).bfloat16()
    assert torch.equal(made.product(x), again.product(x))


@pytest.mark.parametrize("other", ["model", "name", "layout", "format"])
def test_a_kept_matrix_is_of_one_model_one_fit_and_one_layout(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_matrix(tmp_path)
    if other == "layout":
        monkeypatch.setattr(kept, "layout_digest", lambda: "another")
    elif other == "format":
        monkeypatch.setattr(kept, "FORMAT", kept.FORMAT + 1)
    matrices = KeptMatrices(tmp_path, "another" if other == "model" else "m", "a model")
    with pytest.raises(AssertionError, match="kept"):
        matrices.matrix("1.down.fitted" if other == "name" else "0.down.fitted", WEIGHT, fails)


def test_what_a_fit_does_not_find_is_not_kept(tmp_path: Path, lines: list[str]) -> None:
    assert KeptMatrices(tmp_path, "m", "a model").matrix("0.down.found", WEIGHT, found_int4) is None
    assert files(tmp_path) == []


def test_small_matrices_and_those_without_a_cache_are_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert KeptMatrices(None, "m", "a model").matrix("0.down.fitted", WEIGHT, int4_of) is not None
    monkeypatch.setattr(kept, "LEAST_WEIGHTS", WEIGHT.numel() + 1)
    kept_matrix(tmp_path)
    assert files(tmp_path) == []


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(at=strategies.integers(0, 1 << 20), bit=strategies.integers(0, 7), cut=strategies.booleans())
def test_a_damaged_file_is_fitted_anew(at: int, bit: int, cut: bool, tmp_path: Path) -> None:
    made = kept_matrix(tmp_path)
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    damaged = bytearray(whole[: at % len(whole)] if cut else whole)
    if not cut:
        damaged[at % len(whole)] ^= 1 << bit
    file.write_bytes(damaged)
    assert same(kept_matrix(tmp_path), made)
    assert file.read_bytes() == whole or not cut  # a changed space in the header is no damage


def test_damage_is_told_once(tmp_path: Path, lines: list[str]) -> None:
    names = ("0.down.fitted", "1.down.fitted")
    for name in names:
        KeptMatrices(tmp_path, "m", "a model").matrix(name, WEIGHT, int4_of)
    for file in files(tmp_path):
        file.write_bytes(b"nothing")
    matrices = KeptMatrices(tmp_path, "m", "a model")
    assert all(matrices.matrix(name, WEIGHT, int4_of) is not None for name in names)
    lines.append(f"a model: {files(tmp_path)[0]} is damaged: its weights are fitted anew")
    assert KeptMatrices(tmp_path, "m", "a model").matrix(names[1], WEIGHT, fails) is not None


def test_another_matrix_in_its_place_is_fitted_anew(tmp_path: Path, lines: list[str]) -> None:
    kept_matrix(tmp_path, WEIGHT[:32])
    (file,) = files(tmp_path)
    assert same(kept_matrix(tmp_path), int4_of(WEIGHT).matrix())
    lines.append(f"a model: {file} is damaged: its weights are fitted anew")


@pytest.mark.parametrize("obstacle", ["a file", "a pipe"])
def test_a_cache_that_cannot_be_used_is_told_and_left(obstacle: str, tmp_path: Path, lines: list[str]) -> None:
    if obstacle == "a file":
        (tmp_path / "packed").write_text("in the way")
        why = f"{folder_of(tmp_path)} cannot be written (Not a directory): each start fits its weights"
    else:
        folder_of(tmp_path).mkdir(parents=True)
        os.mkfifo(folder_of(tmp_path) / "0.down.fitted.safetensors")
        why = (
            f"{folder_of(tmp_path)}/0.down.fitted.safetensors cannot be read "
            "(it is a pipe, socket or device, not a file): its weights are fitted anew"
        )
    assert same(kept_matrix(tmp_path), int4_of(WEIGHT).matrix())
    lines.append(f"a model: {why}")


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> None:
    def full(self: Path, raw: bytes) -> int:
        with self.open("wb") as file:
            file.write(raw[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    matrices = KeptMatrices(tmp_path, "m", "a model")
    for name in ("0.down.fitted", "1.down.fitted"):
        made = matrices.matrix(name, WEIGHT, int4_of)
        assert made is not None and same(made, int4_of(WEIGHT).matrix())
    assert files(tmp_path) == []
    lines.append(
        f"a model: {folder_of(tmp_path)} cannot be written (No space left on device): each start fits its weights"
    )


def test_many_at_once_find_whole_files_or_none(tmp_path: Path, lines: list[str]) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: kept_matrix(tmp_path), range(24)))
    assert all(same(one, made[0]) for one in made)
    assert [path.name for path in files(tmp_path)] == ["0.down.fitted.safetensors"]


def folder_of(cache: Path) -> Path:
    folder = KeptMatrices(cache, "m", "a model")._folder
    assert folder is not None
    return folder


@pytest.mark.parametrize("bits", ["int8", "int4"])
def test_a_step_from_kept_matrices_is_the_step_that_kept_them(
    bits: DecodeWeights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    monkeypatch.setenv("LIVINGKV_CACHE", str(tmp_path))
    token = torch.tensor([9])
    logits = []
    for start in range(2):
        if start:
            monkeypatch.setattr("livingkv.packed.choosing.int4_of", fails)
            monkeypatch.setattr("livingkv.packed.choosing.coarse_int4", fails)
        engine = Engine.of(model_with(bits), "int8")
        logits.append(engine.runner.logits(token, read(engine)))
    assert torch.equal(*logits)
    names = {path.name.removesuffix(".safetensors") for path in files(tmp_path)}
    assert "head.coarse" in names and ("0.down.fitted" in names) == (bits == "int4")
