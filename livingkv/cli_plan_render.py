"""A plan and a probe as tables: what is short first, then what is needed, how fast it can be, and which paths are open.

Knows the document of a plan; computes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from livingkv.cli_render import OutputConsole, visible
from livingkv.planner.plan import INFINITE

if TYPE_CHECKING:
    from livingkv.planner.probe import Probe

_NEEDS = ("weights", "experts_all", "kv_per_token", "kv_per_token_16", "kv_total", "kv_total_16", "state", "hot")
_PLACES = ("device_need", "host_need", "cold_in_ram", "cold_on_disk", "index", "store")
_TIMES = ("restore_window", "restore_all", "read_again_device", "read_again_cpu")
_SPEEDS = ("decode_device", "decode_cpu", "prefill_device", "prefill_cpu")
_ELSEWHERE = (
    *("decode_used", "decode_gpu", "decode_gpus", "decode_unified", "decode_rented"),
    *("decode_smaller", "decode_smaller_cpu"),
)
_STREAM = (
    "experts_token",
    "experts_missed",
    "stream_ram",
    "stream_split",
    "stream_overlapped",
    "stream_serial",
    "stream_cpu",
)
_MONEY = ("electricity_month", "rent_month", "api_month", "breakeven", "gpus_needed", "gpus_price")
_STYLES = {"yes": "green", "no": "red", "maybe": "yellow"}
_WORDS = {
    "token/user": "tokens",
    "token/second": "tokens/s",
    "byte/token": "B/token",
    "second": "s",
}


def print_plan(document: dict[str, Any]) -> None:
    """For people. What is unknown is listed once, with what to supply."""
    prices = document["prices"]
    document = _in_words(document, prices[0]["currency"] if prices else "currency units")
    console = OutputConsole()
    results = {one["law"]: one for one in document["calculations"]}
    console.print(Text(bottleneck(document, results), style="bold"), soft_wrap=True)
    for remark in document["remarks"]:
        console.print(Text(remark), soft_wrap=True)
    has_experts = document["inputs"]["experts"]["value"] != 0
    groups = [_NEEDS, _PLACES, _TIMES, _SPEEDS, *([_STREAM] if has_experts else []), _ELSEWHERE, _MONEY]
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="left", overflow="fold")
    table.add_column(justify="right")
    for group in groups:
        rows = [results[name] for name in group if _is_told(results[name])]
        if rows:
            table.add_row("", "")
        for one in rows:
            table.add_row(one["says"], amount_text(one))
    console.print(table)
    console.print()
    console.print(_paths(document))
    lacking = {name for one in document["calculations"] for name in one["lacking"]}
    sources = {name: one["source"] for name, one in document["inputs"].items() if name in lacking}
    if sources:
        told = ", ".join(_how({"symbol": name, "how": why.removeprefix("supply ")}) for name, why in sources.items())
        console.print()
        console.print(Text(f"unknown; supply {visible(told)}"), soft_wrap=True)


def _in_words(value: Any, currency: str) -> Any:
    """The same document with units as people write them, money in a currency."""
    if isinstance(value, list):
        return [_in_words(one, currency) for one in value]
    if not isinstance(value, dict):
        return value
    found = {name: _in_words(one, currency) for name, one in value.items()}
    if isinstance(found.get("unit"), str):
        words = {"money": currency, "pay_month": "month"}
        found["unit"] = "/".join(words.get(part, part) for part in found["unit"].split("/"))
    return found


def bottleneck(document: dict[str, Any], results: dict[str, Any]) -> str:
    """What stands in the way the most, in one line."""
    short = document["shortage"]
    if short is not None:
        return f"{short['name']} is short: {amount_text(short['need'])} needed, {amount_text(short['has'])} there"
    lacks = results["device_lacks"]
    if document["inputs"]["vram"]["value"] and lacks["value"]:
        need = amount_text(results["device_need"])
        told = f"device memory is short by {amount_text(lacks)} of the {need} needed, and memory takes the rest"
        return f"{told}{_speed_from_memory(document, results)}"
    device, host = results["decode_device"], results["decode_cpu"]
    fits = document["inputs"]["vram"]["value"] and results["device_need"]["value"] is not None
    on_device = fits and document["verdicts"][0]["way"] == "device"
    best = device if on_device and device["value"] is not None else host
    if best["value"] is None:
        return "nothing is known to be short"
    return f"nothing is short; generating waits for reading {_what_is_read(results)}: at most {amount_text(best)}"


def _speed_from_memory(document: dict[str, Any], results: dict[str, Any]) -> str:
    """How fast it can be where the device is too small and memory is not; nothing where that is unknown."""
    experts = next(one for one in document["verdicts"] if one["path"] == "experts")
    if experts["verdict"] == "yes" and experts["way"].endswith("the rest on the device"):
        speeds = [results[name] for name in ("stream_ram", "stream_split") if results[name]["value"] is not None]
        if speeds:
            best = max(speeds, key=lambda one: one["value"])
            return f", with experts in it and the rest on the device: at most {amount_text(best)}"
    host = results["decode_cpu"]
    if host["value"] is None:
        return ""
    what = _what_is_read(results)
    return f"; on the processor alone, generating waits for reading {what}: at most {amount_text(host)}"


def _what_is_read(results: dict[str, Any]) -> str:
    """What most of a token's time goes to."""
    weights, kept = results["active"]["value"], results["attended"]["value"]
    return "the weights" if weights >= kept else "the KV of the window"


