"""Forget and prune over the real memory with a tiny model, what stats shows as hottest, and bad input each."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from livingkv import Memory
from livingkv.store import Store
from tests.cli.conftest import Run
from tests.cli.test_cli_keep import fails, names
from tests.cli.test_cli_process import ENVIRONMENT, ROOT, read_until
from tests.store.store_cases import holds

SECRET = b"anzibarquince"


def files_with(store: str, data: bytes) -> list[str]:
    """Files of a store that hold these bytes."""
    return holds(Path(store), data)


def sentence_id(store: str, word: str) -> str:
    """The id of the sentence that holds the word."""
    with Store.open(store, mode="read") as opened:
        return str(next(each.sentence_id for each in opened.sentences_after(None, 1000) if word in each.text))


@pytest.mark.parametrize("what", ["session", "source", "sentence", "everything"])
def test_what_is_forgotten_is_gone(what: str, two: str, full: Path, livingkv: Run) -> None:
    assert files_with(two, SECRET)
    argv = {
        "session": ["--session", "diary"],
        "source": ["--session", "diary", "--source", str(full.parent / "diary.txt"), "--deep"],
        "sentence": ["--sentence", sentence_id(two, "Zanzibarquince")],
        "everything": ["--everything"],
    }[what]
    code, output, errors = livingkv("forget", two, *argv, "--yes", "--json")
    assert (code, errors) == (0, "")
    receipt = json.loads(output)
    assert receipt["n_sentences"] >= 1 and receipt["n_bytes"] >= 46
    assert files_with(two, SECRET) == []
    assert names(livingkv, two) == {"session": ["doors"], "everything": []}.get(what, ["doors", "diary"])
    assert livingkv("check", two)[0] == 0


def test_the_receipt_in_lines(two: str, livingkv: Run) -> None:
    code, output, errors = livingkv("forget", two, "--session", "diary", "-y")
    assert (code, errors) == (0, "")
    first, *rest = output.splitlines()
    assert first.split()[0] == "forgotten" and "3 sentences" in first
    assert [line.split()[0] for line in rest][:3] == ["pages", "overwritten", "freed"]


def test_the_receipt_names_a_key_that_was_not_at_hand(
    two: str, tmp_path: Path, livingkv: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LIVINGKV_KEY_FOLDER", raising=False)
    (tmp_path / "sealed.txt").write_text("The heron sleeps standing.\n")
    keys = tmp_path / "keys"
    more = ["--session", "sealed", "--encrypt", "--text-only", "--key-folder", str(keys)]
    assert livingkv("ingest", two, str(tmp_path / "sealed.txt"), *more)[0] == 0
    (key,) = keys.iterdir()
    code, output, errors = livingkv("forget", two, "--session", "sealed", "--yes")
    assert (code, errors) == (0, "")
    assert f"the key {key.name}, which opens older copies still: remove it from its folder" in output
    assert "destroyed" not in output and key.exists()


def test_without_a_terminal_yes_is_needed(two: str, livingkv: Run) -> None:
    fails(livingkv, "forget", two, "--session", "diary", word="--yes is needed to forget 3 sentences")
    assert names(livingkv, two) == ["doors", "diary"]


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["n", "y"])
def test_at_a_terminal_it_asks(answer: str, two: str) -> None:
    ours, theirs = pty.openpty()
    code = "from livingkv.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "forget", two, "--session", "diary"],
        stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, cwd=ROOT, env=ENVIRONMENT | {"TERM": "dumb"},
    )  # fmt: skip
    os.close(theirs)
    assert b"3 sentences" in read_until(ours, rb"\[y/N\] ")
    os.write(ours, answer.encode() + b"\n")
    read_until(ours, b"nothing was forgotten" if answer == "n" else b"\n")
    output, _ = process.communicate(timeout=120)
    os.close(ours)
    assert process.returncode == (1 if answer == "n" else 0)
    assert (b"forgotten" in output) is (answer == "y")
    with Store.open(two, mode="read") as store:
        assert ("diary" in [row.name for row in store.sessions()]) is (answer == "n")


def test_bad_forgets(two: str, livingkv: Run) -> None:
    fails(livingkv, "forget", two, "--session", "nobody", "--yes", word="nobody")
    fails(livingkv, "forget", two, "--session", "diary", "--source", "none.txt", "--yes", word="none.txt")
    fails(livingkv, "forget", two, "--sentence", "99999", "--yes", word="99999")
    fails(livingkv, "forget", two + "-none", "--everything", "--yes", word="no store")
    assert names(livingkv, two) == ["doors", "diary"]


def warm(store: str, word: str, times: int) -> None:
    """Counts recalls of the sentence that holds the word."""
    wanted = int(sentence_id(store, word))
    with Store.open(store, mode="write") as opened:
        for _ in range(times):
            opened.recharge([wanted])


def test_prune_keeps_the_hottest(two: str, livingkv: Run) -> None:
    warm(two, "1119", 2)
    code, output, errors = livingkv("prune", two, "--keep", "1", "--json")
    assert (code, errors) == (0, "")
    assert json.loads(output)["n_sentences"] > 30
    with Store.open(two, mode="read") as store:
        (left,) = store.sentences_after(None, 100)
        assert "1119" in left.text
        assert any("Zanzibarquince" in each.text for each in store.archived())
    assert "rained" not in livingkv("ask", two, "When has it rained?", "--mode", "extract")[1]
    assert livingkv("check", two)[0] == 0


def test_prune_below_a_weight_in_one_session(two: str, livingkv: Run) -> None:
    warm(two, "rained", 1)
    code, output, errors = livingkv("prune", two, "--session", "diary", "--below", "0.5")
    assert (code, errors) == (0, "")
    assert output.split()[:2] == ["pruned", "2"]
    with Memory.open(two) as memory:
        assert memory.prune(session="diary", below=0.5).n_sentences == 0
    assert "1119" in livingkv("ask", two, "What does door 17 open with?", "--mode", "extract")[1]


def test_bad_prunes(two: str, livingkv: Run) -> None:
    fails(livingkv, "prune", two, "--session", "nobody", "--keep", "1", word="nobody")
    fails(livingkv, "prune", two + "-none", "--keep", "1", word="no store")
    fails(livingkv, "prune", two, "--below", "nan", word="--below")


def test_stats_show_the_hottest(two: str, livingkv: Run) -> None:
    assert json.loads(livingkv("stats", two, "--json")[1])["hottest"] == []
    assert "hottest 1" not in livingkv("stats", two)[1]
    warm(two, "1119", 3)
    warm(two, "rained", 1)
    first, second = json.loads(livingkv("stats", two, "--json")[1])["hottest"]
    assert "1119" in first["text"] and first["n_recalls"] == 3 and first["weight"] > second["weight"]
    assert first["sentence_id"] == int(sentence_id(two, "1119"))
    output = livingkv("stats", two, "--hottest", "1")[1]
    assert "recalled 3 times" in output and "hottest 2" not in output
    assert json.loads(livingkv("stats", two, "--hottest", "0", "--json")[1])["hottest"] == []
