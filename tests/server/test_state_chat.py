"""Chat with models whose state is more than keys and values: streamed, kept, and gone on with after a restart."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from livingkv.errors import UnsupportedModel
from livingkv.model_choice import ModelChoice
from livingkv.server.options import ServerOptions
from livingkv.server.serving import serve
from livingkv.snapshots import SnapshotSession
from tests.experts.talking_moe import FEW_BYTES, talking_checkpoint
from tests.server.serving import CHAT, Served, cached, said, serving, talk, wait_until

FAMILIES = ["qwen3_next", "qwen4_exp_text", "deepseek_v4", "gpt_oss"]


@pytest.fixture(scope="module", name="choice_of")
def make_choices(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Tiny models by family, made once."""
    made: dict[str, ModelChoice] = {}

    def find(family: str) -> ModelChoice:
        if family not in made:
            folder = talking_checkpoint(family, tmp_path_factory.mktemp(family))
            made[family] = ModelChoice(folder, "fp32", None, 2 * FEW_BYTES)
        return made[family]

    return find


def two_turns(served: Served) -> tuple[str, dict[str, Any]]:
    first = served.chat("The shed is blue.", max_tokens=6)
    return said(first), served.chat("The shed is blue.", said(first), "Which colour?", max_tokens=12)


def states_of(served: Served) -> dict[tuple[str, str], float]:
    """What /metrics says of the states of the default tenant, by name and tier."""
    lines = served.client.get("/metrics").text
    found = re.findall(r'^livingkv_states_(\w+){tenant="default"(?:,tier="(\w+)")?} (\S+)$', lines, re.MULTILINE)
    return {(name, tier): float(value) for name, tier, value in found}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_after_a_restart_a_conversation_goes_on_as_if_there_was_none(
    family: str, choice_of: Any, tmp_path: Path
) -> None:
    choice = choice_of(family)
    with serving(tmp_path / "a", choice) as served:
        reply, unbroken = two_turns(served)
    with serving(tmp_path / "b", choice) as served:
        first = served.chat("The shed is blue.", max_tokens=6)
        assert said(first) == reply and cached(first) == 0
    with serving(tmp_path / "b", choice) as served:
        again = served.chat("The shed is blue.", reply, "Which colour?", max_tokens=12)
        assert (said(again), again["usage"]) == (said(unbroken), unbroken["usage"])
        assert 0 < cached(again) < again["usage"]["prompt_tokens"]
        read = again["livingkv"]["prefilled_tokens"]
        assert read == again["usage"]["prompt_tokens"] - cached(again) == served.count("prefilled_tokens_total")
        told = states_of(served)
        assert told["restored_total", "disk"] == 1 and told["restored_total", "ram"] == told["refused_total", ""] == 0
        assert told["saved_tokens_total", ""] == cached(again) and told["missed_total", ""] == 0
        assert told["taken_total", ""] == 2 and told["bytes", "ram"] > 0
        on_disk = sum(file.stat().st_size for file in (tmp_path / "b" / "default.states").iterdir())
        assert told["bytes", "disk"] == on_disk and told["evicted_total", "disk"] == told["unwritten_total", ""] == 0
        other = served.chat("The shed is blue.", reply, "Which colour?", max_tokens=12, user="other")
        assert cached(other) == 0 and said(other) is not None  # nobody goes on from what another user said
    with serving(tmp_path / "c", choice) as served:
        whole = served.chat("The shed is blue.", reply, "Which colour?", max_tokens=12, store=False)
        assert cached(whole) == 0 and not list((tmp_path / "c" / "default.states").glob("*"))