def _is_told(one: dict[str, Any]) -> bool:
    return one["value"] is not None and one["value"] != 0


def _paths(document: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("path", "verdict", "because"):
        table.add_column(name, overflow="fold")
    for one in document["verdicts"]:
        because = one["because"]
        if one["verdict"] == "maybe":
            why = "supply " + ", ".join(map(_how, one["supply"]))
        else:
            sides = [amount_text(because[side]) for side in ("left", "right")]
            operator = because["test"].split()[-2] if because["test"].count(" ") == 2 else "against"
            why = f"{'' if because['holds'] else 'not so: '}{because['says']} ({sides[0]} {operator} {sides[1]})"
        table.add_row(one["name"], Text(one["verdict"], style=_STYLES[one["verdict"]]), why)
    return table


def _how(one: dict[str, str]) -> str:
    """An option by itself; anything else with the symbol that it is for."""
    how = one["how"]
    return how if how.startswith("--") and " " not in how else f"{how} ({one['symbol'].replace('_', ' ')})"


def amount_text(one: dict[str, Any]) -> str:
    """A value with its unit, as short as it can be read."""
    value, unit = one["value"], one["unit"]
    if value is None:
        return "unknown"
    if value == INFINITE:
        return "never"
    shown = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return shown if unit == "dimensionless" else f"{shown} {_WORDS.get(unit, unit)}"


def print_probe(found: Probe) -> None:
    """One line for each part, the reason where it could not be measured."""
    console = OutputConsole()
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(2):
        table.add_column(overflow="fold")
    table.add_row("folder", Text(visible(found.folder)))
    table.add_row("device", found.device or "none")
    for name, one in found.parts.items():
        table.add_row(
            name,
            Text(_measured(one.value, one.unit) if one.value is not None else f"unknown: {visible(one.why or '')}"),
        )
    for row in found.drive:
        label = f"drive, {row['read_bytes'] / 2**20:g} MiB, {row['depth']:.0f} at once"
        table.add_row(label, _measured(row["bytes_per_s"], "byte/second"))
    console.print(table)


def _measured(value: float, unit: str) -> str:
    if unit == "core":
        return f"{value:g}"
    per = unit.partition("/")[0]
    scale, name = (2**30, "GiB") if unit == "byte" else (1e9, "GB/s") if per == "byte" else (1e9, "Gflop/s")
    return f"{value / scale:,.2f} {name}"
