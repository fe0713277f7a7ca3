"""The planner over HTTP and MCP: the same plans as in the shell, and no path is read for a caller."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from livingkv.planner.check import check_plan
from livingkv.server.keys import make_key
from tests.planner.models import config
from tests.server.serving import Served, serving

GIVEN = {"context": "64k", "vram": "8GiB", "ram": 16e9, "disk": "100GB", "bw_ram": "20GB/s"}
JSON = {"Content-Type": "application/json"}
PRICED = {"date": "2026-11-30", "region": "DE", "source": "a shop", "currency": "EUR"}


def planned(served: Served, **body: Any) -> Any:
    answer = served.client.post("/v1/plan", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(served: Served, **body: Any) -> str:
    answer = served.client.post("/v1/plan", json=body)
    assert answer.status_code in (400, 404), answer.text
    message = answer.json()["error"]["message"]
    assert "\n" not in message and len(message) < 400
    return str(message)


def test_a_plan_of_the_served_model_is_right_and_its_check_says_so(served: Served) -> None:
    plan = planned(served, inputs=GIVEN)
    name = served.service.model_name
    assert plan["model"] == {"name": name, "type": "qwen2"} and plan == planned(served, model=name, inputs=GIVEN)
    assert plan["inputs"]["kv_elements"]["value"] == 2 * 3 * 2 * 16
    assert check_plan(plan) == []
    answer = served.client.post("/v1/plan/check", params={"model": name}, json=plan)
    assert answer.json() == {"ok": True, "errors": []}
    plan["verdicts"][6]["verdict"] = "yes"
    answer = served.client.post("/v1/plan/check", json=plan)
    assert answer.json()["errors"] == ["verdicts.experts.verdict: 'yes' is stated, 'no' follows"]
    assert served.client.post("/v1/plan/check", content=b"\xff[NaN", headers=JSON).json()["ok"] is False


def test_a_plan_of_a_config_and_with_prices(served: Served) -> None:
    plan = planned(served, config=config("qwen3_moe"), inputs={**GIVEN, "gpu_price": 900}, priced=PRICED)
    assert plan["inputs"]["experts"]["value"] == 8 and plan["prices"][0]["currency"] == "EUR"
    assert "priced" in refused(served, inputs={"gpu_price": 900})


def test_no_path_is_read_for_a_caller(served: Served, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config("qwen2")))
    for name in (str(tmp_path), str(tmp_path / "config.json"), "../x", "/etc/passwd", ".", "a/b", "~"):
        assert "neither the served model" in refused(served, model=name)
        answer = served.client.post("/v1/plan/check", params={"model": name}, json={})
        assert answer.status_code == 404


@pytest.mark.parametrize(
    "inputs",
    [
        {"hours_day": 1e308},
        {"context": -5},
        {"context": 10**30},
        {"ram": "99999999999999999999999999999999999999T"},
        {"ram": "8 token"},
        {"nonsense": 1},
        {"ram": True},
        {"ram": None},
        {"ram": [1]},
        {f"x{number}": 1 for number in range(200)},
    ],
)
def test_inputs_that_make_no_sense_are_refused(served: Served, inputs: Any) -> None:
    assert refused(served, inputs=inputs)


@pytest.mark.parametrize(
    "changes",
    [{"num_hidden_layers": 10**9}, {"padding": "x" * 70_000}, {"hidden_size": 1 << 50}, {"model_type": 7}],
)
def test_configs_that_would_take_long_are_refused_or_unknown(served: Served, changes: Any) -> None:
    answer = served.client.post("/v1/plan", json={"config": {**config("qwen2"), **changes}, "inputs": GIVEN})
    assert answer.status_code == 400 or answer.json()["inputs"]["kv_elements"]["kind"] == "unknown"
    assert refused(served, config=config("qwen2"), model="a/b")


def test_the_laws_are_told_and_all_of_it_needs_a_key(served: Served, tmp_path: Path) -> None:
    found = served.client.get("/v1/plan/laws").json()
    assert len(found["paths"]) == 11 and found["symbols"]["ram"]["unit"] == "byte"
    assert any(law["name"] == "breakeven" for law in found["laws"])
    key = make_key(tmp_path / "keys.json", "anna", "reader", ["read"])
    with serving(tmp_path / "stores", keys_file=tmp_path / "keys.json") as guarded:
        for method, path in (("GET", "/v1/plan/laws"), ("POST", "/v1/plan"), ("POST", "/v1/plan/check")):
            assert guarded.client.request(method, path, json={}).status_code == 401
            answer = guarded.client.request(method, path, json={}, headers={"Authorization": f"Bearer {key}"})
            assert answer.status_code == 200


def called(served: Served, tool: str, arguments: Any) -> Any:
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    return served.client.post("/mcp", json=asked, headers={"Accept": "application/json"}).json()["result"]


def test_the_tools_do_the_same(served: Served) -> None:
    plan = called(served, "plan", {"inputs": GIVEN})["structuredContent"]["plan"]
    assert plan == planned(served, inputs=GIVEN)
    assert called(served, "check_plan", {"plan": plan})["structuredContent"] == {"ok": True, "errors": []}
    assert len(called(served, "plan_laws", {})["structuredContent"]["paths"]) == 11
    assert called(served, "plan", {"inputs": {"context": 0}})["isError"]
    assert called(served, "plan", {"input": {}})["isError"]
