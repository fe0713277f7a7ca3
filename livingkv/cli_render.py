"""Results as people and programs read them: plain lines and tables, or one JSON document.

Knows the typed results; knows nothing of how they come about. Stored text may hold terminal control sequences: they
are made visible here and never sent to the terminal.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from livingkv.results import Answer, Archived, CheckReport, Evidence, Hot, Ingested, SessionInfo, Stats, Turn, to_json

LOW_CONFIDENCE = "LOW CONFIDENCE"

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_UNBOUNDED_WIDTH = 100_000
_EVIDENCE_CHARACTERS = 300
_LABEL_WIDTH = 12


def print_json(document: Any) -> None:
    """Writes one JSON document on standard output."""
    print(json.dumps(document, ensure_ascii=False, allow_nan=False, indent=2))


def print_json_line(document: Any) -> None:
    """Writes one JSON document as one line on standard output, at once."""
    print(json.dumps(document, ensure_ascii=False, allow_nan=False), flush=True)


def visible(text: str) -> str:
    """The text with control characters (all but tab and newline) and direction overrides as visible escapes."""
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text.replace("\r\n", "\n"))


class OutputConsole(Console):
    """A console on standard output that wraps at the terminal's width, and never where there is no terminal."""

    def __init__(self) -> None:
        super().__init__(highlight=False, markup=False, emoji=False)
        if not self.is_terminal:
            self.width = _UNBOUNDED_WIDTH

    def on_broken_pipe(self) -> None:
        """Leaves the exit code to the process edge, where rich would exit at once."""
        raise BrokenPipeError


def print_answer(answer: Answer, *, as_json: bool) -> None:
    """The answer first; then how it was found, how sure it is, and what it cost."""
    if as_json:
        print_json(to_json(answer))
        return
    console = OutputConsole()
    if not answer.confident:
        console.print(Text(LOW_CONFIDENCE, style="bold red"), soft_wrap=True)
    if answer.answer:
        console.print(Text(visible(answer.answer), style="bold" if answer.confident else ""), soft_wrap=True)
    console.print()
    for label, text in answer_lines(answer):
        console.print(Text(f"{label:<{_LABEL_WIDTH}}", style="cyan") + Text(text), soft_wrap=True)


def answer_lines(answer: Answer) -> Iterable[tuple[str, str]]:
    """What is told about an answer, as pairs of label and text."""
    yield "mode", f"{answer.mode}: {visible(answer.reason)}" if answer.reason else answer.mode
    yield "confidence", f"{answer.confidence:.2f}" + ("" if answer.confident else " (low)")
    for number, passage in enumerate(answer.evidence, 1):
        yield f"evidence {number}", evidence_line(passage)
        yield "", excerpt(passage.text)
    counts = f"{answer.reused_tokens:,} reused, {answer.prefilled_tokens:,} prefilled, {answer.n_tokens:,} stored"
    yield "tokens", counts
    times = answer.timings_ms
    parts = f"load {times.load:,.0f}, probe {times.probe:,.0f}, fetch {times.fetch:,.0f}"
    yield "time", f"{times.total:,.0f} ms ({parts}, first token {times.first_token:,.0f})"


def evidence_line(passage: Evidence) -> str:
    """Where a passage comes from: source, session, token span and scores."""
    scores = [f"score {passage.score:.2f}"]
    if passage.lexical is not None:
        scores.append(f"lexical {passage.lexical:.2f}")
    if passage.semantic is not None:
        scores.append(f"semantic {passage.semantic:.2f}")
    low, high = passage.tokens
    return f"{visible(passage.source)}, session {visible(passage.session)}, tokens {low:,} to {high:,}, " + ", ".join(
        scores
    )


def excerpt(text: str) -> str:
    """A passage on one line, cut in the middle of nothing but white space."""
    line = " ".join(visible(text).split())
    if len(line) <= _EVIDENCE_CHARACTERS:
        return line
    return line[:_EVIDENCE_CHARACTERS].rsplit(" ", 1)[0] + " ..."


def print_ingested(result: Ingested) -> None:
    """One line for one source."""
    if result.skipped:
        line = f"{visible(result.source)}: already in session {visible(result.session)}, nothing to do"
    else:
        rate = f", {result.n_tokens / result.seconds:,.0f} tokens/s" if result.seconds > 0 else ""
        line = (
            f"{visible(result.source)}: {result.n_tokens:,} tokens, {result.n_sentences:,} sentences,"
            f" {size(result.n_bytes)} in {result.seconds:.1f} s{rate}"
        )
    OutputConsole().print(Text(line), soft_wrap=True)


def ingested_document(
    results: Sequence[Ingested], *, session: str, left_out: Sequence[tuple[str, str]] = ()
) -> dict[str, Any]:
    """What `ingest --json` prints: the totals, every source, and what a walk left out with the reason."""
    return {
        "session": session,
        "n_sources": len(results),
        **ingested_totals(results),
        "sources": to_json(results),
        "left_out": [{"source": source, "reason": reason} for source, reason in left_out],
    }


def ingested_totals(results: Sequence[Ingested]) -> dict[str, Any]:
    """Bytes, tokens, sentences and seconds of several sources."""
    return {
        "n_bytes": sum(result.n_bytes for result in results),
        "n_tokens": sum(result.n_tokens for result in results),
        "n_sentences": sum(result.n_sentences for result in results),
        "seconds": sum(result.seconds for result in results),
    }


