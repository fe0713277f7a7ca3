"""The archive verbs and erase over the real memory with a tiny model: what is gone is gone from the files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from livingkv.store import Store
from tests.cli.conftest import Run
from tests.cli.test_cli_forget import SECRET, files_with
from tests.cli.test_cli_keep import fails, names
from tests.store.store_cases import SessionModel, filled_store

pytestmark = pytest.mark.slow  # seconds in all: other processes, many stores


@pytest.fixture(name="pruned")
def pruned_store(two: str) -> str:
    """The store with the sessions doors and diary, all of it in the archive."""
    with Store.open(two, mode="write") as store:
        store.prune(keep=0)
    return two


def archived(livingkv: Run, store: str, *argv: str) -> list[dict[str, object]]:
    """What archive list says."""
    code, output, errors = livingkv("archive", "list", store, *argv, "--json")
    assert (code, errors) == (0, "")
    found: list[dict[str, object]] = json.loads(output)
    return found


def test_list(pruned: str, livingkv: Run) -> None:
    everything = archived(livingkv, pruned)
    diary = archived(livingkv, pruned, "--session", "diary")
    assert len(everything) > len(diary) == 3
    assert str(diary[0]["text"]) == "The Zanzibarquince is hidden below the stairs."
    assert (diary[0]["session"], str(diary[0]["source"]).rsplit("/", 1)[1]) == ("diary", "diary.txt")
    number = str(diary[1]["sentence_id"])
    code, output, errors = livingkv("archive", "list", pruned, "--sentence", number)
    assert (code, errors) == (0, "")
    assert output.splitlines()[0].startswith(f"sentence {number}") and output.splitlines()[1].strip() == "It rained."
    livingkv("rename", pruned, "diary", "journal")
    assert len(archived(livingkv, pruned, "-s", "journal")) == 3
    fails(livingkv, "archive", "list", pruned, "-s", "diary", word="diary")
    fails(livingkv, "archive", "list", pruned, "--sentence", "9999", word="9999")
    fails(livingkv, "archive", "list", pruned + "-none", word="no store")


def test_restore_puts_the_text_back_and_it_is_found_again(pruned: str, livingkv: Run) -> None:
    question = ("ask", pruned, "Where is the Zanzibarquince hidden?", "--mode", "extract")
    assert "stairs" not in livingkv(*question)[1]
    code, output, errors = livingkv("archive", "restore", pruned, "--of", "diary", "--json")
    assert (code, errors) == (0, "")
    document = json.loads(output)
    assert document["n_sentences"] == 3
    assert [source["source"].rsplit("/", 1)[1] for source in document["sources"]] == ["diary.txt", "list.txt"]
    assert "stairs" in livingkv(*question)[1]
    assert archived(livingkv, pruned, "-s", "diary") == []
    with Store.open(pruned, mode="read") as store:
        text = b" ".join(store.text(store.session("diary").session_id).split())
    assert text == b"The Zanzibarquince is hidden below the stairs. It rained.Bread, salt and lamp oil are missing."
    with Store.open(pruned, mode="write") as opened:
        opened.prune(opened.session("diary").session_id, keep=0)
    code, output, _ = livingkv("archive", "restore", pruned, "--everything", "--session", "found")
    assert code == 0 and len(output.splitlines()) == 3
    assert names(livingkv, pruned) == ["doors", "diary", "found"]
    assert archived(livingkv, pruned) == [] and "stairs" in livingkv(*question)[1]
    assert "nothing" in livingkv("archive", "restore", pruned, "--everything")[1]
    assert livingkv("check", pruned)[0] == 0


def test_erase_of_the_archive(pruned: str, livingkv: Run) -> None:
    assert files_with(pruned, SECRET)
    (first, *_) = archived(livingkv, pruned, "-s", "diary")
    fails(livingkv, "archive", "erase", pruned, "--of", "diary", word="--yes is needed to erase 3 sentences")
    argv = ("--sentence", str(first["sentence_id"]), "--yes", "--json")
    code, output, errors = livingkv("archive", "erase", pruned, *argv)
    assert (code, errors, json.loads(output)) == (0, "", {"n_sentences": 1, "n_bytes": 46})
    assert files_with(pruned, SECRET) == []
    code, output, errors = livingkv("archive", "erase", pruned, "--of", "diary", "-y")
    assert (code, errors) == (0, "") and output.startswith("erased  2 archived sentences, ")
    assert archived(livingkv, pruned, "-s", "diary") == []
    fails(livingkv, "archive", "erase", pruned, "--of", "nobody", "--yes", word="nobody")
    fails(livingkv, "archive", "restore", pruned, "--sentence", "9999", word="9999")
    (Path(pruned) / "archive" / "sentences.jsonl").write_text("damaged")
    fails(livingkv, "archive", "list", pruned, word="line 1: damaged")
    fails(livingkv, "archive", "erase", pruned, "--of", "doors", "--yes", word="line 1: damaged")
    assert livingkv("archive", "erase", pruned, "--everything", "--yes")[0] == 0
    assert archived(livingkv, pruned) == []


def test_erase_of_the_store(pruned: str, livingkv: Run) -> None:
    shutil.copytree(pruned, pruned + ".before-migration")
    code, _, errors = livingkv("erase", pruned)
    assert code == 1 and f"--yes is needed to erase {pruned}.before-migration, {pruned}: 2 sessions" in errors
    with Store.open(pruned, mode="write"):
        fails(livingkv, "erase", pruned, "--yes", word="is in use")
    assert names(livingkv, pruned) == ["doors", "diary"]
    code, output, errors = livingkv("erase", pruned, "--yes", "--json")
    assert (code, errors) == (0, "")
    receipt = json.loads(output)
    assert (receipt["n_sessions"], receipt["n_sentences"], receipt["left"]) == (2, 0, [])
    assert receipt["n_archived"] > 30 and receipt["size_bytes"] >= receipt["bytes_overwritten"] > 1000
    assert not Path(pruned).exists() and not Path(pruned + ".before-migration").exists()
    fails(livingkv, "erase", pruned, "--yes", word="no store")


def test_a_half_erased_store_opens_with_no_verb(two: str, tiny_folder: Path, note: Path, livingkv: Run) -> None:
    (Path(two) / "erasing.json").write_text("torn")
    (Path(two) / "catalog" / "data.mdb").unlink()
    for argv in (("sessions",), ("stats",), ("check",), ("repair",), ("ask", "Who?"), ("forget", "--everything", "-y")):
        fails(livingkv, argv[0], two, *argv[1:], word=f"livingkv erase {two}")
    fails(livingkv, "ingest", two, str(note), "--model", str(tiny_folder), word=f"livingkv erase {two}")
    (Path(two) / "my.lkvx").touch()
    code, output, errors = livingkv("erase", two, "--yes")
    assert (code, errors) == (0, "")
    assert "too damaged to count" in output and f"{two}/my.lkvx: not a store's" in output


def test_the_whole_receipt_in_lines(tmp_path: Path, livingkv: Run) -> None:
    model: SessionModel = filled_store(tmp_path / "s")
    code, output, errors = livingkv("erase", str(tmp_path / "s"), "--yes")
    assert (code, errors) == (0, "")
    assert [line.split()[0] for line in output.splitlines()] == ["erased", "held", "pages", "files", "overwritten"]
    assert f"1 sessions, {len(model.sentences)} sentences" in output
