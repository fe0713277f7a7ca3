"""What the verbs of a store's life print when they are done: lines, or one JSON document.

Knows the typed results; knows nothing of how they come about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from livingkv.cli_render import ingested_totals, print_facts, print_ingested, print_json, print_problems, size
from livingkv.results import (
    ArchiveErased,
    Erased,
    Forgotten,
    Ingested,
    Migrated,
    Reembedded,
    Repaired,
    SessionInfo,
    to_json,
)
from livingkv.store import DefragReport, RebuildReport


def print_session(done: str, info: SessionInfo, *, as_json: bool) -> None:
    """A session that was made or changed: the JSON is that of `sessions`."""
    if as_json:
        print_json(to_json(info))
        return
    counts = f"{info.n_tokens:,} tokens, {info.n_sentences:,} sentences, {size(info.n_bytes)} of text"
    print_facts({done: info.name, "holds": counts})


def print_forgotten(receipt: Forgotten, *, as_json: bool, verb: str = "forgotten") -> None:
    """The receipt of forget and prune."""
    if as_json:
        print_json(to_json(receipt))
        return
    text = f"{receipt.n_sentences:,} sentences, {receipt.n_tokens:,} tokens, {size(receipt.n_bytes)} of text"
    facts: dict[str, object] = {verb: text, "pages": f"{receipt.n_pages:,}, whose KV is overwritten"}
    facts |= {"overwritten": size(receipt.bytes_erased), "freed": size(receipt.bytes_freed)}
    if receipt.n_keys:
        facts["keys"] = f"{receipt.n_keys:,} destroyed: copies of what they sealed cannot be opened either"
    if receipt.keys_left:
        named = ", ".join(receipt.keys_left)
        facts["not here"] = f"the key {named}, which opens older copies still: remove it from its folder"
    if receipt.bytes_awaiting:
        facts["awaiting"] = (
            f"{size(receipt.bytes_awaiting)}, overwritten: defrag gives it back once 5% of a file is dead"
        )
    print_facts(facts)


def erasure_counts(erased: Erased) -> str:
    """What a store that is erased as a whole holds, in words."""
    if erased.n_sessions is None or erased.n_bytes is None:
        return f"{size(erased.size_bytes)} of files, too damaged to count what is in them"
    counts = f"{erased.n_sessions:,} sessions, {erased.n_sentences:,} sentences, {erased.n_tokens:,} tokens"
    archived = f", {erased.n_archived:,} sentences in the archive" if erased.n_archived else ""
    return f"{counts}, {size(erased.n_bytes)} of text{archived}"


def print_erased(receipt: Erased, *, as_json: bool) -> None:
    """The receipt of erase."""
    if as_json:
        print_json(to_json(receipt))
        return
    facts: dict[str, object] = {"erased": ", ".join(receipt.paths), "held": erasure_counts(receipt)}
    if receipt.n_pages is not None:
        facts["pages"] = receipt.n_pages
    facts |= {"files": size(receipt.size_bytes), "overwritten": size(receipt.bytes_overwritten)}
    if receipt.left:
        facts["left"] = f"{', '.join(receipt.left)}: not a store's"
    print_facts(facts)


def print_archive_erased(receipt: ArchiveErased, *, as_json: bool) -> None:
    """The receipt of archive erase."""
    if as_json:
        print_json(to_json(receipt))
        return
    print_facts({"erased": f"{receipt.n_sentences:,} archived sentences, {size(receipt.n_bytes)} of text"})


def print_restored(done: Sequence[Ingested], *, as_json: bool) -> None:
    """What archive restore read again: a line for each session and source."""
    if as_json:
        print_json({**ingested_totals(done), "sources": to_json(done)})
        return
    for one in done:
        print_ingested(one)
    if not done:
        print_facts({"restored": "nothing: the archive is empty"})


def print_repaired(
    rebuilt: RebuildReport | None,
    segments: Sequence[int],
    repaired: Sequence[Repaired],
    remaining: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """What was rebuilt: the catalog, segment files, then the KV of each session; what remains on lines of its own."""
    if as_json:
        catalog = None if rebuilt is None else asdict(rebuilt)
        whole = {"catalog": catalog, "segments": list(segments), "sessions": to_json(repaired)}
        print_json({**whole, "remaining": list(remaining)})
        return
    facts: dict[str, object] = {}
    if rebuilt is not None:
        facts["catalog"] = f"rebuilt: {rebuilt.n_sessions:,} sessions, {rebuilt.n_tokens:,} tokens"
    if segments:
        facts["segments"] = f"{spans(segments)} replaced"
    for one in repaired:
        parts = [f"pages {spans(one.pages)}"] if one.pages else []
        parts += ["tail"] if one.tail else []
        facts[f"session {one.session}"] = " and ".join(parts or ["nothing"]) + " rebuilt"
    print_facts(facts or {"result": "nothing could be rebuilt" if remaining else "nothing had to be rebuilt"})
    print_problems(() if rebuilt is None else rebuilt.problems)
    print_problems([f"session {one.session}: {one.problem}" for one in repaired if one.problem])
    print_problems(remaining)


def spans(numbers: Sequence[int]) -> str:
    """Numbers in order, runs of them drawn together: 1-3, 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def print_defragmented(report: DefragReport, *, as_json: bool) -> None:
    """What was moved, and what that gave back."""
    if as_json:
        print_json(asdict(report))
        return
    moved = f"{report.n_records:,} records out of {report.n_segments:,} segments"
    print_facts({"moved": moved, "before": size(report.bytes_before), "after": size(report.bytes_after)})
    print_problems(report.problems)


def print_reembedded(done: Reembedded, *, as_json: bool) -> None:
    """The embedder that the index has now."""
    if as_json:
        print_json(to_json(done))
        return
    made = f"{done.n_sentences:,} of {done.dimension} numbers, in {done.seconds:.1f} s"
    print_facts({"embedder": done.embedder, "vectors": made})


def print_migrated(done: Migrated, *, as_json: bool) -> None:
    """The new store, and where the old one is."""
    if as_json:
        print_json(to_json(done))
        return
    tokens = f"{done.n_sessions:,} sessions, {done.n_tokens_before:,} tokens before, {done.n_tokens_after:,} now"
    print_facts({"store": done.path, "read again": tokens, "old store": f"{done.old_path}, until you remove it"})
