"""Weights, positions and sampling chosen on the command line, over the real memory with a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from livingkv.store import Store
from tests.cli.conftest import Run
from tests.cli.test_cli_keep import fails
from tests.tiny import tiny_network, tiny_tokenizer

pytestmark = pytest.mark.slow  # seconds in all: other processes, many stores

QUESTION = "What is the code of the shed?"


def chosen(store: str) -> tuple[str, bool]:
    """The dtype and whether there are dual-chunk positions, of a store."""
    with Store.open(store, mode="read") as opened:
        return opened.fingerprint.dtype, "dual_chunk" in opened.fingerprint.rope


@pytest.fixture(name="chunked", scope="module")
def chunked_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model whose config has dual-chunk positions."""
    folder = tmp_path_factory.mktemp("chunked")
    sizes = {"chunk_size": 512, "local_size": 64, "original_max_position_embeddings": 512}
    tiny_network("qwen2", dual_chunk_attention_config=sizes).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


def test_weights_of_a_new_store_are_kept_by_every_verb(
    tmp_path: Path, note: Path, tiny_folder: Path, livingkv: Run
) -> None:
    store = str(tmp_path / "s")
    assert livingkv("ingest", store, str(note), "--model", str(tiny_folder), "--weights", "fp32")[0] == 0
    assert chosen(store) == ("float32", False)
    assert livingkv("ask", store, QUESTION, "--mode", "kv", "--max-tokens", "2", "--json")[2] == ""
    assert livingkv("chat", store, "--max-tokens", "2", stdin=b"hello\n")[0] == 0
    assert livingkv("repair", store)[0] == 0
    for argv in (("ask", store, QUESTION), ("ingest", store, str(note)), ("repair", store)):
        fails(livingkv, *argv, "--weights", "bf16", word="dtype")
    code, _, errors = livingkv("chat", store, "--weights", "bf16", stdin=b"hello\n")
    assert code == 1 and "dtype" in errors and errors.count("\n") == 1
    assert livingkv("migrate", store, "--codec", "lossless")[0] == 0
    assert chosen(store) == ("float32", False)
    (tmp_path / "s.before-migration").rename(tmp_path / "old")
    assert livingkv("migrate", store, "--weights", "bf16")[0] == 0
    assert chosen(store) == ("bfloat16", False)


def test_dual_chunk_positions(tmp_path: Path, note: Path, chunked: str, tiny_folder: Path, livingkv: Run) -> None:
    with_them, without = str(tmp_path / "with"), str(tmp_path / "without")
    assert livingkv("ingest", with_them, str(note), "--model", chunked)[0] == 0
    assert livingkv("ingest", without, str(note), "--model", chunked, "--no-dual-chunk")[0] == 0
    assert (chosen(with_them)[1], chosen(without)[1]) == (True, False)
    for store in (with_them, without):
        assert livingkv("ask", store, QUESTION, "--mode", "kv", "--max-tokens", "2")[2] == ""
    assert livingkv("ask", with_them, QUESTION, "--mode", "kv", "--max-tokens", "2", "--dual-chunk")[2] == ""
    fails(livingkv, "ask", without, QUESTION, "--dual-chunk", word="rope")
    fails(livingkv, "ask", with_them, QUESTION, "--no-dual-chunk", word="rope")
    argv = ("ingest", str(tmp_path / "new"), str(note), "--model", str(tiny_folder), "--dual-chunk")
    fails(livingkv, *argv, word="has no dual-chunk sizes")
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
@pytest.mark.parametrize("weights", ["8bit", "4bit"])
def test_packed_weights_without_cuda_are_one_line(
    weights: str, tmp_path: Path, note: Path, tiny_folder: Path, store: str, livingkv: Run
) -> None:
    word = f"weights: got {weights}; bf16, int8, int4 or fp32 is allowed without a CUDA device"
    fails(livingkv, "ingest", str(tmp_path / "new"), str(note), "--weights", weights, word=word)
    for argv in (("ask", store, QUESTION), ("repair", store), ("migrate", store), ("chat", store)):
        fails(livingkv, *argv, "--weights", weights, word=word)
    assert not (tmp_path / "new").exists() and livingkv("check", store)[0] == 0


def test_sampling_and_stops_reach_the_model(store: str, livingkv: Run) -> None:
    ask = ("ask", store, QUESTION, "--mode", "kv", "--max-tokens", "24", "--json")
    warm = ("--temperature", "1.5", "--top-p", "0.95")

    def answer(*argv: str) -> str:
        code, output, errors = livingkv(*ask, *argv)
        assert errors == "" and code in (0, 2)
        return str(json.loads(output)["answer"])

    plain = answer()
    one, other = answer(*warm, "--seed", "1"), answer(*warm, "--seed", "2")
    assert one == answer(*warm, "--seed", "1") and len({plain, one, other}) == 3
    cut = answer("--stop", plain[2:4], "--stop", "never said")
    assert cut == plain[: plain.index(plain[2:4])].strip()
    fails(livingkv, "ask", store, QUESTION, "--temperature", "-1", word="temperature")
    fails(livingkv, "ask", store, QUESTION, "--temperature", "1", "--top-p", "0", word="top_p")


def test_chat_samples_and_stops(store: str, livingkv: Run) -> None:
    def turn(session: str, *argv: str) -> str:
        chat = ("chat", store, "--session", session, "--max-tokens", "16", "--json", *argv)
        code, output, errors = livingkv(*chat, stdin=b"hello\n")
        assert (code, errors) == (0, "")
        return str(json.loads(output)["answer"])

    plain = turn("a")
    assert turn("b", "--temperature", "1.5", "--seed", "3") == turn("c", "--temperature", "1.5", "--seed", "3") != plain
    assert turn("d", "--stop", plain[2:4]) == plain[: plain.index(plain[2:4])].strip()
    assert json.loads(livingkv("chat", store, "-s", "d", "--json", "--max-tokens", "2", stdin=b"x\n")[1])["turn"] == 2
    assert livingkv("check", store)[0] == 0
