"""Every verb, run in this process over the fake memory."""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from livingkv.results import Answer, SessionInfo, Stats, Turn
from tests.cli.conftest import Run, runner
from tests.cli.fake_memory import fake_module
from tests.cli.small_store import make_small_store
from tests.store.damage import flip


@pytest.fixture(name="livingkv")
def run_in_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command line over the fake memory."""
    monkeypatch.setitem(sys.modules, "livingkv.memory", fake_module())
    return runner(monkeypatch, capsys)


@pytest.fixture(name="store")
def store_with_note(tmp_path: Path, livingkv: Run) -> str:
    """A store that holds one short text."""
    note = tmp_path / "note.txt"
    note.write_text("The code of the shed is 4471.")
    store = str(tmp_path / "store")
    assert livingkv("ingest", store, str(note))[0] == 0
    return store


@pytest.fixture(name="small_store")
def real_store(tmp_path: Path) -> str:
    """A real store that holds two sentences."""
    make_small_store(tmp_path / "small")
    return str(tmp_path / "small")


def test_ingest_tells_each_source_and_skips_what_it_has(tmp_path: Path, livingkv: Run) -> None:
    folder = tmp_path / "letters"
    folder.mkdir()
    (folder / "a.txt").write_text("First.")
    (folder / "b.txt").write_text("Second.")
    (folder / ".hidden").write_text("Never.")
    store = str(tmp_path / "store")
    code, output, errors = livingkv("ingest", store, str(folder), str(folder / "a.txt"))
    assert (code, errors) == (0, "")
    assert [line.split(":")[0].rsplit("/", 1)[1] for line in output.splitlines()] == ["a.txt", "b.txt"]
    assert (tmp_path / "store" / "closed").exists()
    code, output, _ = livingkv("ingest", store, str(folder), "--json")
    document = json.loads(output)
    assert code == 0
    assert [source["skipped"] for source in document["sources"]] == [True, True]
    assert (document["session"], document["n_sources"], document["n_bytes"]) == ("default", 2, 13)


def test_ingest_reads_standard_input(tmp_path: Path, livingkv: Run) -> None:
    store = str(tmp_path / "store")
    code, output, _ = livingkv("ingest", store, "-", "--session", "log", "--json", stdin="Grüße, 世界".encode())
    assert code == 0
    assert json.loads(output)["sources"][0] | {"seconds": 0} == {
        "source": "standard input", "session": "log", "n_bytes": 15, "n_tokens": 3, "n_sentences": 1,
        "seconds": 0, "skipped": False, "n_stale_sentences": 0,
    }  # fmt: skip


def test_ingest_of_a_missing_file_leaves_no_store(tmp_path: Path, livingkv: Run) -> None:
    store = tmp_path / "store"
    code, output, errors = livingkv("ingest", str(store), str(tmp_path / "none.txt"))
    assert (code, output) == (1, "")
    assert "none.txt" in errors
    assert errors.count("\n") == 1
    assert not store.exists()


def test_what_was_ingested_before_an_error_is_told(tmp_path: Path, livingkv: Run) -> None:
    (tmp_path / "a.txt").write_text("First.")
    (tmp_path / "b.txt").write_text("CRASH")
    code, output, errors = livingkv("ingest", str(tmp_path / "s"), str(tmp_path / "a.txt"), str(tmp_path / "b.txt"))
    assert code == 1
    assert "a.txt" in output
    assert errors.startswith("livingkv: RuntimeError: two lines")
    assert "--debug" in errors
    assert errors.count("\n") == 1


def test_ask_answers_with_evidence(store: str, livingkv: Run) -> None:
    code, output, errors = livingkv("ask", store, "What is the code of the shed?")
    assert (code, errors) == (0, "")
    lines = output.splitlines()
    assert lines[0] == "The code of the shed is 4471."
    assert lines[2].split() == ["mode", "kv:", "one", "sure", "passage"]
    assert "confidence  0.93" in output
    assert "note.txt, session default, tokens 64 to 128, score 2.50, lexical 7.25" in output
    assert "64 reused, 9 prefilled, 1,234 stored" in output
    assert "1,100 ms (load 1,000, probe 2, fetch 3, first token 40)" in output
    assert "LOW CONFIDENCE" not in output


def test_ask_prints_json_with_the_names_of_the_library(store: str, livingkv: Run) -> None:
    code, output, _ = livingkv("ask", store, "What is the code of the shed?", "--json", "--mode", "ground")
    document = json.loads(output)
    assert code == 0
    assert list(document) == [field.name for field in fields(Answer)]
    assert document["mode"] == "ground"
    assert document["evidence"][0]["tokens"] == [64, 128]
    assert list(document["timings_ms"]) == ["load", "probe", "fetch", "first_token", "total"]


def test_ask_says_low_confidence_and_exits_with_2(store: str, livingkv: Run) -> None:
    code, output, errors = livingkv("ask", store, "Who owns the zebra?")
    assert (code, errors) == (2, "")
    assert output.splitlines()[0].startswith("LOW CONFIDENCE")
    code, output, _ = livingkv("ask", store, "Who owns the zebra?", "--json")
    assert code == 2
    assert json.loads(output)["confident"] is False


def test_ask_a_store_that_is_not_there(tmp_path: Path, livingkv: Run) -> None:
    code, output, errors = livingkv("ask", str(tmp_path / "none"), "Who?", "--json")
    assert (code, output) == (1, "")
    assert errors == f"livingkv: no store at {tmp_path / 'none'}: livingkv ingest makes one\n"
    assert not (tmp_path / "none").exists()


def test_stored_control_sequences_never_reach_the_terminal(tmp_path: Path, livingkv: Run) -> None:
    store = str(tmp_path / "store")
    livingkv("ingest", store, "-", stdin=b"\x1b]0;owned\x07\x1b[2J the [bold]title[/bold]")
    _, output, _ = livingkv("ask", store, "title")
    assert output.splitlines()[0] == "\\x1b]0;owned\\x07\\x1b[2J the [bold]title[/bold]"


def test_chat_reads_lines_and_resumes(tmp_path: Path, livingkv: Run) -> None:
    store = str(tmp_path / "store")
    code, output, errors = livingkv("chat", store, stdin="hello\n\n  größe \n/quit\nnever\n".encode())
    assert (code, output, errors) == (0, "HELLO\nGRÖSSE\n", "")
    code, output, _ = livingkv("chat", store, "--json", stdin=b"third")
    assert code == 0
    document = json.loads(output)
    assert list(document) == [field.name for field in fields(Turn)]
    assert (document["answer"], document["turn"]) == ("THIRD", 3)


def test_chat_names_the_line_that_is_not_utf8(tmp_path: Path, livingkv: Run) -> None:
    code, output, errors = livingkv("chat", str(tmp_path / "store"), stdin=b"first\n\xff\xfe\n")
    assert (code, output) == (1, "FIRST\n")
    assert "line 2" in errors
    assert errors.count("\n") == 1


def test_sessions_prints_a_table_or_json(small_store: str, livingkv: Run) -> None:
    code, output, errors = livingkv("sessions", small_store)
    assert (code, errors) == (0, "")
    header, row = output.splitlines()
    assert header.split() == ["session", "tokens", "sentences", "text", "turns", "sources", "changed"]
    assert row.split()[:7] == ["default", "70", "2", "26", "B", "0", "1"]
    code, output, _ = livingkv("sessions", small_store, "--json")
    assert code == 0
    (document,) = json.loads(output)
    assert list(document) == [field.name for field in fields(SessionInfo)]
    assert (document["name"], document["n_tokens"], document["sources"]) == ("default", 70, ["note.txt"])


def test_stats_prints_lines_or_json(small_store: str, livingkv: Run) -> None:
    code, output, errors = livingkv("stats", small_store)
    assert (code, errors) == (0, "")
    assert {"model": "tiny", "codec": "int8", "tokens": "70", "sentences": "2", "pages": "1"}.items() <= {
        line.split()[0]: line.split()[-1] for line in output.splitlines() if not line.startswith(" ")
    }.items()
    assert "of 16-bit KV" in output
    code, output, _ = livingkv("stats", small_store, "--json")
    document = json.loads(output)
    assert list(document) == [*(field.name for field in fields(Stats)), "hottest"]
    assert (code, document["n_tokens"], document["path"]) == (0, 70, small_store)
    assert sum(document["bytes_by_part"].values()) == document["size_bytes"]


def test_check_finds_a_store_whole_or_fails(small_store: str, livingkv: Run) -> None:
    code, output, errors = livingkv("check", small_store)
    assert (code, errors) == (0, "")
    assert output.splitlines()[-1].split() == ["result", "whole"]
    code, output, _ = livingkv("check", small_store, "--json")
    assert (code, json.loads(output)["ok"]) == (0, True)
    (segment,) = (file for file in (Path(small_store) / "segments").iterdir() if file.stat().st_size > 4000)
    flip(segment, (segment.read_bytes().index(b"pagepage") + 100) * 8)
    code, output, errors = livingkv("check", small_store)
    assert code == 1
    assert "- " in output
    assert errors.startswith("livingkv: 1 problem")
    assert errors.count("\n") == 1
    code, output, _ = livingkv("check", small_store, "--json")
    document = json.loads(output)
    assert (code, document["ok"], len(document["problems"])) == (1, False, 1)


@pytest.mark.parametrize("verb", ["sessions", "stats", "check"])
def test_verbs_that_only_look_make_no_store(verb: str, tmp_path: Path, livingkv: Run) -> None:
    code, output, errors = livingkv(verb, str(tmp_path / "none"))
    assert (code, output) == (1, "")
    assert errors.count("\n") == 1
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["ask", "s", "q", "--mode", "best"], "'best' is not one of"),
        (["ask", "s", "q", "--max-tokens", "0"], "max-tokens"),
        (["ask", "s"], "Missing argument"),
        (["ask", "s", "q", "more"], "more"),
        (["ask", "s", "q", "--nope"], "--nope"),
        (["explode"], "explode"),
        (["ingest", "s"], "FILE"),
        (["model", "explode"], "explode"),
        (["ingest", "s", "-", "--disk-budget", "much"], "'much' is no size"),
        (["ask", "s", "q", "--ram-budget", "-1"], "'-1' is no size"),
        (["stats", "s", "--hottest", "-1"], "hottest"),
        (["forget", "s"], "one thing to forget"),
        (["forget", "s", "--session", "a", "--everything"], "one thing to forget"),
        (["forget", "s", "--source", "a", "--everything"], "--session"),
        (["forget", "s", "--session", "a", "--deep"], "--deep"),
        (["forget", "s", "--sentence", "first"], "sentence"),
        (["prune", "s"], "--keep"),
        (["prune", "s", "--keep", "1", "--below", "1"], "--below"),
        (["prune", "s", "--keep", "-1"], "keep"),
        (["migrate", "s"], "--model"),
        (["reembed", "s"], "--embedder"),
        (["migrate", "s", "--codec", "best"], "best"),
        (["fork", "s", "a"], "NEW"),
        (["rename", "s", "a"], "NEW"),
        (["export", "s", "a"], "FILE"),
        (["import", "s"], "FILE"),
        (["pin", "s"], "SESSION"),
        (["erase"], "STORE"),
        (["archive", "explode"], "explode"),
        (["archive", "restore", "s"], "--sentence"),
        (["archive", "erase", "s", "--of", "a", "--everything"], "--sentence"),
        (["ask", "s", "q", "--weights", "2bit"], "2bit"),
        (["ask", "s", "q", "--seed", "1"], "--temperature"),
        (["ask", "s", "q", "--top-p", "0.5"], "--temperature"),
        (["ask", "s", "q", "--seed", "-1", "--temperature", "1"], "seed"),
        (["chat", "s", "--stop", ""], "--stop"),
    ],
)
def test_usage_errors_are_one_line_and_exit_1(argv: list[str], named: str, livingkv: Run) -> None:
    code, output, errors = livingkv(*argv)
    assert (code, output) == (1, "")
    assert named in errors
    assert errors.rstrip().endswith("--help")
    assert errors.count("\n") == 1


def test_debug_prints_the_traceback_before_the_line(tmp_path: Path, livingkv: Run) -> None:
    code, _, errors = livingkv("ask", str(tmp_path / "none"), "q", "--debug")
    assert code == 1
    assert errors.startswith("Traceback")
    assert errors.splitlines()[-1].startswith("livingkv: no store at")


VERBS = ["ingest", "ask", "chat", "sessions", "stats", "check", "repair", "fork", "rename", "pin"]
VERBS += [
    "forget",
    "erase",
    "prune",
    "archive list",
    "archive restore",
    "archive erase",
    "export",
    "import",
    "defrag",
    "migrate",
    "reembed",
    "model fetch",
    "model info",
]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_examples(verb: str, livingkv: Run) -> None:
    code, output, errors = livingkv(*verb.split(), "--help")
    assert (code, errors) == (0, "")
    assert "Examples:" in output
    assert f"livingkv {verb}" in output


def test_version_and_bare_call(livingkv: Run) -> None:
    assert livingkv("--version") == (0, "livingkv 0.1.0\n", "")
    code, output, _ = livingkv()
    assert code == 0
    assert "Usage" in output
