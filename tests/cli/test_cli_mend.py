"""Repair, reembed and migrate over the real memory with a tiny model, with bad input each."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from livingkv.cli_receipts import spans
from livingkv.store import Store
from livingkv.store.records import ALIGNMENT
from tests.cli.conftest import Run
from tests.cli.test_cli_keep import fails, names
from tests.memory.test_damaged_pages import damage_all_pages
from tests.store.damage import flip


def test_repair_has_nothing_to_do(two: str, livingkv: Run) -> None:
    code, output, errors = livingkv("repair", two)
    assert (code, errors, output) == (0, "", "result  nothing had to be rebuilt\n")
    assert json.loads(livingkv("repair", two, "--json")[1]) == {
        "catalog": None,
        "segments": [],
        "sessions": [],
        "remaining": [],
    }


def test_repair_rebuilds_damaged_and_dropped_pages(two: str, livingkv: Run) -> None:
    damage_all_pages(Path(two))
    code, _, errors = livingkv("check", two)
    assert code == 1 and "livingkv repair" in errors
    code, output, errors = livingkv("repair", two, "--session", "doors")
    assert (code, errors) == (0, "")
    assert output.startswith("session doors  pages 0-")
    livingkv("repair", two)
    assert livingkv("check", two)[0] == 0
    with Store.open(two, mode="write") as store:
        store.drop_pages(store.session("doors").session_id, [1, 2])
    (one,) = json.loads(livingkv("repair", two, "--json")[1])["sessions"]
    assert one == {"session": "doors", "pages": [1, 2], "tail": False, "problem": None}


def test_repair_rebuilds_a_lost_catalog_first(two: str, livingkv: Run) -> None:
    shutil.rmtree(Path(two) / "catalog")
    fails(livingkv, "sessions", two, word="livingkv repair")
    code, output, errors = livingkv("repair", two, "--json")
    assert (code, errors) == (0, "")
    document = json.loads(output)
    assert document["catalog"]["n_sessions"] == 2 and document["catalog"]["problems"] == []
    assert all(one["tail"] for one in document["sessions"])
    assert names(livingkv, two) == ["doors", "diary"]
    assert livingkv("check", two)[0] == 0
    assert "1119" in livingkv("ask", two, "What does door 17 open with?", "--mode", "extract")[1]


@pytest.mark.parametrize("fill", [b"\0", b"\xa5"])
def test_repair_rebuilds_a_catalog_that_is_no_longer_one(two: str, livingkv: Run, fill: bytes) -> None:
    file = Path(two) / "catalog" / "data.mdb"
    file.write_bytes(fill * file.stat().st_size)
    code, _, error = livingkv("stats", two)
    assert code == 1 and f"livingkv repair {two}" in error and "Traceback" not in error
    code, output, _ = livingkv("repair", two, "--json")
    assert code == 0 and json.loads(output)["catalog"]["n_sessions"] == 2
    assert livingkv("check", two)[0] == 0


def test_repair_says_what_a_lost_catalog_cannot_have_back(two: str, livingkv: Run) -> None:
    (segment, *_) = sorted((Path(two) / "segments").iterdir(), key=lambda path: path.stat().st_size)
    shutil.rmtree(Path(two) / "catalog")
    flip(segment, segment.stat().st_size // 2 * 8)
    code, output, _ = livingkv("repair", two)
    assert code == 1
    assert "- " in output and "catalog" in output


def test_bad_repairs(two: str, tmp_path: Path, livingkv: Run) -> None:
    fails(livingkv, "repair", two + "-none", word="no store")
    fails(livingkv, "repair", two, "--session", "nobody", word="nobody")
    fails(livingkv, "repair", two, "--model", str(tmp_path / "gone"), word="gone")
    (Path(two) / "manifest.json").write_text("{")
    fails(livingkv, "repair", two, word="manifest")


def test_migrate_reads_the_text_again(two: str, livingkv: Run) -> None:
    code, output, errors = livingkv("migrate", two, "--codec", "lossless", "--json")
    assert (code, errors) == (0, "")
    done = json.loads(output)
    assert (done["n_sessions"], done["n_tokens_after"]) == (2, done["n_tokens_before"])
    assert json.loads(livingkv("stats", two, "--json")[1])["codec"] == "lossless"
    assert json.loads(livingkv("stats", done["old_path"], "--json")[1])["codec"] == "int8"
    assert livingkv("check", two)[0] == 0
    fails(livingkv, "migrate", two, "--codec", "int8", word="earlier migration")
    shutil.rmtree(done["old_path"])
    code, output, _ = livingkv("migrate", two, "--codec", "int8")
    assert code == 0 and "until you remove it" in output


def test_bad_migrations(two: str, tmp_path: Path, livingkv: Run) -> None:
    fails(livingkv, "migrate", two + "-none", "--codec", "int8", word="no store")
    fails(livingkv, "migrate", two, "--model", str(tmp_path / "gone"), word="gone")
    assert json.loads(livingkv("stats", two, "--json")[1])["codec"] == "int8"
    assert livingkv("check", two)[0] == 0


def test_reembed_makes_other_vectors(two: str, livingkv: Run) -> None:
    code, output, errors = livingkv("reembed", two, "--embedder", "tokens", "--json")
    assert (code, errors) == (0, "")
    done = json.loads(output)
    assert (
        done["embedder"] == "tokens"
        and done["n_sentences"] == json.loads(livingkv("stats", two, "--json")[1])["n_sentences"]
    )
    assert livingkv("check", two)[0] == 0
    code, output, _ = livingkv("reembed", two, "--embedder", "tokens")
    assert code == 0 and output.startswith("embedder  tokens")


def test_bad_reembeddings(two: str, tmp_path: Path, livingkv: Run) -> None:
    fails(livingkv, "reembed", two + "-none", "--embedder", "tokens", word="no store")
    fails(livingkv, "reembed", two, "--embedder", str(tmp_path / "gone"), word="pip install sentence-transformers")
    assert livingkv("check", two)[0] == 0


def test_spans() -> None:
    assert spans([1, 2, 3, 7, 9, 10]) == "1-3, 7, 9-10"
    assert spans([]) == ""


def _overwrite(file: Path, first: int, last: int) -> None:
    data = bytearray(file.read_bytes())
    data[first:last] = random.Random(7).randbytes(len(data[first:last]))
    file.write_bytes(data)


def _random(file: Path) -> None:
    _overwrite(file, 0, file.stat().st_size)


def _middle(file: Path) -> None:
    middle = file.stat().st_size // 2 // 4096 * 4096
    _overwrite(file, middle, middle + 3 * 4096)


def _emptied(file: Path) -> None:
    file.write_bytes(b"")


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("harm", [_random, _middle, _emptied, _folder])
def test_check_names_and_repair_rebuilds_an_unreadable_catalog(
    two: str, livingkv: Run, harm: Callable[[Path], None]
) -> None:
    harm(Path(two) / "catalog" / "data.mdb")
    code, output, _ = livingkv("check", two, "--json")
    (problem,) = json.loads(output)["problems"]
    assert code == 1 and f"livingkv repair {two}" in problem
    code, output, errors = livingkv("repair", two)
    assert (code, errors) == (0, "") and "rebuilt: 2 sessions" in output
    assert livingkv("check", two)[0] == 0


def _half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _end(file: Path) -> None:
    """Cuts the last record, not its padding alone."""
    file.write_bytes(file.read_bytes()[:-ALIGNMENT])


def _header(file: Path) -> None:
    _overwrite(file, 0, 16)


def _segments(store: str) -> tuple[Path, Path]:
    """The log's segment and that of the pages."""
    log, pages = sorted((Path(store) / "segments").iterdir(), key=lambda path: path.stat().st_size)
    return log, pages


