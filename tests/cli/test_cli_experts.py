"""The experts verbs, and the backend of the other ones, over a tiny model with experts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from livingkv import cli_experts, model_sources
from tests.cli.conftest import Run
from tests.cli.test_cli_keep import fails
from tests.experts.talking_moe import FEW_BYTES, talking_checkpoint
from tests.models.gguf_files import write_gguf

FEW = ("--backend", "experts", "--ram-gb", str(FEW_BYTES / 1e9))


@pytest.fixture(scope="module", name="moe")
def make_moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with experts."""
    return talking_checkpoint("qwen3_moe", tmp_path_factory.mktemp("moe"))


def test_the_index_tells_what_streaming_costs(livingkv: Run, moe: Path) -> None:
    code, output, errors = livingkv("experts", "index", str(moe), "--json")
    found = json.loads(output)
    assert (code, errors) == (0, "")
    n_values = 3 * 32 * 16  # of an expert: gate, up and down
    assert (found["layers_with_experts"], found["experts"], found["experts_per_token_and_layer"]) == (3, 24, 2)
    assert (found["expert_bytes"], found["all_experts_bytes"]) == (n_values * 4, 24 * n_values * 4)
    assert found["token_needs_bytes"] == 3 * 2 * found["row_bytes"] and found["pack_pays"] is False
    stored = sum(file.stat().st_size for file in moe.glob("*.safetensors"))
    assert 0.9 * stored < found["all_experts_bytes"] + found["other_bytes"] < stored
    lines = livingkv("experts", "index", str(moe))[1].splitlines()
    assert len(lines) == len(found) and "144.0 KiB" in "".join(lines)


def test_bench_measures_the_drive_then_tokens(livingkv: Run, moe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_experts, "DRIVE_SECONDS", 0.01)
    argv = ("experts", "bench", str(moe), "--ram-gb", FEW[-1], "--tokens", "4")
    code, output, errors = livingkv(*argv, "--json")
    found = json.loads(output)
    assert (code, errors) == (0, "") and found["ram_bytes"] <= FEW_BYTES and found["tokens"] == 4
    fastest = max(row["bytes_per_s"] for row in found["drive"])
    assert found["drive_bytes_per_s"] == fastest and found["limit_tokens_per_s"] == fastest / found["bytes_per_token"]
    assert found["eta"] == pytest.approx(found["tokens_per_s"] / found["limit_tokens_per_s"])
    assert "the share of that limit" in livingkv(*argv)[1]


@pytest.mark.slow
def test_what_cannot_be_done_is_one_line(livingkv: Run, moe: Path, tiny_folder: Path, tmp_path: Path) -> None:
    for verb in ("index", "bench"):
        fails(livingkv, "experts", verb, str(tiny_folder), word="no mixture of them")
        fails(livingkv, "experts", verb, str(tmp_path / "none"), word="no such folder")
    fails(livingkv, "experts", "bench", str(moe), "--ram-gb", "0.00001", word="GB or more are needed")
    fails(livingkv, "experts", "bench", str(moe), "--ram-gb", "0", word="ram_gb")
    for argv in (("ask", "s", "Why?"), ("chat", "s"), ("serve", "s"), ("ingest", "s", str(moe))):
        fails(livingkv, *argv, "--backend", "experts", word="--ram-gb N")
        fails(livingkv, *argv, "--ram-gb", "1", word="--backend experts")
        fails(livingkv, *argv, "--pack", "p", word="--backend experts")


def test_a_dense_gguf_is_refused_before_it_is_converted(
    livingkv: Run, tmp_path: Path, note: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / "dense.gguf")
    monkeypatch.setattr(model_sources, "convert_gguf", lambda *_: pytest.fail("it was converted"))
    store, named = str(tmp_path / "s"), ("--model", str(tmp_path / "dense.gguf"), *FEW)
    for argv in (("ingest", store, str(note)), ("serve", store, "--port", "0")):
        fails(livingkv, *argv, *named, word="dense.gguf (qwen2): it has no experts")


