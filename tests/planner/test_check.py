"""A plan that was changed anywhere is found out, and no bytes bring a traceback."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from livingkv.planner.check import check_bytes, check_plan
from livingkv.planner.comparing import compared
from livingkv.planner.inputs import Inputs, inputs_of
from livingkv.planner.options import amounts_of
from livingkv.planner.plan import Json, plan_of
from tests.planner.models import MOE, SITUATION, made_up, planned

MODEL = made_up(**MOE)
PLAN = planned(MODEL, gpu_price=900, gpu_vram="24G", budget=1000, watts=150, cloud_allowed=False)
FREE_TEXT = ("source", "name", "type", "region", "date", "currency")


def test_a_plan_that_was_just_made_is_right() -> None:
    assert check_plan(PLAN, MODEL) == []
    assert check_bytes(json.dumps(PLAN).encode(), MODEL) == []


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The place of every number, text, flag and null of a document."""
    if isinstance(value, dict):
        return [place for name, one in value.items() for place in places(one, (*at, name))]
    if isinstance(value, list):
        return [place for number, one in enumerate(value) for place in places(one, (*at, number))]
    return [at]


def changed(document: Json, place: tuple[Any, ...], to: Any) -> Json:
    """The document with another value at a place; what is not on the way there is the same objects."""
    found = inside = copy.copy(document)
    for step in place[:-1]:
        inside[step] = copy.copy(inside[step])
        inside = inside[step]
    inside[place[-1]] = to(inside[place[-1]])
    return found


def other(value: Any) -> Any:
    """Something else of the same type."""
    if isinstance(value, bool) or value is None:
        return not value
    return f"{value}x" if isinstance(value, str) else value * 1.01 + 0.01


CHECKED = [place for place in places(PLAN) if place[0] == "version" or place[0] not in ("model", "inputs", "prices")]


def test_every_single_field_that_follows_is_checked() -> None:
    assert len(CHECKED) > 300
    unnoticed = [place for place in CHECKED[1:] if not list(compared(".", changed(PLAN, place, other), PLAN))]
    assert unnoticed == [] and CHECKED[0] == ("version",)
    for place in (*CHECKED[:2], *CHECKED[2::97]):
        assert check_plan(changed(PLAN, place, other)), place


@pytest.mark.slow
def test_every_single_input_is_checked() -> None:
    own = [place for place in places(PLAN) if place[0] in ("inputs", "prices") and place[-1] not in FREE_TEXT]
    unnoticed = [place for place in own if not check_plan(changed(PLAN, place, other), MODEL)]
    given = {place[1] for place in unnoticed if place[0] == "inputs"}
    assert given <= {"watts", "gpu_vram", "disk"}  # another's wish, and nothing that follows turns over
    assert all(PLAN["inputs"][name]["kind"] == "given" for name in given)


@pytest.mark.parametrize("part", ["calculations", "verdicts"])
def test_what_is_left_out_or_there_twice_is_told(part: str) -> None:
    for number, one in enumerate(PLAN[part]):
        without = {**PLAN, part: PLAN[part][:number] + PLAN[part][number + 1 :]}
        assert any("missing" in each for each in compared(part, without[part], PLAN[part]))
        assert any("twice" in each for each in compared(part, [*PLAN[part], one], PLAN[part]))
    unknown = {**PLAN[part][0], ("law" if part == "calculations" else "path"): "no_such_thing"}
    assert any("no_such_thing" in each for each in check_plan({**PLAN, part: [*PLAN[part], unknown]}))


def test_a_yes_for_a_dense_model_in_the_experts_path_is_refused() -> None:
    plan = planned(made_up())
    number = [one["path"] for one in plan["verdicts"]].index("experts")
    errors = check_plan(changed(plan, ("verdicts", number, "verdict"), lambda _: "yes"))
    assert errors == ["verdicts.experts.verdict: 'yes' is stated, 'no' follows"]


