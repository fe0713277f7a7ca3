"""What the experiments on the service are made of: counts that miss nothing, oracles that see what is lost."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.latency import latency, percentile, timed_ms
from experiments.load_client import actions
from experiments.load_tally import Tally
from experiments.plain_words import PlainWords
from experiments.turn_texts import TurnTexts

ROOT = Path(__file__).resolve().parents[2]
Load = importlib.import_module("experiments.020_load.run")
Kills = importlib.import_module("experiments.021_service_kills.run")


def usage(prompt: int, cached: int) -> dict[str, Any]:
    """As an answer tells it."""
    return {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": cached}}


def test_percentiles_are_values_that_were_measured() -> None:
    assert [percentile([4.0, 1.0, 3.0, 2.0], share) for share in (0.25, 0.5, 0.51, 0.99)] == [1.0, 2.0, 3.0, 4.0]
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)
    told = latency(timed_ms(lambda number: number, 5))
    assert told["n"] == len(told["ms"]) == 5 and told["p50_ms"] <= told["max_ms"]


def test_only_success_and_waiting_are_no_faults() -> None:
    tally = Tally()
    assert tally.answered("a", 200, None, 1.0) and tally.answered("a", 202, None, 1.0)
    assert not tally.answered("a", 429, "2", 1.0)
    assert tally.faults == []
    for status, after in ((429, None), (503, "soon"), (500, "2"), (404, None)):
        assert not tally.answered("a", status, after, 1.0)
    assert tally.n_faults == 4 and tally.n_answers == 7 and tally.to_json()["took_ms"]["a"]["n"] == 2


def test_a_later_turn_without_cached_tokens_is_told() -> None:
    tally = Tally()
    tally.turn(usage(10, 0), "one", 0, goes_another_way=False)
    tally.turn(usage(20, 10), "one", 2, goes_another_way=False)
    tally.turn(usage(20, 0), "two", 2, goes_another_way=True)
    assert not tally.without_cache
    tally.turn(usage(20, 0), "three", 4, goes_another_way=False)
    assert tally.without_cache == ["three: 4 messages before"]
    assert (tally.n_turns, tally.prompt_tokens, tally.cached_tokens) == (4, 70, 10)


def test_a_client_does_what_the_routes_allow() -> None:
    chat = "/v1/chat/completions"
    assert actions([chat]) == ("whole", "streamed", "left stream", "left whole")
    assert {"search", "turn"} <= set(actions([chat, "/v1/memory/search", "/v1/memory/turn"]))


def test_memory_that_grows_is_seen() -> None:
    flat = [{"s": float(second), "rss": 100.0, "anonymous": 50.0} for second in range(20)]
    growing = [{**row, "anonymous": 50 + row["s"]} for row in flat]
    assert Load.growth(flat, 4.0)["anonymous"]["second_over_first"] == 1
    told = Load.growth(growing, 4.0)["anonymous"]
    assert told["bytes_a_minute"] == pytest.approx(60) and told["second_over_first"] > 1.1 and told["max"] == 69


def test_what_is_lost_moved_or_doubled_is_seen() -> None:
    assert Kills.in_order_and_once("one. two. three.", ["one.", "three."]) == ([], [])
    assert Kills.in_order_and_once("one. three.", ["one.", "two.", "three."]) == (["two."], [])
    assert Kills.in_order_and_once("two. one.", ["one.", "two."]) == (["two."], [])
    assert Kills.in_order_and_once("one. two. one.", ["one.", "two."]) == ([], ["one."])


def test_questions_are_about_what_is_stored_and_messages_are_new() -> None:
    paragraphs = [f"Paragraph {n} says that lamp {n} stands in room {n * 7} of the house." for n in range(50)]
    texts = TurnTexts(paragraphs, 0)
    stored = [*texts.next_stored(10), *texts.next_stored(10)]
    assert len(set(stored)) == 20 and stored == texts.stored
    assert all(any(texts.quoted(number) in text for text in stored) for number in range(30))
    assert texts.is_found(3, stored) and not texts.is_found(3, ["something else"])
    said = [message["content"] for number in range(5) for message in texts.messages(number)]
    assert not any(text in spoken for text in stored for spoken in said)
    with pytest.raises(ValueError, match="no more"):
        texts.next_stored(40)


def test_the_baseline_finds_by_words_what_is_committed(tmp_path: Path) -> None:
    plain = PlainWords(tmp_path / "plain", ["The lamp is green.", "The door is red."])
    assert plain.search("green lamp?", 5)[0] == "The lamp is green."
    plain.add(["The window is yellow."], commit=False)
    assert plain.search("yellow", 5) == []
    plain.add([], commit=True)
    assert plain.search("yellow", 5) == ["The window is yellow."]
    plain.close()


def ran(script: str, *options: str) -> dict[str, Any]:
    """What a script writes when it is run with small sizes."""
    out = Path(options[options.index("--out") + 1])
    done = subprocess.run([sys.executable, script, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    written: dict[str, Any] = json.loads(out.read_text("utf-8"))
    return written


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_small_load(tmp_path: Path) -> None:
    sizes = ("--clients", "4", "--minutes", "0.1", "--warm-up", "1", "--asks", "60")
    places = ("--folder", str(tmp_path / "load"), "--out", str(tmp_path / "load.json"))
    told = ran("experiments/020_load/run.py", *sizes, *places)
    assert told["load"]["n_answers"] > 10 and told["load"]["turns"]["cached_tokens"] > 0
    assert told["tenants"]["n_asks"] == 60 and all(told["verdict"].values())
    assert not (tmp_path / "load").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_few_kills(tmp_path: Path) -> None:
    places = ("--folder", str(tmp_path / "kills"), "--out", str(tmp_path / "kills.json"))
    told = ran("experiments/021_service_kills/run.py", "--kills", "2", "--sessions", "6", "--clients", "3", *places)
    assert told["acknowledged"]["turns_of_conversations"] > 0 and all(told["verdict"].values())
