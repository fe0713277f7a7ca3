"""All sentences that hold the names of a question, and those that they lead to.

Knows names and sentences, and asks whoever can find sentences by words; knows no model and no page. A list is asked for
by what its parts have in common: every sentence with the name belongs to the answer, not only the best one. A chain
(`b = a`, `c = b`) goes on in sentences that do not hold the name themselves: identifiers in what was found are looked
for in turn, as long as few sentences hold them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from livingkv.index.analysis import folded
from livingkv.passages import Judged
from livingkv.question import Name, held_names, identifiers_in, is_small_number

MOST_NAMED = 64
"""Sentences looked at for each name."""

MOST_LED = 4
"""An identifier that more further sentences hold is what they are about, not a link of a chain."""

MOST_PROBES = 16
"""So often the index is asked for identifiers, by words alone."""

Find = Callable[[str, int], Sequence[Judged]]
"""Sentences that hold some of these words, most of them first, up to a limit; not judged."""


class Named(NamedTuple):
    """Sentences that hold the names, at least one.

    names: those of the question that are held, then the identifiers that led on. n_found: so many sentences there are,
    as far as they were looked at; more than `hits` where the budget ended before. is_chain: some hold no name and were
    led to. is_cut: for one of the names more were found than were looked at.
    """

    hits: tuple[Judged, ...]
    names: tuple[Name, ...]
    n_found: int
    is_chain: bool = False
    is_cut: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing, as far as is known."""
        return len(self.hits) == self.n_found and not self.is_cut


def named_sentences(names: Sequence[Name], judged: Sequence[Judged], find: Find, budget_tokens: int) -> Named | None:
    """The sentences that hold the names, within the budget; None where no sentence holds one.

    Those that hold the most of them come first, and then only those that hold a name which is still missing. A sentence
    that is among `judged` is given as it stands there.
    """
    known = {hit.sentence.sentence_id: hit for hit in judged}
    pool = dict(known)
    is_cut = False
    for name in names:
        found = find(" ".join(name.words), MOST_NAMED)
        is_cut |= len(found) == MOST_NAMED and bool(held_names([name], found[-1].sentence.text))
        for hit in found:
            pool.setdefault(hit.sentence.sentence_id, hit)
    chosen, held = _holding(names, list(pool.values()))
    if not chosen:
        return None
    led, links = _led_on(names, chosen, find)
    every = [known.get(hit.sentence.sentence_id, hit) for hit in (*chosen, *led)]
    return Named(tuple(_within(every, budget_tokens)), (*held, *links), len(every), bool(links), is_cut)


def _holding(names: Sequence[Name], hits: Sequence[Judged]) -> tuple[list[Judged], list[Name]]:
    """The hits to take, and the names that they hold. A small number beside other names is not looked for alone."""
    telling = [name for name in names if not is_small_number(name)] or list(names)
    held = {hit.sentence.sentence_id: held_names(names, hit.sentence.text) for hit in hits}
    most = max((len(found) for found in held.values() if found & set(telling)), default=0)
    if most == 0:
        return [], []
    chosen = [hit for hit in hits if len(held[hit.sentence.sentence_id]) == most]
    chosen = [hit for hit in chosen if held[hit.sentence.sentence_id] & set(telling)]
    for name in telling:
        if not any(name in held[hit.sentence.sentence_id] for hit in chosen):
            chosen += [hit for hit in hits if name in held[hit.sentence.sentence_id]]
    chosen.sort(key=lambda hit: -hit.coverage)
    return chosen, [name for name in names if any(name in held[hit.sentence.sentence_id] for hit in chosen)]


def _led_on(names: Sequence[Name], chosen: Sequence[Judged], find: Find) -> tuple[list[Judged], list[Name]]:
    """Sentences that hold identifiers of the chosen ones and of one another, and those identifiers."""
    seen = {folded(word) for name in names for word in name.words}
    have = {hit.sentence.sentence_id for hit in chosen}
    led: list[Judged] = []
    links: list[Name] = []
    waiting = deque(link for hit in chosen for link in identifiers_in(hit.sentence.text))
    n_probes = 0
    while waiting and n_probes < MOST_PROBES:
        link = waiting.popleft()
        if folded(link.words[0]) in seen:
            continue
        seen.add(folded(link.words[0]))
        n_probes += 1
        found = [hit for hit in find(link.words[0], len(have) + MOST_LED + 1) if held_names([link], hit.sentence.text)]
        new = [hit for hit in found if hit.sentence.sentence_id not in have]
        if 0 < len(new) <= MOST_LED:
            links.append(link)
            led += new
            have |= {hit.sentence.sentence_id for hit in new}
            waiting.extend(each for hit in new for each in identifiers_in(hit.sentence.text))
    return led, links


def _within(hits: Sequence[Judged], budget_tokens: int) -> list[Judged]:
    """The first of them that fit the budget, at least one."""
    kept, used = list(hits[:1]), hits[0].sentence.token_hi - hits[0].sentence.token_lo
    for hit in hits[1:]:
        used += hit.sentence.token_hi - hit.sentence.token_lo
        if used > budget_tokens:
            break
        kept.append(hit)
    return kept
