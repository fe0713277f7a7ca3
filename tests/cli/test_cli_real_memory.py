"""The command line over the real memory with a tiny random model: its answers are noise, what it keeps is not."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest

from livingkv import Memory
from tests.cli.conftest import Run
from tests.cli.fake_memory import Memory as FakeMemory
from tests.tiny import tiny_network, tiny_tokenizer


@pytest.mark.parametrize("name", ["open", "ready", "ingest", "ask", "chat"])
def test_the_fake_takes_what_the_real_memory_takes(name: str) -> None:
    real, fake = inspect.signature(getattr(Memory, name)), inspect.signature(getattr(FakeMemory, name))
    for parameter in fake.parameters.values():
        assert real.parameters[parameter.name].kind == parameter.kind
        assert real.parameters[parameter.name].default == parameter.default
    extra = set(real.parameters) - set(fake.parameters)
    assert all(real.parameters[other].default is not inspect.Parameter.empty for other in extra)


@pytest.mark.parametrize("mode", ["auto", "kv", "ground", "extract", "exact"])
def test_ask_in_every_mode(mode: str, store: str, livingkv: Run) -> None:
    argv = ("ask", store, "What is the code of the shed?", "--mode", mode, "--session", "default", "--max-tokens", "4")
    code, output, errors = livingkv(*argv, "--json")
    document = json.loads(output)
    assert errors == ""
    assert code == (0 if document["confident"] else 2)
    assert mode in (document["mode"], "auto")
    code_of_lines, output, errors = livingkv(*argv)
    assert (code_of_lines, errors) == (code, "")
    assert ("LOW CONFIDENCE" in output) is (code == 2)


def test_extract_finds_the_sentence_without_a_model(store: str, livingkv: Run, tiny_folder: Path) -> None:
    code, output, errors = livingkv(
        "ask", store, "What is the code of the shed?", "--mode", "extract", "--model", "/none"
    )
    assert (code, errors) == (0, "")
    assert "4471" in output


def test_ingest_again_is_skipped_and_stats_agree(store: str, note: Path, livingkv: Run) -> None:
    code, output, errors = livingkv("ingest", store, str(note), "--json")
    assert (code, errors) == (0, "")
    (source,) = json.loads(output)["sources"]
    assert source["skipped"] is True
    (session,) = json.loads(livingkv("sessions", store, "--json")[1])
    stats = json.loads(livingkv("stats", store, "--json")[1])
    assert stats["n_tokens"] == session["n_tokens"] >= source["n_tokens"] > 0
    assert livingkv("check", store)[0] == 0


def test_chat_is_resumed_by_the_next_call(tmp_path: Path, livingkv: Run, tiny_folder: Path) -> None:
    store, model = str(tmp_path / "talk"), str(tiny_folder)
    code, output, errors = livingkv("chat", store, "--json", "--max-tokens", "3", "--model", model, stdin=b"one\ntwo\n")
    assert (code, errors) == (0, "")
    assert [json.loads(line)["turn"] for line in output.splitlines()] == [1, 2]
    code, output, _ = livingkv("chat", store, "--json", "--max-tokens", "3", stdin=b"three\n")
    turn = json.loads(output)
    assert (code, turn["turn"], turn["mode"]) == (0, 3, "resume")
    assert turn["reused_tokens"] > turn["prefilled_tokens"]
    code, _, errors = livingkv("chat", store, "--recall", "nowhere", stdin=b"one\n")
    assert code == 1 and "--recall" in errors


def bad_sources(folder: Path) -> dict[str, Path]:
    """Files that cannot be read as prose, by the word that the error must hold."""
    contents = {
        "empty": b"",
        "binary": b"\x00\x01 text",
        "not UTF-8": b"a \xff b",
        "line 1": b"x" * (1 << 20) + b"xx",
    }
    files = {}
    for number, (word, data) in enumerate(contents.items()):
        files[word] = folder / f"bad{number}.txt"
        files[word].write_bytes(data)
    return files


def test_bad_sources_are_one_line_and_change_nothing(store: str, tmp_path: Path, livingkv: Run) -> None:
    before = livingkv("sessions", store, "--json")[1]
    for word, file in bad_sources(tmp_path).items():
        code, output, errors = livingkv("ingest", store, str(file))
        assert (code, output) == (1, ""), word
        assert word in errors and str(file) in errors
        assert errors.count("\n") == 1
    assert livingkv("sessions", store, "--json")[1] == before


@pytest.mark.slow
def test_names_that_no_file_system_takes_are_one_line(store: str, note: Path, livingkv: Run) -> None:
    long = "x" * 5000
    for argv in (
        ("ask", store, "Who?", "--model", long),
        ("ask", long, "Who?", "--mode", "extract"),
        ("ingest", store, long),
        ("ingest", long, str(note)),
        ("export", store, "default", long),
        ("experts", "index", long),
        ("serve", long),
    ):
        code, output, errors = livingkv(*argv)
        assert (code, output) == (1, ""), argv[:2]
        assert errors.rstrip().rsplit("\n", 1)[-1].startswith("livingkv: ") and "Error:" not in errors, argv[:2]


def test_errors_of_store_and_model_are_one_line(
    store: str, note: Path, tmp_path: Path, livingkv: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other-model"
    tiny_network("qwen2", seed=1).save_pretrained(other)
    tiny_tokenizer().save_pretrained(other)
    capsys.readouterr()  # transformers' progress bar
    (tmp_path / "file").write_text("no store")
    for argv, word in (
        (("ask", store, "Who?", "--model", str(other)), "model"),
        (("ask", store, "Who?", "--session", "nobody"), "nobody"),
        (("ask", store, "  "), "question"),
        (("ask", str(tmp_path / "none"), "Who?"), "none"),
        (("ask", store, "Who?", "--model", str(tmp_path / "gone")), "gone"),
        (("ingest", store, str(note), "--codec", "lossless"), "lossless"),
        (("ingest", str(tmp_path / "file"), str(note)), "file"),
        (("check", str(tmp_path)), str(tmp_path)),
    ):
        code, output, errors = livingkv(*argv)
        assert (code, output) == (1, ""), argv
        assert word in errors
        assert errors.count("\n") == 1


def test_a_store_in_use_is_said_and_can_still_be_asked(store: str, tmp_path: Path, livingkv: Run) -> None:
    with Memory.open(store):
        code, output, errors = livingkv("chat", store, stdin=b"hello\n")
        assert (code, output) == (1, "")
        assert errors.count("\n") == 1
        code, output, errors = livingkv("ask", store, "What is the code of the shed?", "--mode", "extract")
        assert (code, errors) == (0, "")
        assert "4471" in output
