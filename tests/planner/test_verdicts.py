"""Verdicts follow from inequalities: dense models have no experts to stream, what is unknown is never decided."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from livingkv.errors import InputError
from livingkv.planner.facts import config_facts
from livingkv.planner.formula import names_in
from livingkv.planner.inputs import Stamp, inputs_of
from livingkv.planner.laws import laws
from livingkv.planner.options import amounts_of
from livingkv.planner.paths import paths
from livingkv.planner.plan import plan_of
from livingkv.planner.units import unit
from livingkv.planner.verdicts import tried
from livingkv.planner.working import worked
from tests.planner.models import MOE, STAMP, config, inputs, made_up, planned, value, verdict

FEW = settings(max_examples=10, deadline=None)
PATHS = [
    *("keep", "upgrade", "used", "one_gpu", "several_gpus", "unified"),
    *("experts", "cpu_only", "smaller_model", "cloud_api", "rented_gpu"),
]


def test_there_are_eleven_paths_and_their_inequalities_fit_the_laws() -> None:
    assert [one.id for one in paths().paths] == PATHS
    book = laws()
    known = {*book.symbols, *book.laws, *book.constants}
    everything = worked({one.name: one.checked(_one(one.unit, one.lo)) for one in book.symbols.values()})
    for path in paths().paths:
        for test in (*path.common, *(one for way in path.ways for one in way.tests)):
            assert {*names_in(test.left), *names_in(test.right)} <= known and unit(test.unit)
            assert tried(test, everything).holds is not None, test.text
            assert test.if_given is None or test.if_given in book.symbols


def _one(unit_text: str, lo: float) -> Any:
    from livingkv.planner.units import Amount

    return Amount(max(lo, 1.0), unit_text)


def test_a_dense_model_has_no_experts_to_stream() -> None:
    found = verdict(planned(), "experts")
    assert found["verdict"] == "no" and found["because"]["test"] == "experts >= one_expert"
    assert (found["because"]["left"]["value"], found["because"]["right"]["value"]) == (0, 1)


def test_experts_stream_from_where_they_fit() -> None:
    small = made_up(**{**MOE, "experts": 64.0, "expert_bytes": 1e7})
    assert verdict(planned(small), "experts")["way"] == "in memory, the rest on the device"
    large = made_up(**MOE)
    found = verdict(planned(large, disk="2TB", ram="16GiB"), "experts")
    assert (found["verdict"], found["way"]) == ("yes", "on the drive, the rest on the device")
    assert verdict(planned(large, disk="10GB", ram="16GiB"), "experts")["verdict"] == "no"
    assert verdict(planned(large, min_speed=1e6), "experts")["verdict"] == "no"


def test_experts_in_memory_are_computed_there_where_the_bus_is_slower() -> None:
    small = made_up(**{**MOE, "experts": 64.0, "expert_bytes": 1e7})
    speeds = {"bw_pcie": "8GB/s", "bw_ram": "80GB/s", "bw_vram": "400GB/s", "bw_disk": "1GB/s"}
    plan = planned(small, **speeds)
    copied, there = value(plan, "stream_ram"), value(plan, "stream_split")
    assert there > 2 * copied
    found = verdict(planned(small, **speeds, min_speed=(copied + there) / 2), "experts")
    assert (found["verdict"], found["way"]) == ("yes", "in memory and computed there, the rest on the device")


def test_what_is_unknown_is_named_with_what_to_supply() -> None:
    found = plan_of(inputs_of(made_up(), amounts_of({"context": "8k", "vram": "24G"})))
    keep = verdict(found, "keep")
    assert keep["verdict"] == "maybe" and keep["supply"] == [{"symbol": "disk", "how": "--disk"}]
    assert value(found, "decode_device") is None
    assert verdict(found, "cloud_api")["verdict"] == "maybe"


def test_prices_decide_and_need_a_stamp() -> None:
    one: dict[str, Any] = {"gpu_vram": "24GiB", "gpu_price": 900, "budget": 1000, "gpu_slots": 2}
    assert verdict(planned(**one), "one_gpu")["verdict"] == "yes"
    assert verdict(planned(**{**one, "budget": 800}), "one_gpu")["verdict"] == "no"
    several = verdict(planned(**{**one, "gpu_vram": "12GiB", "budget": 2000}), "several_gpus")
    assert several["verdict"] == "yes"
    assert (
        verdict(planned(**one, horizon=6, watts=100, kwh_price=0.3, hours_day=2, cloud_hour=1), "one_gpu")["verdict"]
        == "no"
    )
    with pytest.raises(InputError, match="priced"):
        inputs_of(made_up(), amounts_of({"gpu_price": 900}))
    for stamp in (
        ("30.11.2026", "DE", "shop", "EUR"),
        ("2026-11-30", " ", "shop", "EUR"),
        ("2026-11-30", "DE", "", "EUR"),
        ("2026-11-30", "DE", "shop", "eur"),
    ):
        with pytest.raises(InputError):
            Stamp(*stamp)


PRICED: dict[str, Any] = {
    "gpu_vram": "24GiB",
    "gpu_price": 900,
    "gpu_slots": 2,
    "used_price": 500,
    "used_vram": "24GiB",
    "cloud_hour": 1,
    "hours_day": 1,
    "rent_vram": "24GiB",
    "cloud_allowed": True,
    "budget": 2000,
    "api_in": 0,
    "api_out": 0,
    "tokens_in_month": 1,
    "tokens_out_month": 1,
    "budget_month": 99,
    "smaller_parameters": 3e9,
    "unified_price": 1500,
    "unified_memory": "64GiB",
}


def test_every_way_of_generating_counts_the_speed_that_is_wanted() -> None:
    for path in paths().paths:
        for way in path.ways:
            assert [one.right for one in way.tests if one.if_given == "min_speed"] == ["min_speed"], (path.id, way.name)


@pytest.mark.parametrize(
    ("path", "symbol", "enough", "changes"),
    [
        ("used", "used_bw", "900GB/s", {}),
        ("one_gpu", "gpu_bw", "900GB/s", {}),
        ("several_gpus", "gpu_bw", "450GB/s", {"gpu_vram": "12GiB"}),
        ("unified", "unified_bw", "900GB/s", {}),
        ("rented_gpu", "rent_bw", "900GB/s", {}),
        ("cloud_api", "api_speed", 51, {}),
        ("smaller_model", "smaller_active", 3e9, {}),
    ],
)
def test_a_wanted_speed_counts_where_hardware_is_bought_or_rented(
    path: str, symbol: str, enough: str | float, changes: dict[str, Any]
) -> None:
    asked = {**PRICED, **changes}
    assert verdict(planned(**asked), path)["verdict"] == "yes"
    undecided = verdict(planned(**asked, min_speed=50), path)
    assert undecided["verdict"] == "maybe" and [one["symbol"] for one in undecided["supply"]] == [symbol]
    assert undecided["supply"][0]["how"].startswith("--")
    told = {**asked, symbol: enough}
    assert verdict(planned(**told, min_speed=50), path)["verdict"] == "yes"
    slow = verdict(planned(**told, min_speed=5000), path)
    assert slow["verdict"] == "no" and slow["because"]["test"].endswith(">= min_speed")


def test_the_cloud_is_open_only_to_whoever_allows_it() -> None:
    asked: dict[str, Any] = {
        "tokens_in_month": 1e7,
        "tokens_out_month": 1e6,
        "api_in": 1e-6,
        "api_out": 4e-6,
        "budget_month": 20,
    }
    assert verdict(planned(**asked, cloud_allowed=True), "cloud_api")["verdict"] == "yes"
    assert verdict(planned(**asked, cloud_allowed=False), "cloud_api")["verdict"] == "no"
    assert verdict(planned(**asked), "cloud_api")["verdict"] == "maybe"


def test_a_model_without_growing_kv_says_so() -> None:
    found = plan_of(inputs_of(config_facts("m", config("mamba2")), amounts_of({"context": "64k", "ram": "8G"})))
    assert found["remarks"][0].startswith("KV spill is not applicable")
    assert value(found, "kv_total") == 0 and value(found, "state") > 0
    hybrid = plan_of(inputs_of(config_facts("m", config("qwen3_next")), amounts_of({"context": "64k"})))
    assert any(one.startswith("hybrid") for one in hybrid["remarks"])


def test_sliding_windows_bound_what_they_keep() -> None:
    model = made_up(kv_elements=1000.0, bounded_elements=5000.0, sliding_window=1024.0)
    per_token = (1000 * 65536 + 5000 * 1024) * 8.5 / 8
    assert value(planned(model, context=65536), "kv_total") == pytest.approx(per_token / 2**30)


@pytest.mark.parametrize(
    ("elements", "window", "option"),
    [("bounded_elements", "sliding_window", "--sliding-window"), ("wider_elements", "wider_window", "--wider-window")],
)
def test_layers_with_a_window_need_its_size(elements: str, window: str, option: str) -> None:
    model = made_up(sliding_window=0.0, wider_window=0.0)
    found = planned(model, **{elements: 1e6})
    assert verdict(found, "keep")["verdict"] == "maybe" and option in str(verdict(found, "keep"))
    assert verdict(planned(model, **{elements: 1e6, window: 4096}), "keep")["verdict"] != "maybe"


def test_bits_of_eight_are_those_of_livingkvs_pages_where_it_has_some() -> None:
    assert inputs(made_up(page_bits=8.25)).known["kv_bits"].value == 8.25
    assert inputs(made_up(), kv_bits=8).known["kv_bits"].value == 8.5
    assert inputs(made_up(page_bits=8.25), kv_bits=16).known["kv_bits"].value == 16


def test_the_shortage_names_what_is_missing_the_most() -> None:
    assert planned()["shortage"] is None
    short = planned(vram="4G", ram="8G")["shortage"]
    assert short["what"] == "device_memory" and short["need"]["value"] > short["has"]["value"]
    assert planned(vram="0", ram="8G")["shortage"]["what"] == "memory"
    assert planned(context="40M", disk="10GB")["shortage"]["what"] == "drive"


GROWING = (
    "kv_total",
    "kv_total_16",
    "hot",
    "store",
    "device_need",
    "device_need_full",
    "index",
    "restore_all",
    "attended",
)
FALLING = ("decode_device", "decode_cpu")


@pytest.mark.slow
@FEW
@given(low=st.integers(1, 10**6), more=st.integers(0, 10**6), users=st.integers(1, 50))
def test_more_context_needs_no_less_and_is_no_faster(low: int, more: int, users: int) -> None:
    model = made_up(bounded_elements=100.0, sliding_window=512.0)
    one, other = planned(model, context=low, users=users), planned(model, context=low + more, users=users)
    for law in set(GROWING) - {"store"}:  # what fills no page yet takes more of it than a page
        assert value(one, law) <= value(other, law) * (1 + 1e-12), law
    for law in FALLING:
        assert value(one, law) >= value(other, law) * (1 - 1e-12), law
    for law in ("kv_total", "index", "hot"):
        more_users = planned(model, context=low, users=users + 1)
        assert value(one, law) < value(more_users, law)


@FEW
@given(bits=st.floats(1, 16), more=st.floats(0, 16))
def test_more_bits_need_no_less_and_are_no_faster(bits: float, more: float) -> None:
    one, other = (planned(weight_bits=each, kv_bits=each + 0.1) for each in (bits, bits + more))
    for law in ("weights", "kv_total", "device_need", "restore_all"):
        assert value(one, law) <= value(other, law) * (1 + 1e-12)
    assert value(one, "decode_device") >= value(other, "decode_device") * (1 - 1e-12)


def months(price: float, hour: float) -> float:
    found = value(planned(hw_price=price, cloud_hour=hour, hours_day=3, watts=150, kwh_price=0.15), "breakeven")
    return math.inf if found == "infinite" else float(found)


@FEW
@given(price=st.floats(0, 1e5), more=st.floats(0, 1e5), hour=st.floats(0, 2))
def test_breakeven_never_falls_when_the_hardware_costs_more(price: float, more: float, hour: float) -> None:
    assert months(price, hour) <= months(price + more, hour) * (1 + 1e-12)


@FEW
@given(
    vram=st.integers(0, 64), ram=st.integers(0, 128), disk=st.integers(0, 2000), speed=st.none() | st.floats(0.1, 1e4),
    experts=st.booleans(), context=st.integers(1, 10**7),
)  # fmt: skip
def test_verdicts_are_consistent(
    vram: int, ram: int, disk: int, speed: float | None, experts: bool, context: int
) -> None:
    wish: dict[str, Any] = {} if speed is None else {"min_speed": speed}
    model = made_up(**(MOE if experts else {}))
    found = planned(model, vram=f"{vram}G", ram=f"{ram}G", disk=f"{disk}GB", context=context, **wish)
    assert [one["path"] for one in found["verdicts"]] == PATHS
    for one in found["verdicts"]:
        assert one["because"]["holds"] == {"yes": True, "no": False, "maybe": None}[one["verdict"]]
        assert bool(one["supply"]) == (one["verdict"] == "maybe")
    if verdict(found, "cpu_only")["verdict"] == "yes":
        assert verdict(found, "keep")["verdict"] == "yes"
    if verdict(found, "keep")["verdict"] == "yes":
        more = planned(model, vram=f"{vram + 8}G", ram=f"{ram + 8}G", disk=f"{disk + 8}GB", context=context, **wish)
        assert verdict(more, "keep")["verdict"] == "yes"
    assert experts or verdict(found, "experts")["verdict"] == "no"


def test_the_stamp_is_left_out_where_there_is_no_price() -> None:
    assert planned()["prices"] == [] and inputs().stamp is None and STAMP.currency == "EUR"


def test_what_is_enough_already_need_not_be_extended() -> None:
    can: dict[str, Any] = {"ram_most": "128GiB", "disk_most": "2TB", "upgrade_price": 100, "budget": 200}
    enough = planned(**can)
    assert (verdict(enough, "keep")["verdict"], verdict(enough, "upgrade")["verdict"]) == ("yes", "no")
    assert verdict(enough, "upgrade")["because"]["holds"] is False
    assert verdict(planned(), "upgrade")["verdict"] == "no"
    assert verdict(planned(**can, vram="8G", ram="8G"), "upgrade")["way"] == "memory"
    assert verdict(planned(**can, context="40M"), "upgrade")["way"] == "drive"
    assert verdict(planned(**can, vram="0", disk="1GB"), "upgrade")["way"] == "drive, no device"
    shorts: list[dict[str, Any]] = [{"vram": "8G", "ram": "8G"}, {"disk": "1GB"}, {"vram": "0", "disk": "1GB"}]
    for short in shorts:
        assert verdict(planned(**can, **short), "upgrade")["verdict"] == "yes"


def test_a_card_brings_no_drive() -> None:
    card: dict[str, Any] = {"gpu_vram": "24GiB", "gpu_price": 900, "budget": 2000, "gpu_slots": 2}
    assert verdict(planned(**card, disk="1GB"), "one_gpu")["verdict"] == "no"
    assert verdict(planned(**{**card, "gpu_vram": "12GiB"}, disk="1GB"), "several_gpus")["verdict"] == "no"


def test_a_smaller_model_is_smaller() -> None:
    assert verdict(planned(smaller_parameters=3e9), "smaller_model")["verdict"] == "yes"
    assert verdict(planned(smaller_parameters=9e9), "smaller_model")["verdict"] == "no"


def test_no_more_parameters_are_active_than_there_are() -> None:
    with pytest.raises(InputError, match="smaller-active"):
        planned(smaller_parameters=1e9, smaller_active=2e9)


def test_it_is_said_where_no_expert_is_thought_to_be_in_memory() -> None:
    for model, hit, want in ((made_up(**MOE), 0, 1), (made_up(**MOE), 0.5, 0), (made_up(), 0, 0)):
        told = [one for one in planned(model, cache_hit=hit)["remarks"] if "--cache-hit" in one]
        assert len(told) == want
        assert all(f"`livingkv experts {verb}`" in one for one in told for verb in ("trace", "simulate"))


@pytest.mark.parametrize("hit", ["0.25", "25%", "25.0 %"])
def test_the_share_of_experts_in_memory_is_taken_as_it_is_told(hit: str) -> None:
    slow, fast = planned(made_up(**MOE), ram="8GiB"), planned(made_up(**MOE), ram="8GiB", cache_hit=hit)
    assert value(slow, "experts_missed") == value(slow, "experts_token")
    assert value(fast, "experts_missed") == pytest.approx(0.75 * value(slow, "experts_missed"))
    assert value(fast, "stream_overlapped") == pytest.approx(value(slow, "stream_overlapped") / 0.75)
    between = (value(slow, "stream_overlapped") + value(fast, "stream_overlapped")) / 2
    wish: dict[str, Any] = {"ram": "8GiB", "disk": "2TB", "min_speed": between}
    assert verdict(planned(made_up(**MOE), **wish), "experts")["verdict"] == "no"
    assert verdict(planned(made_up(**MOE), **wish, cache_hit=hit), "experts")["verdict"] == "yes"


@pytest.mark.parametrize("hit", ["101%", "-1%", "%", "25%%"])
def test_a_share_that_is_none_is_refused(hit: str) -> None:
    with pytest.raises(InputError, match="--cache-hit"):
        amounts_of({"cache_hit": hit})


@pytest.mark.parametrize(("name", "text"), [("vram", "8"), ("ram", " 64 "), ("bw_disk", "7000"), ("gpu_vram", "24")])
def test_a_size_without_a_unit_is_refused(name: str, text: str) -> None:
    with pytest.raises(InputError, match="a unit is needed"):
        amounts_of({name: text})
    assert amounts_of({"vram": "0", "ram": "34359738368", "disk": 8.0})["ram"].value == 2**35
