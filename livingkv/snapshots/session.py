"""A prompt read from its longest kept beginning on, and a reply: what a service does with a network and snapshots.

States are kept where the prompt's last assistant header begins, which survives whatever a template makes of the reply
later, and after the reply. Knows networks of transformers; refuses to know text and templates.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from livingkv.errors import InputError
from livingkv.snapshots.snapshots import Snapshots, Taken

Choose = Callable[[Tensor], int]
"""The next token, given logits [vocabulary]."""


def greedy(logits: Tensor) -> int:
    """The likeliest token."""
    return int(logits.argmax())


def header_start(tokens: Sequence[int], header: Sequence[int]) -> int | None:
    """Where the last assistant header of a prompt begins, if it has one."""
    length, wanted = len(header), list(header)
    starts = range(len(tokens) - length, -1, -1) if length else ()
    return next((start for start in starts if list(tokens[start : start + length]) == wanted), None)


def assistant_header(tokenizer: Any) -> tuple[int, ...]:
    """What the tokenizer's chat template opens a reply with, as token ids; empty where it opens it with nothing."""
    messages = [{"role": "user", "content": "x"}]
    without, opened = (
        tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=opens) for opens in (False, True)
    )
    header = opened[len(without) :] if opened.startswith(without) else ""
    return tuple(tokenizer.encode(header, add_special_tokens=False)) if header else ()


def cache_argument(network: Any) -> str:
    """What transformers calls the cache when a network is called: it depends on its version."""
    return "cache" if "cache" in inspect.signature(network.forward).parameters else "past_key_values"


class SnapshotSession:
    """A network and its snapshots. Used by one thread; turns one after the other.

    piece_tokens: at most so many tokens of a prompt go through the network at once; None: all. before_pass: called
    before every pass, so that others can have their turn.
    """

    def __init__(
        self,
        network: Any,
        snapshots: Snapshots,
        fresh: Callable[[], Any],
        *,
        piece_tokens: int | None = None,
        before_pass: Callable[[], None] | None = None,
    ) -> None:
        if piece_tokens is not None and piece_tokens < 1:
            raise InputError("piece_tokens", piece_tokens, "at least 1 is needed")
        self._network = network
        self.snapshots = snapshots
        self._fresh = fresh
        self._piece_tokens = piece_tokens
        self._before_pass = before_pass or (lambda: None)
        self._cache_name = cache_argument(network)

    def read(self, tokens: Sequence[int], *, marks: Sequence[int] = (), user: str = "", on_disk: bool = True) -> Turn:
        """Read a prompt; only what follows its longest kept beginning is computed. marks: numbers of tokens after which
        the state is kept, that of the last assistant header among them. on_disk: whether states may go there.

        Raises InputError for an empty prompt, and what the network raises.
        """
        if not tokens:
            raise InputError("tokens", "none", "at least 1 is needed")
        restored = self.snapshots.longest(tokens, user=user)
        turn = Turn(self, list(tokens), user, on_disk, restored.cache if restored else self._fresh())
        turn.n_cached = restored.n_tokens if restored else 0
        turn.read_prompt(sorted(mark for mark in set(marks) if turn.n_cached < mark < len(tokens)))
        return turn

    def step(self, cache: Any, tokens: Sequence[int]) -> Tensor:
        """Let the network read tokens after those of the cache, which it changes. Logits of the last: [vocabulary]."""
        logits: Tensor
        size = self._piece_tokens or len(tokens)
        for first in range(0, len(tokens), size):
            self._before_pass()
            ids = torch.tensor([list(tokens[first : first + size])], device=self._network.device)
            with torch.no_grad():
                made = self._network(ids, **{self._cache_name: cache}, use_cache=True, logits_to_keep=1)
            logits = made.logits[0, -1]
        return logits


class Turn:
    """A prompt that was read. n_cached of its tokens came from a snapshot, the others went through the network."""

    def __init__(self, session: SnapshotSession, tokens: list[int], user: str, on_disk: bool, cache: Any) -> None:
        self._session = session
        self._user = user
        self._on_disk = on_disk
        self._read = tokens
        self._marks: list[int] = []
        self._is_sound = True
        self._n_forgotten = session.snapshots.n_forgotten(user)
        self.cache = cache
        self.n_prompt = len(tokens)
        self.n_cached = 0
        self.logits = torch.empty(0)

    @property
    def n_prefilled(self) -> int:
        """Tokens of the prompt that were computed."""
        return self.n_prompt - self.n_cached

    @property
    def tokens(self) -> tuple[int, ...]:
        """What the cache has read: the prompt, and all of the reply but its last token."""
        return tuple(self._read)

    def read_prompt(self, marks: list[int]) -> None:
        """Called once by SnapshotSession.read."""
        at = self.n_cached
        for end in [*marks, self.n_prompt]:
            self._step(self._read[at:end])
            if end < self.n_prompt and not self._is_forgotten:
                snapshots, read = self._session.snapshots, self._read[:end]
                # to disk after the reply, so that its first token need not wait for the drive
                taken = snapshots.take(read, self.cache, user=self._user, on_disk=False)
                if self._on_disk and not taken.in_ram:
                    snapshots.take(read, self.cache, user=self._user)
            at = end
        self._marks = marks

    def generate(
        self, max_tokens: int, *, stop_ids: frozenset[int] = frozenset(), choose: Choose = greedy
    ) -> Iterator[int]:
        """The reply's tokens as they are computed, a stop token being the last. May be left early, or gone on with."""
        for number in range(max_tokens):
            token = choose(self.logits)
            yield token
            if token in stop_ids or number == max_tokens - 1:
                return
            self._step([token])
            self._read.append(token)

    def keep(self) -> Taken:
        """Keep the state as it is now, and that of the marks, on disk too where that is allowed.

        After a pass that failed nobody knows what the cache has read: it is not kept, and the answer says so. Nor is
        anything of a user who was forgotten since the turn began.
        """
        if self._is_forgotten:
            return Taken(0, in_ram=False, on_disk=False, reason="it was forgotten before the turn ended")
        snapshots = self._session.snapshots
        if self._on_disk:
            for mark in self._marks:
                snapshots.write(self._read[:mark], user=self._user)
        if not self._is_sound:
            return Taken(0, in_ram=False, on_disk=False, reason="the turn ended within a pass")
        return snapshots.take(self._read, self.cache, user=self._user, on_disk=self._on_disk)

    @property
    def _is_forgotten(self) -> bool:
        return self._session.snapshots.n_forgotten(self._user) != self._n_forgotten

    def _step(self, tokens: list[int]) -> None:
        self._is_sound = False
        self.logits = self._session.step(self.cache, tokens)
        self._is_sound = True