def test_a_unit_may_be_another_of_the_same_kind_and_no_other() -> None:
    number = [one["law"] for one in PLAN["calculations"]].index("weights")
    weights = PLAN["calculations"][number]

    def with_amount(value: float, unit: str) -> list[str]:
        return check_plan(changed(PLAN, ("calculations", number), lambda _: {**weights, "value": value, "unit": unit}))

    assert with_amount(weights["value"] * 1e9, "byte") == []
    assert with_amount(weights["value"] * 1.0009, "GB") == []
    for value, unit in (
        (weights["value"], "GiB"),
        (weights["value"] * 1.002, "GB"),
        (weights["value"], "GB/token"),
        (1.0, "furlong"),
    ):
        assert with_amount(value, unit), unit


@pytest.mark.parametrize("field", ["date", "region", "source", "currency"])
@pytest.mark.parametrize("value", ["", None, "yesterday \n", 7])
def test_a_price_without_its_circumstances_is_refused(field: str, value: Any) -> None:
    if (field, value) != ("source", "yesterday \n") and (field, value) != ("region", "yesterday \n"):
        assert check_plan(changed(PLAN, ("prices", 0, field), lambda _: value))
    assert check_plan({**PLAN, "prices": []})
    assert check_plan({**PLAN, "prices": PLAN["prices"] * 2})


def test_what_the_model_says_is_compared_where_it_is_at_hand() -> None:
    named = changed(PLAN, ("model", "name"), lambda _: "another")
    assert check_plan(named) == [] and "another" in check_plan(named, MODEL)[0]
    unknown = {**PLAN["inputs"]["experts"], "kind": "unknown", "value": None, "unit": None}
    made = Inputs("made-up", "qwen2", {**inputs_of(MODEL, amounts_of(SITUATION)).inputs}, None)
    plan = plan_of(
        Inputs(
            made.name,
            made.kind,
            {**made.inputs, "experts": type(made.inputs["ram"])("unknown", None, "who knows")},
            None,
        )
    )
    assert check_plan(plan) == []
    assert any("called unknown" in one for one in check_plan(plan, MODEL))
    assert check_plan(changed(PLAN, ("inputs", "experts"), lambda _: unknown))
    doubled = changed(PLAN, ("inputs", "parameters", "value"), lambda one: one * 2)
    again = plan_of(inputs_of(made_up(**{**MOE, "parameters": 16e9}), amounts_of(SITUATION)))
    assert check_plan(again) == [] and any("parameters" in one for one in check_plan(again, MODEL))
    assert check_plan(doubled)


@pytest.mark.parametrize(
    "text", ["NaN", "Infinity", "-Infinity", "1e999", "-5", "true", '"8"', "null", "1" * 5000, "[]", "{}"]
)
def test_what_is_no_number_is_refused(text: str) -> None:
    whole = json.dumps(PLAN)
    known = json.dumps(PLAN["inputs"]["ram"]["value"])
    broken = whole.replace(f'"value": {known}', f'"value": {text}', 1)
    assert broken != whole and check_bytes(broken.encode())


def test_names_that_are_there_twice_are_refused() -> None:
    assert "twice" in check_bytes(json.dumps(PLAN)[:-1].encode() + b', "version": 1}')[0]


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(b"[" * 100_000)
@example(b'{"version": 1' + b"0" * 10_000 + b"}")
@example(b" " * ((1 << 20) + 1))
def test_no_bytes_bring_a_traceback(data: bytes) -> None:
    errors = check_bytes(data)
    assert errors and all("\n" not in one and len(one) < 1000 for one in errors)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(place=st.sampled_from(places(PLAN)), depth=st.integers(1, 5), value=JSON)
def test_no_document_brings_a_traceback(place: tuple[Any, ...], depth: int, value: Any) -> None:
    errors = check_plan(changed(PLAN, place[:depth], lambda _: value), MODEL)
    assert all("\n" not in one and len(one) < 2000 for one in errors)
