"""The verbs of a session's life that lose nothing, over the real memory with a tiny model, with bad input each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from livingkv.cli_options import parse_size
from livingkv.store import Store
from tests.cli.conftest import Run
from tests.tiny import tiny_network, tiny_tokenizer

pytestmark = pytest.mark.slow  # seconds in all: other processes, many stores


def names(livingkv: Run, store: str) -> list[str]:
    """The names of a store's sessions."""
    return [session["name"] for session in json.loads(livingkv("sessions", store, "--json")[1])]


def fails(livingkv: Run, *argv: str, word: str) -> None:
    """The command line fails with one line that holds the word, and prints nothing."""
    code, output, errors = livingkv(*argv)
    assert (code, output) == (1, ""), argv
    assert word in errors and errors.count("\n") == 1, errors


def test_fork(two: str, livingkv: Run) -> None:
    code, output, errors = livingkv("fork", two, "doors", "copy", "--json")
    assert (code, errors) == (0, "")
    made = json.loads(output)
    assert (made["name"], made["sources"][0].rsplit("/", 1)[1]) == ("copy", "doors.txt")
    assert names(livingkv, two) == ["doors", "diary", "copy"]
    code, output, _ = livingkv("fork", two, "diary", "other")
    assert code == 0 and output.splitlines()[0].split() == ["forked", "other"]
    assert livingkv("check", two)[0] == 0
    fails(livingkv, "fork", two, "nobody", "new", word="nobody")
    fails(livingkv, "fork", two, "doors", "copy", word="copy")
    fails(livingkv, "fork", two, "doors", "", word="name")
    fails(livingkv, "fork", two + "-none", "doors", "new", word="no store")
    assert not Path(two + "-none").exists()


def test_rename(two: str, livingkv: Run) -> None:
    code, output, errors = livingkv("rename", two, "doors", "gates")
    assert (code, errors, output.splitlines()[0].split()) == (0, "", ["renamed", "gates"])
    assert json.loads(livingkv("rename", two, "gates", "doors 2", "--json")[1])["name"] == "doors 2"
    assert names(livingkv, two) == ["doors 2", "diary"]
    assert "1119" in livingkv("ask", two, "What does door 17 open with?", "--mode", "extract", "-s", "doors 2")[1]
    fails(livingkv, "rename", two, "doors", "new", word="doors")
    fails(livingkv, "rename", two, "doors 2", "diary", word="diary")
    fails(livingkv, "rename", two, "diary", "a\nb", word="name")
    fails(livingkv, "rename", two + "-none", "a", "b", word="no store")


def test_pin(two: str, livingkv: Run) -> None:
    assert livingkv("pin", two, "diary")[:2] == (0, "pinned  diary\n")
    assert json.loads(livingkv("pin", two, "diary", "--off", "--json")[1]) == {"session": "diary", "pinned": False}
    assert livingkv("pin", two, "diary")[0] == 0
    assert livingkv("prune", two, "--keep", "0")[0] == 0
    with Store.open(two, mode="read") as store:
        assert {sentence.session for sentence in store.sentences_after(None, 100)} == {"diary"}
    fails(livingkv, "pin", two, "nobody", word="nobody")
    fails(livingkv, "pin", two + "-none", "diary", word="no store")


def test_export_and_import(two: str, tmp_path: Path, tiny_folder: Path, livingkv: Run) -> None:
    file, text = str(tmp_path / "doors.lkvx"), str(tmp_path / "text.lkvx")
    code, output, errors = livingkv("export", two, "doors", file, "--json")
    assert (code, errors) == (0, "")
    assert json.loads(output)["n_bytes"] == Path(file).stat().st_size
    assert livingkv("export", two, "doors", text, "--text-only")[0] == 0
    assert Path(text).stat().st_size < Path(file).stat().st_size
    code, output, errors = livingkv("import", two, file, "--name", "again")
    assert (code, errors, output.splitlines()[0].split()) == (0, "", ["imported", "again"])
    new = str(tmp_path / "new")
    assert json.loads(livingkv("import", new, file, "--model", str(tiny_folder), "--json")[1])["name"] == "doors"
    assert livingkv("import", new, text, "--text-only", "--name", "text")[0] == 0
    repaired = json.loads(livingkv("repair", new, "--session", "text", "--json")[1])
    assert [one["session"] for one in repaired["sessions"]] == ["text"]
    for store in (two, new):
        assert livingkv("check", store)[0] == 0
        assert "1119" in livingkv("ask", store, "What does door 17 open with?", "--mode", "extract")[1]


def test_bad_exports_and_imports(two: str, tmp_path: Path, livingkv: Run) -> None:
    file = tmp_path / "doors.lkvx"
    fails(livingkv, "export", two, "nobody", str(file), word="nobody")
    fails(livingkv, "export", two + "-none", "doors", str(file), word="no store")
    fails(livingkv, "export", two, "doors", str(tmp_path / "none" / "file"), word="none")
    assert livingkv("export", two, "doors", str(file))[0] == 0
    whole = file.read_bytes()
    fails(livingkv, "export", two, "diary", str(file), word="exists")
    assert file.read_bytes() == whole
    fails(livingkv, "import", two, str(file), word="doors")
    fails(livingkv, "import", two, str(tmp_path / "none.lkvx"), word="none.lkvx")
    fails(livingkv, "import", two, str(tmp_path), word=str(tmp_path))
    for name, data in (
        ("cut", whole[:-1]),
        ("text", b"A letter."),
        ("empty", b""),
        ("changed", b"\0".join(whole.split(b"1", 1))),
    ):
        (tmp_path / name).write_bytes(data)
        fails(livingkv, "import", str(tmp_path / "fresh"), str(tmp_path / name), word=name)
    assert not (tmp_path / "fresh").exists()
    assert names(livingkv, two) == ["doors", "diary"]