def test_the_wire(choice_of: Any, tmp_path: Path) -> None:
    with serving(tmp_path / "s", choice_of("qwen3_next")) as served:
        plain = said(served.chat("Tell me", max_tokens=12))
        body = {
            "messages": talk("Tell me"),
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 12,
        }
        lines = [line[6:] for line in served.post(body).text.splitlines() if line.startswith("data: ")]
        assert lines.pop() == "[DONE]"
        chunks = [json.loads(line) for line in lines]
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"])
        assert text == plain and chunks[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        cut = served.chat("Tell me", max_tokens=12, stop=[plain[1:3]])
        assert said(cut) == plain[: plain.index(plain[1:3])] and cut["choices"][0]["finish_reason"] == "stop"
        warm = served.chat("Tell me", max_tokens=12, temperature=1.5, seed=7)
        assert said(warm) == said(served.chat("Tell me", max_tokens=12, temperature=1.5, seed=7)) != plain
        named = served.chat("Tell me", session="anna", max_tokens=12)
        assert said(named) == plain and named["livingkv"]["session"] is None
        assert served.client.get("/v1/models").json()["data"][0]["owned_by"] == "livingkv"
        assert "\nlivingkv_experts_misses_total " in served.client.get("/metrics").text


def test_what_needs_a_memory_says_that_there_is_none(choice_of: Any, tmp_path: Path) -> None:
    with serving(tmp_path / "s", choice_of("qwen3_next")) as served:
        asked: list[tuple[str, str, Any]] = [
            ("GET", "/v1/sessions", None),
            ("GET", "/v1/stats", None),
            ("POST", "/v1/memory/search", {"query": "shed"}),
            ("POST", "/v1/memory/ask", {"query": "Which shed?"}),
            ("POST", "/v1/completions", {"prompt": "The"}),
            ("POST", "/v1/embeddings", {"input": "The"}),
            ("POST", "/v1/sessions", {"name": "anna"}),
        ]
        for method, path, body in asked:
            answer = served.client.request(method, path, json=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (400, "no_memory"), (path, answer.text)
            assert "keeps no memory" in error["message"] and "recurrent state" in error["message"]
        stored = served.post({"messages": talk("x"), "memory": {"history": "stored"}})
        assert stored.status_code == 400 and "send all messages" in stored.json()["error"]["message"]
        assert served.post({"messages": talk("word " * 3000)}).json()["error"]["code"] == "context_length_exceeded"


def test_one_that_goes_away_leaves_no_reply(choice_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    quick = SnapshotSession.step

    def slow(self: SnapshotSession, cache: Any, tokens: Any) -> Any:
        time.sleep(0.02)
        return quick(self, cache, tokens)

    with serving(tmp_path / "s", choice_of("qwen3_next")) as served:
        monkeypatch.setattr(SnapshotSession, "step", slow)
        body = {"messages": talk("Tell me"), "stream": True, "max_tokens": 900, "temperature": 0}
        with served.client.stream("POST", CHAT, json=body) as answer:
            for _, _line in zip(range(6), answer.iter_lines(), strict=False):
                pass
        wait_until(lambda: served.count("cancelled_total") == 1)
        assert served.count("turns_total") == 0 and served.count("generated_tokens_total") < 900
        monkeypatch.setattr(SnapshotSession, "step", quick)
        assert said(served.chat("Tell me")) is not None


def test_a_recurrent_model_without_experts_is_refused(tmp_path: Path, tiny_folder: Path) -> None:
    options = ServerOptions(tmp_path / "s", port=0)
    with pytest.raises(UnsupportedModel, match="no mixture of them"):
        serve(options, ModelChoice(tiny_folder, "fp32", None, FEW_BYTES), print)


@pytest.mark.slow
def test_states_are_forgotten_by_user_from_ram_and_disk(choice_of: Any, tmp_path: Path) -> None:
    with serving(tmp_path / "a", choice_of("qwen3_next")) as served:
        for user in ("anna", "ben"):
            reply = said(served.chat("The shed is blue.", max_tokens=6, user=user))
        folder = tmp_path / "a" / "default.states"
        n_files = len(list(folder.iterdir()))
        receipt = served.client.delete("/v1/states", params={"user": "anna"}).json()["receipt"]
        assert 0 < receipt["states"] == n_files - len(list(folder.iterdir()))
        talked = ("The shed is blue.", reply, "Which colour?")
        assert cached(served.chat(*talked, user="anna", store=False)) == 0 < cached(served.chat(*talked, user="ben"))
        assert served.client.delete("/v1/states", params={"user": "*"}).status_code == 200
        assert cached(served.chat(*talked, user="ben")) == 0


def test_a_model_with_memory_has_no_states_to_forget(served: Served) -> None:
    answer = served.client.delete("/v1/states")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_states")
