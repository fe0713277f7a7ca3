"""The verbs plan and probe, from the command line to what they print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import livingkv.planner.probe
import livingkv.planner.probe_drive
from livingkv.cli_plan_render import print_plan
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


def test_a_device_that_is_too_small_is_told_where_memory_is_enough(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["plan", "config.json", "--context", "100k", "--vram", "1M", "--ram", "32G", "--disk", "500GB"]
    _, out, _ = livingkv_(capsys, *small)
    first = out.splitlines()[0]
    plan: Any = json.loads(livingkv_(capsys, *small, "--json")[1])
    lacks = next(one["value"] for one in plan["calculations"] if one["law"] == "device_lacks")
    need = next(one["value"] for one in plan["calculations"] if one["law"] == "device_need")
    assert lacks == pytest.approx(need - 2**-10) and lacks > 0 and plan["shortage"] is None
    assert first == f"device memory is short by {lacks:.3g} GiB of the {need:.3g} GiB needed, and memory takes the rest"
    _, out, _ = livingkv_(capsys, *small, "--bw-ram", "40GB/s")
    assert out.startswith(f"{first}; on the processor alone, generating waits for reading ")
    _, out, _ = livingkv_(capsys, *small[:5], "0", *small[6:], "--bw-ram", "40GB/s")
    assert out.startswith("nothing is short; ")


def test_experts_that_memory_takes_are_told_with_their_speed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "config.json").write_text(json.dumps(config("qwen3_moe", hidden_size=512, num_hidden_layers=8)))
    speeds = ["--bw-ram", "40GB/s", "--bw-vram", "400GB/s", "--bw-pcie", "10GB/s", "--bw-disk", "1GB/s"]
    words = ["plan", "config.json", "--context", "100", "--vram", "4M", "--ram", "32G", "--disk", "500GB", *speeds]
    _, out, _ = livingkv_(capsys, *words)
    assert ", and memory takes the rest, with experts in it and the rest on the device: at most " in out.splitlines()[0]


def test_money_is_told_in_the_currency_that_is_given(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    asked = ["--budget", "100", "--watts", "100", "--hours-day", "3", "--kwh", "0.3", "--cloud-hour", "1", "--cloud"]
    asked += ["--used-price", "300", "--used-vram", "8G", "--rent-vram", "8G", "--hw-price", "900"]
    priced = ["--priced", "2026-11-30,DE,a shop", "--currency", "SEK"]
    words = ["plan", "config.json", "--context", "1k", *MACHINE, *asked, *priced]
    _, out, _ = livingkv_(capsys, *words)
    assert "300 SEK <= 100 SEK" in out and "90 SEK/month" in out and "10.3 month" in out
    plan: Any = json.loads(livingkv_(capsys, *words, "--json")[1])
    print_plan({**plan, "prices": []})
    again = capsys.readouterr().out
    assert "300 currency units <= 100 currency units" in again
    assert not any(word in told for told in (out, again) for word in ("money", "pay_month"))


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