def test_import_refuses_another_model(
    two: str, tmp_path: Path, note: Path, livingkv: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other, model = str(tmp_path / "doors.lkvx"), str(tmp_path / "other"), tmp_path / "other-model"
    tiny_network("qwen2", seed=1).save_pretrained(model)
    tiny_tokenizer().save_pretrained(model)
    capsys.readouterr()  # transformers' progress bar
    assert livingkv("export", two, "doors", file)[0] == 0
    assert livingkv("ingest", other, str(note), "--model", str(model))[0] == 0
    fails(livingkv, "import", other, file, word="model")
    assert livingkv("import", other, file, "--text-only")[0] == 0
    assert names(livingkv, other) == ["default", "doors"]


def test_defrag_gives_space_back(two: str, livingkv: Run) -> None:
    assert livingkv("forget", two, "--session", "doors", "--yes")[0] == 0
    report = json.loads(livingkv("defrag", two, "--json")[1])
    assert report["bytes_after"] < report["bytes_before"] and report["problems"] == []
    code, output, errors = livingkv("defrag", two)
    assert (code, errors) == (0, "")
    assert [line.split()[0] for line in output.splitlines()] == ["moved", "before", "after"]
    assert livingkv("check", two)[0] == 0
    fails(livingkv, "defrag", two + "-none", word="no store")


def test_text_only_sessions_take_no_pages(tmp_path: Path, note: Path, tiny_folder: Path, livingkv: Run) -> None:
    store = str(tmp_path / "log")
    argv = ("ingest", store, str(note), "--session", "log", "--text-only", "--model", str(tiny_folder))
    assert livingkv(*argv)[0] == 0
    with Store.open(store, mode="read") as opened:
        assert opened.session("log").text_only
    assert "4471" in livingkv("ask", store, "What is the code of the shed?", "--mode", "extract")[1]
    fails(livingkv, *argv[:2], "none.txt", "--text-only", word="none.txt")


def test_budgets_are_passed_on_and_fit_every_codec(
    tmp_path: Path, note: Path, tiny_folder: Path, livingkv: Run
) -> None:
    store = str(tmp_path / "s")
    assert livingkv("ingest", store, str(note), "--codec", "lossless", "--model", str(tiny_folder))[0] == 0
    assert livingkv("ask", store, "What is the code?", "--mode", "kv", "--ram-budget", "64M")[0] in (0, 2)
    assert livingkv("chat", store, "--disk-budget", "1G", "--max-tokens", "2", stdin=b"hello\n")[0] == 0
    fails(livingkv, "ingest", store, str(note), "--disk-budget", "10", word="disk_budget_bytes")
    fails(livingkv, "ask", store, "What?", "--ram-budget", "1", word="ram_budget_bytes")


def test_a_disk_budget_takes_kv_and_keeps_text(two: str, tmp_path: Path, livingkv: Run) -> None:
    more, last = tmp_path / "more.txt", tmp_path / "last.txt"
    more.write_text("".join(f"Window {i} is {i * 3} years old.\n\n" for i in range(180)))
    last.write_text("The roof leaks.")
    assert livingkv("ingest", two, str(more), "--session", "more")[0] == 0
    assert json.loads(livingkv("stats", two, "--json")[1])["size_bytes"] > 1 << 20
    code, _, errors = livingkv("ingest", two, str(last), "--session", "more", "--disk-budget", "1M")
    assert (code, errors) == (0, "")
    with Store.open(two, mode="read") as store:
        assert [row.name for row in store.sessions() if store.missing_pages(row.session_id)] != []
    assert "1119" in livingkv("ask", two, "What does door 17 open with?", "--mode", "extract")[1]
    assert json.loads(livingkv("stats", two, "--json")[1])["disk_budget_bytes"] == 1 << 20, "the store keeps it"
    assert "1.0 MiB" in next(line for line in livingkv("stats", two)[1].splitlines() if line.startswith("disk budget"))
    assert livingkv("ingest", two, str(more), "--session", "again", "--disk-budget", "unlimited")[0] == 0
    stats = json.loads(livingkv("stats", two, "--json")[1])
    assert stats["disk_budget_bytes"] is None and stats["held_bytes"] > 1 << 20
    fails(livingkv, "ingest", two, str(last), "--disk-budget", "much", word="no size")


def test_sizes() -> None:
    sizes = {"1048576": 1 << 20, "500M": 500 << 20, "2G": 2 << 30, "1.5 gib": 3 << 29, "3kB": 3072, "1T": 1 << 40}
    assert {text: parse_size(text) for text in sizes} == sizes