@pytest.mark.parametrize(
    "harm",
    [
        Path.unlink,
        _header,
        *(pytest.param(one, marks=pytest.mark.slow) for one in (_half, _end, _random, _emptied, _folder)),
    ],
)
def test_repair_replaces_a_damaged_segment_of_pages(two: str, livingkv: Run, harm: Callable[[Path], None]) -> None:
    harm(_segments(two)[1])
    assert livingkv("check", two)[0] == 1
    code, output, errors = livingkv("repair", two)
    assert (code, errors) == (0, "") and "nothing" not in output, output
    code, output, _ = livingkv("check", two)
    assert code == 0, output
    assert livingkv("repair", two)[:2] == (0, "result  nothing had to be rebuilt\n")


def test_repair_saves_the_text_behind_a_damaged_header(two: str, livingkv: Run) -> None:
    question = ("ask", two, "What does door 17 open with?", "--mode", "extract")
    _header(_segments(two)[0])
    code, output, errors = livingkv("repair", two, "--json")
    assert (code, errors, json.loads(output)["segments"]) == (0, "", [1])
    assert livingkv("check", two)[0] == 0
    assert "1119" in livingkv(*question)[1]


@pytest.mark.slow
@pytest.mark.parametrize("harm", [_half, _end, Path.unlink, _random, _emptied, _folder])
def test_repair_names_the_text_that_is_lost(two: str, livingkv: Run, harm: Callable[[Path], None]) -> None:
    harm(_segments(two)[0])
    code, output, _ = livingkv("repair", two, "--json")
    remaining = json.loads(output)["remaining"]
    assert code == 1 and any("are lost: ingest them again" in problem for problem in remaining)
    code, output, _ = livingkv("check", two, "--json")
    assert code == 1 and json.loads(output)["problems"] == remaining
    assert livingkv("repair", two, "--session", "diary")[0] == 1


def test_repair_of_one_session_is_not_failed_by_another(two: str, livingkv: Run) -> None:
    _end(_segments(two)[0])  # of the diary
    assert livingkv("repair", two, "--session", "doors")[0] == 0
    code, output, _ = livingkv("repair", two)
    assert code == 1 and "- session 2 chunk 1" in output
