"""The verbs plan and probe, from the command line to what they print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import livingkv.planner.probe
import livingkv.planner.probe_drive
from livingkv.cli_process import ExitCode, run
from livingkv.errors import InputError
from livingkv.planner.inputs import MEASURABLE
from livingkv.planner.options import options
from livingkv.planner.probe import last_probe
from livingkv.planner.probe_machine import cores, is_in_memory, memory_bytes
from tests.command_line import command_line
from tests.planner.models import config

MACHINE = ["--vram", "8G", "--ram", "32G", "--disk", "500GB", "--bw-vram", "400GB/s", "--bw-ram", "40GB/s"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a config.json and a cache."""
    (tmp_path / "config.json").write_text(json.dumps(config("qwen2")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIVINGKV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(livingkv.planner.probe, "_SECONDS", 0.001)
    monkeypatch.setattr(livingkv.planner.probe_drive, "_FILE_BYTES", 1 << 23)
    return tmp_path


def livingkv_(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = run(command_line(), words)
    found = capsys.readouterr()
    assert "Traceback" not in found.err
    return code, found.out, found.err


def test_every_symbol_that_says_so_has_an_option() -> None:
    flags = [one.flag for one in options()]
    assert len(flags) == len(set(flags)) > 40 and {"--context", "--ram", "--bw-pcie", "--kwh", "--params"} <= set(flags)


def test_what_is_short_comes_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = livingkv_(capsys, "plan", "config.json", "--context", "100k", *MACHINE)
    assert code == ExitCode.OK and out.startswith("nothing is short; generating waits for reading")
    _, out, _ = livingkv_(capsys, "plan", "config.json", "--context", "100k", "--vram", "0", "--ram", "1M")
    assert out.startswith("memory is short: ") and "KiB" not in out.splitlines()[0]
    assert "experts in memory or on the drive  no" in out and "unknown; supply " in out


def test_a_plan_is_written_checked_and_found_wrong(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    priced = ["--gpu-price", "900", "--priced", "2026-11-30,DE,a shop, with a comma", "--currency", "EUR", "--no-cloud"]
    code, out, _ = livingkv_(capsys, "plan", "config.json", "--context", "64k", *MACHINE, *priced, "--json")
    plan: Any = json.loads(out)
    assert code == ExitCode.OK and plan["prices"][0]["source"] == "a shop, with a comma"
    (folder / "plan.json").write_text(out)
    code, out, _ = livingkv_(capsys, "plan", "check", "plan.json", "--of", "config.json")
    assert code == ExitCode.OK and "follows from its inputs" in out
    plan["calculations"][0]["value"] = 3
    (folder / "plan.json").write_text(json.dumps(plan))
    code, out, err = livingkv_(capsys, "plan", "check", "plan.json", "--json")
    assert code == ExitCode.FAILED and json.loads(out)["errors"][0].startswith("calculations.weights.value")
    assert "1 error in plan.json" in err


def test_a_model_that_is_called_check_can_be_planned_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "check").mkdir()
    (folder / "check" / "config.json").write_text(json.dumps(config("llama")))
    code, out, _ = livingkv_(capsys, "plan", "./check", "--context", "1k", "--json")
    assert code == ExitCode.OK and json.loads(out)["model"] == {"name": "check", "type": "llama"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["config.json", "--ram", "8 tons"], "--ram"),
        (["config.json", "--context", "0"], "--context"),
        (["config.json", "--gpu-price", "900"], "priced"),
        (["config.json", "--here"], "livingkv probe --save"),
        (["config.json", "other"], "FILE"),
        (["nowhere"], "config.json"),
        (["check", "nowhere"], "FILE"),
        (["check", "."], "FILE"),
        (["config.json", "--priced", "today", "--gpu-price", "1"], "date"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    words: list[str], told: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = livingkv_(capsys, "plan", *words)
    assert code == ExitCode.FAILED and out == "" and told in err and err.count("\n") == 1


@pytest.mark.slow
def test_a_probe_is_kept_and_used(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = livingkv_(capsys, "probe", "--folder", ".", "--json", "--save")
    found = json.loads(out)
    assert code == ExitCode.OK and set(MEASURABLE) <= set(found["parts"]), err
    assert all(
        (one["value"] is None) == (one["why"] is not None) or one["value"] == 0 for one in found["parts"].values()
    )
    assert sorted(path.name for path in folder.iterdir()) == ["cache", "config.json"]
    code, out, _ = livingkv_(capsys, "plan", "config.json", "--context", "1k", "--here", "--json")
    inputs = json.loads(out)["inputs"]
    assert inputs["ram"]["kind"] == "measured" and inputs["bw_ram"]["value"] == found["parts"]["bw_ram"]["value"]
    code, out, _ = livingkv_(capsys, "probe")
    assert "bw_ram" in out and "GB/s" in out


@pytest.mark.parametrize(
    "text", ["", "[]", '{"version": 2, "parts": {}}', '{"version": 1, "parts": {"ram": {"value": "x"}}}']
)
def test_a_probe_that_is_none_is_told(folder: Path, text: str) -> None:
    (folder / "cache").mkdir()
    (folder / "cache" / "probe.json").write_text(text)
    with pytest.raises(InputError, match="--here"):
        last_probe(folder / "cache")


def test_what_the_system_says_makes_sense(tmp_path: Path) -> None:
    total, free = memory_bytes()
    assert 0 < free <= total and 0 < cores() <= 4096
    shared = Path("/dev/shm")
    assert not shared.is_dir() or is_in_memory(shared)