@pytest.mark.slow
def test_verbs_with_the_backend(livingkv: Run, moe: Path, note: Path, tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    argv = ("ingest", store, str(note), "--model", str(moe), "--weights", "fp32", *FEW)
    assert livingkv(*argv)[0] == 0
    ask = ("ask", store, "What is the code of the shed?", "--mode", "kv", "--max-tokens", "8", "--json")
    streamed, whole = (json.loads(livingkv(*ask, *backend)[1]) for backend in (FEW, ()))
    assert streamed["answer"] == whole["answer"]
    assert livingkv("chat", store, "--max-tokens", "2", *FEW, stdin=b"hello\n")[0] == 0
    assert livingkv("repair", store, *FEW)[0] == 0 and livingkv("check", store)[0] == 0
    fails(livingkv, "migrate", store, *FEW, word="name what to migrate to")


def test_routes_are_recorded_and_simulated(livingkv: Run, moe: Path, note: Path, tmp_path: Path) -> None:
    file = str(tmp_path / "routes.bin")
    argv = ("experts", "trace", str(moe), file, "--ram-gb", FEW[-1], "--tokens", "5", "--text", str(note))
    code, output, errors = livingkv(*argv, "--json")
    found = json.loads(output)
    assert (code, errors) == (0, "") and found["passes"] == 3 * (1 + 4 + 5)  # layers; prompt, warm, counted tokens
    assert 10 < found["prompt_tokens"] < len(note.read_text()) and found["bytes"] == Path(file).stat().st_size
    fails(livingkv, *argv, word="a new file is needed")
    code, output, errors = livingkv("experts", "simulate", str(moe), file, "--json")
    rows = json.loads(output)
    assert (code, errors) == (0, "") and {row["rule"] for row in rows} == {"least recent", "stable subset", "optimum"}
    for row in rows:
        best = next(each for each in rows if each["n_rows"] == row["n_rows"] and each["rule"] == "optimum")
        assert row["hit_share"] <= best["hit_share"]
        assert row["n_hits"] + row["n_misses"] == best["n_hits"] + best["n_misses"] > 0
    assert len(livingkv("experts", "simulate", str(moe), file, "--ram-gb", "0.0001")[1].splitlines()) == 3
    share = next(row["hit_share"] for row in rows if 0 < row["hit_share"] < 1)
    plan = (
        "plan",
        str(moe),
        "--context",
        "1k",
        "--ram",
        "1M",
        "--disk",
        "1GB",
        "--bw-disk",
        "1GB/s",
        "--bw-ram",
        "9GB/s",
    )
    cautious, told = (json.loads(livingkv(*plan, *more, "--json")[1]) for more in ((), ("--cache-hit", str(share))))
    assert [any("experts simulate" in one for one in each["remarks"]) for each in (cautious, told)] == [True, False]
    missed, fewer = (
        next(one["value"] for one in each["calculations"] if one["law"] == "experts_missed")
        for each in (cautious, told)
    )
    assert fewer == pytest.approx((1 - share) * missed)
    fails(livingkv, "experts", "simulate", str(moe), str(note), word="no record of routes")
    fails(livingkv, "experts", "simulate", str(moe), str(tmp_path / "none"), word="a record of routes is needed")


@pytest.mark.slow
def test_a_pack_is_made_and_read(livingkv: Run, moe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_experts, "DRIVE_SECONDS", 0.01)
    pack = str(tmp_path / "moe.pack")
    code, output, errors = livingkv("experts", "pack", str(moe), pack, "--json")
    assert (code, errors, json.loads(output)["experts"]) == (0, "", 24)
    bench = ("experts", "bench", str(moe), "--pack", pack, "--ram-gb", FEW[-1], "--tokens", "2", "--json")
    assert json.loads(livingkv(*bench)[1])["tokens"] == 2
    fails(livingkv, "experts", "pack", str(moe), pack, word="something has that name")
    own = tmp_path / "model"
    shutil.copytree(moe, own, copy_function=shutil.copyfile)  # with other times of change
    fails(livingkv, "experts", "bench", str(own), "--pack", pack, "--ram-gb", FEW[-1], word="of another checkpoint")
    assert livingkv("experts", "pack", str(own))[0] == 0 and (own / "experts.pack" / "manifest.json").is_file()
    assert json.loads(livingkv("experts", "index", str(own), "--json")[1])["pack"] == str(own / "experts.pack")
    reads = ("experts", "bench", str(own), "--ram-gb", FEW[-1], "--tokens", "2", "--json")
    assert livingkv(*reads)[0] == 0
    (own / "experts.pack" / "manifest.json").write_text("{}")
    fails(livingkv, *reads, word="not the manifest of a pack")
    trace = ("experts", "trace", str(own), str(tmp_path / "r"), "--ram-gb", FEW[-1], "--tokens", "1")
    fails(livingkv, *trace, word="not the manifest of a pack")
    assert livingkv(*trace, "--pack", "off")[0] == 0
