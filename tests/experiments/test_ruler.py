"""RULER's tasks as their definitions say: how many of what stands in the text, what is asked, what is right."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from experiments.ruler.instances import FRAME_TOKENS, Instance, Materials, string_match_all
from experiments.ruler.niah import NEEDLE_TASKS, NOISE
from experiments.ruler.parts import merged
from experiments.ruler.tasks import MAX_TOKENS, TASKS, make_instance

NEEDLE = re.compile(r"One of the special magic (numbers|uuids) for (\S+) is: (\S+)\.")
UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def letters(number: int) -> str:
    """The digits of a number as letters."""
    return "".join("abcdefghij"[int(digit)] for digit in f"{number:04}")


MATERIALS = Materials.of([f"The word {letters(n)} says nothing at all about the thing." for n in range(3_000)])


def count_words(texts: Sequence[str]) -> list[int]:
    """Words as tokens."""
    return [len(text.split()) for text in texts]


def made(task: str, n_tokens: int = 6_000, seed: int = 0, sample: int = 0, *, example: bool = True) -> Instance:
    """An instance with words as tokens."""
    return make_instance(
        task,
        n_tokens=n_tokens,
        seed=seed,
        sample=sample,
        materials=MATERIALS,
        count_tokens=count_words,
        example=example,
    )


@pytest.mark.parametrize("task", TASKS)
def test_an_instance_has_its_length_and_follows_from_its_seed(task: str) -> None:
    instance = made(task)
    whole = len(f"{instance.text} {instance.question}".split()) + instance.max_tokens + FRAME_TOKENS
    assert 0.95 * 6_000 <= whole <= 6_000
    assert instance.n_tokens == len(instance.text.split())
    assert instance.max_tokens == MAX_TOKENS[task]
    assert made(task) == instance
    assert len({made(task).digest, made(task, seed=1).digest, made(task, sample=1).digest}) == 3
    assert len(made(task, 3_000).text) < len(instance.text)


@pytest.mark.parametrize("task", TASKS)
def test_references_stand_in_the_text_and_not_in_the_question(task: str) -> None:
    instance = made(task)
    assert len(set(instance.references)) == len(instance.references)
    assert string_match_all(instance.text, instance.references) == 1.0
    assert string_match_all(instance.question, instance.references) == 0.0


@pytest.mark.parametrize("task", NEEDLE_TASKS)
def test_needles_are_as_many_as_defined_and_those_asked_for_are_the_references(task: str) -> None:
    defined, instance = NEEDLE_TASKS[task], made(task)
    found = NEEDLE.findall(instance.text)
    values = {value: key for _, key, value in found}
    keys = Counter(key for _, key, _ in found)
    assert len(values) == len(found)
    assert {kind for kind, _, _ in found} == {defined.values}
    assert set(keys.values()) == {defined.n_values}
    if defined.haystack == "needles":
        assert len(keys) > 500
    else:
        assert len(keys) == defined.n_keys
    assert len(instance.references) == defined.n_asked * defined.n_values
    asked = {values[reference] for reference in instance.references}
    assert len(asked) == defined.n_asked
    assert all(key in instance.question for key in asked)
    assert not any(key in instance.question for key in keys.keys() - asked)


@pytest.mark.parametrize("task", NEEDLE_TASKS)
def test_keys_and_values_are_of_their_kinds(task: str) -> None:
    defined, instance = NEEDLE_TASKS[task], made(task)
    for _, key, value in NEEDLE.findall(instance.text):
        assert bool(UUID4.fullmatch(key)) == defined.uuid_keys
        assert defined.uuid_keys or re.fullmatch(r"[a-z]+-[a-z]+", key)
        assert (UUID4.fullmatch if defined.values == "uuids" else re.compile(r"[1-9]\d{6}").fullmatch)(value)


def test_haystacks_are_noise_prose_or_needles() -> None:
    assert made("niah_single_1").text.count(NOISE) > 250
    assert NOISE not in made("niah_single_2").text
    assert made("niah_single_2").text.count("says nothing at all") > 400
    lines = made("niah_multikey_2").text.splitlines()[2:]
    assert all(NEEDLE.fullmatch(line) for line in lines)


def test_needles_stand_at_every_depth() -> None:
    depths = [
        instance.text.index(instance.references[0]) / len(instance.text)
        for instance in (made("niah_single_2", 500, sample=sample) for sample in range(25))
    ]
    assert min(depths) < 0.2 < 0.8 < max(depths)


def test_variables_are_one_chain_of_four_hops_in_order() -> None:
    instance = made("vt", example=False)
    lines = re.findall(r"^VAR ([A-Z]{5}) = (?:VAR )?(\S+)$", instance.text, re.MULTILINE)
    value = lines[0][1]
    assert re.fullmatch(r"\d{5}", value) and value in instance.question
    assert [source for _, source in lines] == [value, *(name for name, _ in lines[:-1])]
    assert instance.references == tuple(name for name, _ in lines)
    assert len(lines) == 5


@pytest.mark.parametrize(("n_tokens", "common", "other"), [(6_000, 30, 3), (3_000, 6, 1)])
def test_ten_words_are_common_and_the_list_is_numbered(n_tokens: int, common: int, other: int) -> None:
    instance = made("cwe", n_tokens, example=False)
    rows = re.findall(r"(\d+)\. ([a-z]+)", instance.text)
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    counts = Counter(word for _, word in rows)
    assert {word for word, n in counts.items() if n == common} == set(instance.references)
    assert len(instance.references) == 10
    assert set(counts.values()) == {common, other}


def test_coded_words_fall_off_with_the_square_of_their_rank() -> None:
    instance = made("fwe", 20_000)
    words = instance.text.partition("\n\n")[2].split()
    counts = Counter(words).most_common()
    assert counts[0][0] == "..."
    assert tuple(word for word, _ in counts[1:4]) == instance.references
    for rank in (2, 3, 4):
        assert counts[rank - 1][1] == pytest.approx(counts[0][1] / rank**2, abs=1)
    assert all(re.fullmatch(r"[a-z]{6}", word) for word, _ in counts[1:])
    assert len(counts) <= 20_000 / 50


@pytest.mark.parametrize("task", ["vt", "cwe"])
def test_the_example_is_another_one_and_solved(task: str) -> None:
    with_example, without = made(task), made(task, example=False)
    shown, _, text = with_example.text.rpartition(without.text.splitlines()[0])
    assert shown.count("\n\n") >= 2
    question = with_example.question if task == "cwe" else "Find all variables that are assigned the value"
    assert question in shown
    assert string_match_all(shown, with_example.references) == 0.0
    assert string_match_all(text, with_example.references) == 1.0


def test_the_score_is_the_share_of_references_contained() -> None:
    assert string_match_all("They are 1234567 and ABCDE.", ["1234567", "abcde", "fghij", "7654321"]) == 0.5
    assert string_match_all("", ["a"]) == 0.0
    assert string_match_all("11234567", ["1234567"]) == 1.0  # contained is enough, as RULER has it


def test_what_cannot_be_made_is_said() -> None:
    with pytest.raises(ValueError, match="no task qa_1"):
        made("qa_1")
    with pytest.raises(ValueError, match="does not fit"):
        made("niah_multiquery", 150)
    with pytest.raises(ValueError, match="different words"):
        made("cwe", 100_000)
    with pytest.raises(ValueError, match="needles only"):
        made("niah_multikey_2", 200_000)


def part(samples: Sequence[int], *, seed: int = 0, commit: str = "c", score: float = 1.0) -> dict[str, Any]:
    """A result with one answer a sample."""
    texts = [{"tokens": 9, "sample": sample, "task": "vt"} for sample in samples]
    answers = [text | {"system": "auto", "score": score} for text in texts]
    whole = {"label": "L", "plan": {"seed": seed}, "model": {"name": "m"}, "texts": texts, "answers": answers}
    return whole | {"seconds": [1.0], "end": {"circumstances": {"commit": commit}}}


def test_parts_of_one_experiment_are_merged_and_others_refused() -> None:
    whole = merged([part([0, 1]), part([1, 2], score=0.0)])
    assert [(row["sample"], row["score"]) for row in whole["answers"]] == [(0, 1.0), (1, 1.0), (2, 0.0)]
    assert len(whole["texts"]) == 3 and whole["seconds"] == [1.0, 1.0] and whole["plan"] == {"seed": 0}
    with pytest.raises(ValueError, match="plan"):
        merged([part([0]), part([1], seed=1)])
    with pytest.raises(ValueError, match="commit"):
        merged([part([0]), part([1], commit="d")])