def print_archived(archived: Sequence[Archived]) -> None:
    """Pruned sentences, each with its id, session and source, and its text."""
    console = OutputConsole()
    if not archived:
        console.print(Text("nothing is archived: livingkv prune puts sentences there"), soft_wrap=True)
    for each in archived:
        label = f"sentence {each.sentence_id}"
        origin = f"{visible(each.source)}, session {visible(each.session)}"
        console.print(Text(f"{label:<{_LABEL_WIDTH}} ", style="cyan") + Text(origin), soft_wrap=True)
        console.print(Text(" " * (_LABEL_WIDTH + 1) + " ".join(visible(each.text).split())), soft_wrap=True)


def print_sessions(sessions: list[SessionInfo]) -> None:
    """A table of sessions, the newest change last."""
    if not sessions:
        OutputConsole().print(Text("no sessions yet: livingkv ingest STORE FILE makes one"), soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False)
    for name in ("session", "tokens", "sentences", "text", "turns", "sources", "changed"):
        table.add_column(name, justify="left" if name in ("session", "changed") else "right", overflow="fold")
    for info in sorted(sessions, key=lambda info: info.updated_s):
        changed = datetime.fromtimestamp(info.updated_s).isoformat(" ", "minutes")
        counts = (info.n_tokens, info.n_sentences, size(info.n_bytes), info.n_turns, len(info.sources))
        cells = [f"{count:,}" if isinstance(count, int) else count for count in counts]
        name = visible(info.name) + (" (encrypted)" if info.encrypted else "")
        table.add_row(Text(name), *cells, changed)
    OutputConsole().print(table)


def print_stats(stats: Stats) -> None:
    """Size and shape of a store, the largest parts first."""
    facts: dict[str, object] = {"store": stats.path, "model": stats.model, "codec": stats.codec}
    facts |= {"sessions": stats.n_sessions, "tokens": stats.n_tokens, "sentences": stats.n_sentences}
    facts |= {"pages": stats.n_pages, "size": size(stats.size_bytes)}
    if stats.disk_budget_bytes is not None:
        in_use = stats.held_bytes / stats.disk_budget_bytes
        facts["disk budget"] = f"{size(stats.disk_budget_bytes)}, {in_use:.1%} of it in use"
    if stats.bytes_per_token is not None:
        share = ""
        if stats.bf16_bytes_per_token:
            share = f", {stats.bytes_per_token / stats.bf16_bytes_per_token:.3f} of 16-bit KV"
        facts["per token"] = f"{stats.bytes_per_token:,.0f} bytes{share}"
    for part, n_bytes in sorted(stats.bytes_by_part.items(), key=lambda item: -item[1]):
        facts[f"  {part}"] = size(n_bytes)
    print_facts(facts)


def print_hottest(hottest: list[Hot]) -> None:
    """The most recalled sentences, warmest first, each with its weight and its id; nothing if none was recalled."""
    console = OutputConsole()
    for number, hot in enumerate(hottest, 1):
        origin = f"{visible(hot.source)}, session {visible(hot.session)}, sentence {hot.sentence_id}"
        heat = f"weight {hot.weight:.2f}, recalled {hot.n_recalls:,} times"
        console.print(
            Text(f"{f'hottest {number}':<{_LABEL_WIDTH}}", style="cyan") + Text(f"{heat}, {origin}"), soft_wrap=True
        )
        console.print(Text(" " * _LABEL_WIDTH + excerpt(hot.text)), soft_wrap=True)


def print_check(report: CheckReport) -> None:
    """What was checked, then every problem on its own line."""
    print_facts(
        {
            "store": report.path,
            "checked": f"{report.n_pages:,} pages, {report.n_records:,} records, {report.n_sentences:,} sentences",
            "result": "whole" if report.ok else f"not whole, {len(report.problems)} found",
        }
    )
    print_problems(report.problems)


def print_problems(problems: Sequence[str]) -> None:
    """Every problem on its own line."""
    console = OutputConsole()
    for problem in problems:
        console.print(Text(f"- {visible(problem)}", style="red"), soft_wrap=True)


def print_facts(facts: dict[str, object]) -> None:
    """One line a fact: label, value."""
    console = OutputConsole()
    width = max(len(label) for label in facts) + 2
    for label, value in facts.items():
        shown = f"{value:,}" if type(value) is int else visible(str(value))  # a bool is no count
        console.print(Text(f"{label:<{width}}", style="cyan") + Text(shown), soft_wrap=True)


def size(n_bytes: int) -> str:
    """A byte count for people, in binary units."""
    value = float(n_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"


def stream_text(piece: str) -> None:
    """Shows a piece of an answer while it is written."""
    sys.stdout.write(visible(piece))
    sys.stdout.flush()


def recalled_lines(turn: Turn) -> list[str]:
    """What a chat reply was recalled from, one line a passage; none for a reply out of the conversation itself."""
    places = ((f"{visible(found.source)}, session {visible(found.session)}", found) for found in turn.evidence)
    return [f"[recalled from {place}, {found.role}: {excerpt(found.text)}]" for place, found in places]


def turn_line(turn: Turn) -> str:
    """What is told under a chat reply: turn, mode, tokens and time in one line."""
    sure = "" if turn.confident else ", low confidence"
    return (
        f"[turn {turn.turn}, {turn.mode}{sure}, {turn.reused_tokens:,} reused, {turn.prefilled_tokens:,} prefilled,"
        f" {turn.timings_ms.total:,.0f} ms]"
    )
