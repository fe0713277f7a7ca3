"""The same tokens, their KV made in four ways: read in bf16, or step by step by weights of bf16, int8 or int4.

Knows engines and sessions; knows no question and no score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from livingkv import Memory
from livingkv.engine import Engine
from livingkv.generation import collect
from livingkv.messages import CHAT, read_user_message
from livingkv.models import DecodeWeights, LoadedModel
from livingkv.sampling import Sampler, Sampling
from livingkv.session_reader import Origin
from livingkv.workspace import Workspace

Making = Literal["bf16 read", "bf16 steps", "int8 steps", "int4 steps"]
MAKINGS: tuple[Making, ...] = get_args(Making)
GENERATING: dict[Making, DecodeWeights | None] = {
    "bf16 read": None,
    "bf16 steps": None,
    "int8 steps": "int8",
    "int4 steps": "int4",
}


class Forced(Sampler):
    """Picks the tokens that it is given, whatever the logits, and a stop token behind them."""

    def __init__(self, token_ids: Sequence[int], stop: int) -> None:
        super().__init__(Sampling())
        self._forced = iter((*token_ids, stop))

    def pick(self, logits: Tensor) -> int:
        """See Sampler."""
        token = next(self._forced)
        return self.take(token, float(logits.float().log_softmax(-1)[token]))


def with_weights(model: LoadedModel, weights: DecodeWeights | None) -> LoadedModel:
    """The same network, generating by other weights."""
    return replace(model, decode_weights=weights)


def engines(model: LoadedModel) -> dict[Making, Engine]:
    """One for each making, all of one network."""
    return {making: Engine.of(with_weights(model, weights), "int8") for making, weights in GENERATING.items()}


def read_into(engine: Engine, space: Workspace, ids: Tensor, *, by_steps: bool) -> None:
    """Tokens into a workspace, as text is read or one by one as they are generated."""
    if not by_steps:
        engine.runner.read(ids, space)
        return
    for at in range(len(ids)):
        engine.runner.logits(ids[at : at + 1], space)


def say(memory: Memory, session: str, user: str, reply: str, making: Making) -> None:
    """One turn of a conversation as `Memory.chat` makes it, the reply being these words; durable on return."""
    if making == "bf16 read":
        memory.add_messages(
            [{"role": "user", "content": user}, {"role": "assistant", "content": reply}], session=session
        )
        return
    home = memory._home
    home.writable_store()
    engine, row = home.engine(), home.session_for_writing(session)
    ids, stop = engine.words.encode(reply), min(engine.model.stop_ids)
    with memory._reader(row) as reader:
        assert reader.hot is not None
        told = read_user_message(reader, user, at_start=home.at_message_start(reader.session_id))
        logits = reader.open_answer()
        tokens = engine.runner.generate(logits, reader.hot, Forced(ids, stop), len(ids) + 1)
        generated = collect(tokens, engine.words.stream(), len(ids) + 1)
        assert list(generated.token_ids) == ids, "no token of the reply ends it"
        home.store().append_all([told, reader.close_answer(generated, Origin(CHAT, "assistant"))])
    home.index.feed_if_possible()


def relative_difference(found: Tensor, own: Tensor) -> float:
    """Length of the difference by the length."""
    return float(torch.linalg.vector_norm(found.float() - own.float()) / torch.linalg.vector_norm(own.float()))
