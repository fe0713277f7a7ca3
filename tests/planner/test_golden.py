"""Values that are known from elsewhere come out: sizes, speeds, costs. Units that do not fit are refused."""

from __future__ import annotations

from typing import Any

import pytest

from livingkv.errors import InputError
from livingkv.planner.formula import evaluate
from livingkv.planner.laws import laws
from livingkv.planner.options import amounts_of
from livingkv.planner.units import Amount, amount_in
from livingkv.planner.working import worked

KV_7B = 2 * 28 * 4 * 128


def computed(law: str, unit: str, **given: str | float) -> float:
    found = worked(amounts_of(given)).results[law].value
    assert found is not None
    return found.to(unit).value


@pytest.mark.parametrize(
    ("law", "unit", "given", "want"),
    [
        ("weights", "GB", {"parameters": 320e9, "weight_bits": 4}, 160),
        ("weights", "GB", {"parameters": 70e9, "weight_bits": 4.5}, 39.375),
        ("kv_total_16", "GiB", {"kv_elements": 2 * 48 * 4 * 128, "context": 32768}, 3.0),
        ("kv_total_16", "GiB", {"kv_elements": 2 * 27 * 16 * 128, "context": 32768}, 6.75),
        ("kv_per_token", "byte/token", {"kv_elements": KV_7B, "kv_bits": 16}, 57344),
        ("kv_per_token", "byte/token", {"kv_elements": KV_7B, "kv_bits": 8.5}, 30464),
        ("kv_total", "GiB", {"kv_elements": KV_7B, "kv_bits": 16, "context": 500_000}, 26.7),
        ("kv_total", "GiB", {"kv_elements": KV_7B, "kv_bits": 8.5, "context": 500_000}, 14.2),
        ("kv_total", "GiB", {"kv_elements": KV_7B, "kv_bits": 8.5, "context": 800_000}, 22.7),
        ("kv_total", "GiB", {"kv_elements": KV_7B, "kv_bits": 16, "context": 400_000}, 21.4),
        (
            "electricity_month",
            "money/pay_month",
            {"watts": 150, "hours_day": 3, "days_month": 30, "kwh_price": 0.15},
            2.025,
        ),
    ],
)
def test_a_golden_value(law: str, unit: str, given: dict[str, float], want: float) -> None:
    zeros = {
        "bounded_elements": 0,
        "sliding_window": 0,
        "wider_elements": 0,
        "wider_window": 0,
        "hot_bits": 16,
        "users": 1,
    }
    digits = len(str(want).partition(".")[2])
    assert computed(law, unit, **{**zeros, **given}) == pytest.approx(want, abs=0.51 * 10**-digits if digits else 1e-6)


STREAMED: dict[str, Any] = {
    "steady_parameters": 0,
    "steady_bits": 16,
    "resident_bits": 16,
    "bw_vram": "900GB/s",
    "cache_hit": 0,
}


def test_experts_of_the_large_one_and_its_ceiling_from_the_drive() -> None:
    one_token = 4.20 * 2**30 / (58 * 8)
    given = {**STREAMED, "moe_layers": 58, "experts_per_token": 8, "expert_bytes": one_token}
    assert computed("experts_token", "GiB/token", **given) == pytest.approx(4.20)
    given |= {"bw_disk": "8.2GiB/s", "bw_pcie": "50GB/s"}
    assert computed("stream_overlapped", "token/second", **given) == pytest.approx(1.952, abs=0.001)


def test_experts_of_the_smaller_one_and_its_ceiling_over_the_bus() -> None:
    given = {**STREAMED, "moe_layers": 48, "experts_per_token": 8, "expert_bytes": 1.33e9 / (48 * 8), "cache_hit": 1}
    given |= {"bw_disk": "1GB/s", "bw_pcie": "28.6GB/s"}
    assert computed("stream_overlapped", "token/second", **given) == pytest.approx(21.5, abs=0.01)


COSTS: dict[str, Any] = {
    "hw_price": 400,
    "cloud_hour": 0.40,
    "hours_day": 3,
    "days_month": 30,
    "watts": 150,
    "kwh_price": 0.15,
}


def test_buying_pays_off_after_the_known_time_and_never_where_renting_costs_less() -> None:
    assert computed("breakeven", "pay_month", **COSTS) == pytest.approx(11.77, abs=0.005)
    assert computed("breakeven", "pay_month", **{**COSTS, "cloud_hour": 0.0225}) == float("inf")


def test_serial_is_never_faster_than_overlapped() -> None:
    given = {**STREAMED, "moe_layers": 48, "experts_per_token": 8, "expert_bytes": 1e7, "bw_disk": 1e9, "bw_pcie": 1e10}
    assert computed("stream_serial", "token/second", **given) < computed("stream_overlapped", "token/second", **given)


def test_every_law_computes_what_its_unit_says_and_needs_only_what_there_is() -> None:
    book = laws()
    known = {*book.symbols, *book.constants}
    for law in book.laws.values():
        assert set(law.needs) <= known, law.name
        known.add(law.name)
    found = worked({name: Amount(max(one.lo, 1.0), one.unit) for name, one in book.symbols.items()})
    assert [one.law.name for one in found.results.values() if one.value is None] == []


@pytest.mark.parametrize("formula", ["bw_vram / parameters + context", "max(ram, context)", "vram + 3"])
def test_a_wrong_unit_is_caught(formula: str) -> None:
    names = {name: Amount(2.0, laws().symbols[name].unit).quantity() for name in laws().symbols}
    with pytest.raises(InputError, match="unit"):
        evaluate(formula, names)


def test_bandwidth_is_not_compared_with_a_number_of_weights() -> None:
    with pytest.raises(InputError):
        amounts_of({"bw_vram": "8 parameter"})
    with pytest.raises(InputError):
        worked({"bw_vram": Amount(900.0, "GB")})


@pytest.mark.parametrize(
    "formula",
    [
        "__import__('os').system('true')",
        "ram.__class__",
        "[1 for _ in ram]",
        "2 ** 99999",
        "ram if ram else 1",
        "'a' * 9",
        "",
        "(",
    ],
)
def test_a_formula_is_arithmetic_and_nothing_else(formula: str) -> None:
    with pytest.raises(InputError):
        evaluate(formula, {"ram": Amount(1.0, "byte").quantity()})


@pytest.mark.parametrize(
    ("text", "unit", "want"),
    [
        ("8G", "byte", 8 * 2**30),
        ("24GiB", "byte", 24 * 2**30),
        ("500GB", "byte", 500e9),
        ("8.2GiB/s", "byte/second", 8.2 * 2**30),
        ("28.6 GB/s", "byte/second", 28.6e9),
        ("500k", "token/user", 5e5),
        ("50Tflop/s", "flop/second", 5e13),
        ("1e3", "watt", 1e3),
        ("0.15", "money/kilowatt_hour", 0.15),
    ],
)
def test_amounts_are_read_as_people_write_them(text: str, unit: str, want: float) -> None:
    found = amount_in(text, unit)
    assert found.unit == unit and found.value == pytest.approx(want)


@pytest.mark.parametrize("text", ["", "G", "-1", "nan", "inf", "1e999", "8 token", "8Q", "8 degC", "1 byte ** 9", "٣"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        amounts_of({"ram": text})


@pytest.mark.parametrize(
    ("name", "value"),
    [("cache_hit", 1.5), ("context", 0), ("hours_day", 25), ("users", -1), ("ram", 10**400), ("ram", True)],
)
def test_numbers_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(InputError):
        amounts_of({name: value})
