"""Hits grow to passages: neighbours on both sides, but never past a heading, and a heading brings what it is about."""

from __future__ import annotations

import pytest

from livingkv.passages import Judged, Passage, grow_passages, sentence_passages
from livingkv.store import Sentence
from livingkv.text import split_sentences

GUIDE = """# Guide

What this program is for. Who wrote it.

## Installation

Run the installer. Restart the machine. Say yes to everything.

## Removal

Delete the folder. Empty the bin.
"""
TOKENS = 5


class Text:
    """A text as sentences of one source, five tokens each."""

    def __init__(self, text: str) -> None:
        raw = text.encode()
        self.sentences = [
            Sentence(
                i,
                1,
                "default",
                *span,
                i * TOKENS,
                (i + 1) * TOKENS,
                "guide",
                "document",
                raw[span.byte_lo : span.byte_hi],
            )
            for i, span in enumerate(split_sentences(raw))
        ]

    def hit(self, words: str) -> Judged:
        found = next(sentence for sentence in self.sentences if words in sentence.text)
        return Judged(found, 1.0, None, None, 1.0)

    def neighbours(self, sentence_id: int, before: int, after: int) -> list[Sentence]:
        return self.sentences[max(0, sentence_id - before) : sentence_id + after + 1]

    def grown(self, *words: str, tokens: int = 1000) -> list[Passage]:
        return grow_passages([self.hit(each) for each in words], self.neighbours, budget_tokens=tokens)


def test_a_heading_brings_its_body_and_nothing_of_the_section_before() -> None:
    (passage,) = Text(GUIDE).grown("## Installation")
    assert passage.text.startswith("## Installation") and passage.text.endswith("Say yes to everything.")


def test_a_heading_above_another_brings_the_first_body() -> None:
    (passage,) = Text("# Part one\n\n## Eggs\n\nBeat them well. Add salt.\n\n## Milk\n\nPour it in.\n").grown(
        "# Part one"
    )
    assert passage.text.endswith("Add salt.")


@pytest.mark.parametrize(
    "heading",
    [
        "## Recipes",
        "Chapter 3: Recipes",
        "Recipes\n=======",
        "3.1 Recipes",
        "Recipes",
        "Kapitel 3",
        "第三章 食谱",
        "Recipes:",
    ],
)
def test_headings_of_many_kinds(heading: str) -> None:
    (passage,) = Text(f"Before it all. Nothing here.\n\n{heading}\n\nTake two eggs. Beat them.\n").grown(heading)
    assert passage.text.startswith(heading) and passage.text.endswith("Beat them.")


@pytest.mark.parametrize("line", ["He slept well.", "- two eggs", "x = compute(1)", "Where is it?", "1. Take two eggs"])
def test_other_short_lines_grow_both_ways(line: str) -> None:
    (passage,) = Text(f"Before it all there was a plan.\n\n{line}\n\nAfter it came the rain.\n").grown(line)
    assert passage.text.startswith("Before it all") and passage.text.endswith("the rain.")


def test_a_sentence_brings_its_heading_before_it_grows_to_other_sides() -> None:
    (passage,) = Text(GUIDE).grown("Say yes", tokens=4 * TOKENS)
    assert passage.text.startswith("## Installation") and passage.text.endswith("Say yes to everything.")


def test_a_sentence_does_not_grow_into_another_section() -> None:
    (passage,) = Text(GUIDE).grown("Delete the folder")
    assert passage.text.startswith("## Removal") and passage.text.endswith("Empty the bin.")


def test_a_section_longer_than_the_budget_is_cut_at_its_end() -> None:
    (passage,) = Text(GUIDE).grown("## Installation", tokens=3 * TOKENS)
    assert passage.text.startswith("## Installation") and passage.text.endswith("Restart the machine.")


def test_a_heading_read_alone_brings_its_body_too_and_a_sentence_nothing() -> None:
    text = Text(GUIDE)
    first, second = sentence_passages([text.hit("## Removal"), text.hit("Run the installer")], text.neighbours)
    assert first.text == "## Removal\n\nDelete the folder. Empty the bin." and second.text == "Run the installer."


def test_a_heading_and_its_sentence_become_one_passage() -> None:
    assert len(Text(GUIDE).grown("## Installation", "Say yes")) == 1
