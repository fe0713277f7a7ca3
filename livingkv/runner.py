"""Runs the model over token ids against an attention state, and picks the next token.

Knows the Hugging Face network; knows no sessions, pages or text. The network keeps its own modules except two: its
attention is routed to the state through Hugging Face's attention interface, and its rotary module is replaced by
one that turns nothing, so that the state sees queries and keys unrotated and places them itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from livingkv.batched_decode import BatchedDecode, DecodeStep, Outcome
from livingkv.decoding import Decoder, decoder_for
from livingkv.errors import UnsupportedModel
from livingkv.models import DecodeWeights, LoadedModel
from livingkv.packed import MAX_ROWS, PackedStep, step_for
from livingkv.pass_clock import PassClock
from livingkv.plain_network import logit_factor
from livingkv.sampling import Sampler
from livingkv.workspace import AttentionState

ATTENTION = "livingkv"
_SLICE = 64  # rows of logits at once

_TIMED_TOKENS = 16
"""Shorter passes are generation, whose speed says little about reading."""


def _go_on() -> None:
    """Nothing is to be done between two passes."""


def _alone(step: DecodeStep) -> None:
    """No pass is shared."""


class _Unrotated(nn.Module):
    """Stands in for the model's rotary module: cos 1 and sin 0. Holds what the runners of one network share: what
    records its decode steps, None until it was asked for or where there is none, and what generates from packed
    weights, by the bits asked for; each once tried, None where there is none."""

    def __init__(self, rotary_dim: int) -> None:
        super().__init__()
        self._dim = rotary_dim
        self.decoder: Decoder | None = None
        self.has_asked = False
        self.packed: dict[DecodeWeights | None, PackedStep | None] = {}

    def forward(self, x: Tensor, position_ids: Tensor, *args: object) -> tuple[Tensor, Tensor]:
        """cos and sin [1, tokens, rotary_dim] in x's dtype."""
        size = (1, position_ids.shape[-1], self._dim)
        return x.new_ones(size), x.new_zeros(size)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    livingkv_state: AttentionState | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Hugging Face's attention interface: the signature, the extra keywords included, is theirs."""
    if livingkv_state is None:
        raise UnsupportedModel("this network is set up for livingkv.runner.Runner; call it through one")
    if others.get("softcap") or others.get("s_aux") is not None:
        raise UnsupportedModel("attention with a soft cap or learned sinks is not supported")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer = module.layer_idx
    assert isinstance(layer, int), "Hugging Face numbers its attention layers"
    out = livingkv_state.attend(layer, query, key, value, scale)
    return out.transpose(1, 2).contiguous(), None


class Runner:
    """Forward passes of one loaded model. Takes the network over: it is not usable by others afterwards.

    Not thread-safe. `n_prefilled` counts every token that was run through the network and `n_passes` the passes, for
    honest reports. `between` is called before each pass, while no state is in one: it may run passes of other states.
    `join` is asked before each step of generation: what a pass that it was part of gave, or None. `records`: decode
    steps are recorded where that can be; what was recorded is shared by the runners of a network.
    """

    def __init__(self, model: LoadedModel) -> None:
        AttentionInterface.register(ATTENTION, _attention)
        self.model = model
        self.n_prefilled = 0
        self.n_passes = 0
        self.between: Callable[[], None] = _go_on
        self.join: Callable[[DecodeStep], Tensor | int | None] = _alone
        self.records = True
        self._is_whole = False
        self._clock = PassClock(model.device)
        self._network = model.network
        self._network.config._attn_implementation = ATTENTION
        self._base = model.network.base_model
        if not isinstance(self._base.rotary_emb, _Unrotated):
            self._base.rotary_emb = _Unrotated(model.rope.rotary_dim)
        self._shared: _Unrotated = self._base.rotary_emb

    @contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """Within the block `between` and `join` are not called."""
        before, self._is_whole = self._is_whole, True
        try:
            yield
        finally:
            self._is_whole = before

    def let_others(self) -> None:
        """As before a pass: call `between`, unless inside of `uninterrupted`."""
        if not self._is_whole:
            self.between()

    @property
    def tokens_per_s(self) -> float | None:
        """How fast text was read so far, over all passes of 16 tokens and more; None before the first. On a GPU over
        those that are over; waits for the first."""
        return self._clock.tokens_per_s

    @torch.inference_mode()
    def read(self, token_ids: Tensor, state: AttentionState) -> None:
        """Run `token_ids` (int64 [tokens] or [batch, tokens]) through the network for their KV alone; no logits."""
        for part in self._parts(token_ids, state):
            self._pass(part, state)

    @torch.inference_mode()
    def hidden(self, token_ids: Tensor, state: AttentionState) -> Tensor:
        """Like `read`, and the last hidden states [batch, tokens, hidden]."""
        return torch.cat([self._pass(part, state) for part in self._parts(token_ids, state)], 1)

    @torch.inference_mode()
    def logits(self, token_ids: Tensor, state: AttentionState, keep: Literal["last", "all"] = "last") -> Tensor:
        """Like `read`, and the logits in fp32: [batch, 1 or tokens, vocabulary]."""
        if keep == "all":
            return self.head(self.hidden(token_ids, state))
        rows = token_ids if token_ids.dim() == 2 else token_ids[None]
        if rows.shape[1] == 1 and rows.shape[0] <= MAX_ROWS and (step := self._packed_step()) is not None:
            return step.logits(self._pass(rows, state, step.hidden)[:, 0])[:, None]
        last = None
        for part in self._parts(token_ids, state):
            last = self._pass(part, state)[:, -1:].clone(memory_format=torch.contiguous_format)
        assert last is not None, "there are tokens to read"
        return self.head(last)

    @torch.inference_mode()
    def logits_of(self, steps: Sequence[DecodeStep]) -> list[Outcome]:
        """Several states each read a token, in one forward pass: of each the logits in fp32 [1, 1, vocabulary], or what
        its state raised, which does the others no harm. A single step is what `logits` does, to the last bit; rows of
        several may differ from that by rounding. Raises what is nobody's own; no state can go on then.

        On a GPU it is a recorded pass (livingkv.decoding) wherever the states allow; that differs by rounding, too. A
        step's sampler has then picked, all of them at once, and its token is given in place of logits."""
        recorded = self._recorded(steps)
        if recorded is not None:
            return recorded
        if len(steps) == 1:
            token = torch.tensor([steps[0].token], device=self.model.device)
            try:
                return [self.logits(token, steps[0].state)]
            except Exception as error:  # the edge of a row: told to whoever asked for it
                return [error]
        rows = BatchedDecode([step.state for step in steps])
        tokens = torch.tensor([[step.token] for step in steps], device=self.model.device)
        logits = self.logits(tokens, rows)  # [rows, 1, vocabulary]
        return [error or logits[row : row + 1] for row, error in enumerate(rows.errors)]

    def step(self, token: int, state: AttentionState) -> Tensor:
        """Read one token: the logits in fp32 [1, 1, vocabulary]. `join` may do it together with steps of others."""
        logits = self._step(DecodeStep(token, state))
        assert not isinstance(logits, int), "nobody was asked to pick"
        return logits

    def next_token(self, token: int, state: AttentionState, sampler: Sampler) -> int:
        """Read one token as `step` does, and have the next one picked."""
        picked = self._step(DecodeStep(token, state, sampler if sampler.is_common else None))
        return picked if isinstance(picked, int) else sampler.pick(picked[0, -1])

    def _step(self, step: DecodeStep) -> Tensor | int:
        joined = None if self._is_whole else self.join(step)
        if joined is None:
            (outcome,) = self.logits_of([step])
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
        self.n_prefilled += 1
        self.n_passes += 1
        return joined

    @torch.inference_mode()
    def prepare(self, n_rows: int) -> None:
        """Record decode steps of up to so many states now, where they are recorded at all; else the first step does,
        and takes seconds."""
        if (decoder := self._decoder()) is not None:
            decoder.prepare(n_rows)

    def _decoder(self) -> Decoder | None:
        if not self._shared.has_asked:
            self._shared.has_asked = True
            self._shared.decoder = decoder_for(self.model, self._probe, self.head)
        return self._shared.decoder

    def _recorded(self, steps: Sequence[DecodeStep]) -> list[Outcome] | None:
        """See `logits_of`: by a recorded pass. None, and nothing was read, where that cannot be."""
        decoder = self._decoder() if self.records else None
        if decoder is None:
            return None
        self.let_others()
        outcomes = decoder.run(steps)
        if outcomes is not None:
            self.n_prefilled += len(steps)
            self.n_passes += 1
        return outcomes

    def _probe(self, token_ids: Tensor, space: AttentionState) -> Tensor:
        """The last token's logits [vocabulary], for comparison: counted nowhere."""
        counted = self.n_prefilled, self.n_passes, self._clock
        self._clock = PassClock(self.model.device)
        with self.uninterrupted():
            logits = self.logits(token_ids, space)[0, -1]
        self.n_prefilled, self.n_passes, self._clock = counted
        return logits

    @torch.inference_mode()
    def head(self, hidden: Tensor) -> Tensor:
        """Logits in fp32 of last hidden states [..., hidden], scaled as the model scales them."""
        # a single row with a wide batch stride takes a slow path of PyTorch: 740 ms instead of 10 for 150,000 words
        rows = hidden.reshape(-1, hidden.shape[-1])
        logits: Tensor = self._network.get_output_embeddings()(rows).float().view(*hidden.shape[:-1], -1)
        factor = logit_factor(self._network.config)
        return logits if factor == 1.0 else logits * factor

    def log_likelihood(self, token_ids: Tensor, state: AttentionState, *, n_scored: int) -> float:
        """Read `token_ids` [tokens]; the natural log-probability of the last `n_scored`, each after those before it.

        At least one token comes before them.
        """
        hidden = self.hidden(token_ids, state)[0, -n_scored - 1 : -1]
        total = 0.0
        for part, words in zip(torch.split(hidden, _SLICE), torch.split(token_ids[-n_scored:], _SLICE), strict=True):
            logits = self.head(part)
            total += float((logits.gather(-1, words[:, None])[:, 0] - logits.logsumexp(-1)).sum())
        return total

    def generate(self, logits: Tensor, state: AttentionState, sampler: Sampler, max_tokens: int) -> Iterator[int]:
        """Token ids one by one, the first picked from `logits` [1, 1, vocabulary]; ends before a stop token or after
        `max_tokens`. The last token yielded has not been read into the state yet."""
        token = None
        for _ in range(max_tokens):
            token = sampler.pick(logits[0, -1]) if token is None else self.next_token(token, state, sampler)
            if token in self.model.stop_ids:
                return
            yield token

    def _parts(self, token_ids: Tensor, state: AttentionState) -> Iterator[Tensor]:
        batch = token_ids if token_ids.dim() == 2 else token_ids[None]
        done = 0
        while done < batch.shape[1]:
            part = batch[:, done : done + state.room]
            done += part.shape[1]
            yield part

    def _packed_step(self) -> PackedStep | None:
        """What generates from packed weights, made by the first step; None where the model's own weights do."""
        bits, tried = self.model.decode_weights, self._shared.packed
        if bits not in tried:
            tried[bits] = None  # also where making it raises
            tried[bits] = step_for(self.model, self._modules, self.head)
        return tried[bits]

    def _modules(self, token_ids: Tensor, state: AttentionState) -> Tensor:
        """The network's own modules: the last hidden states [batch, tokens, hidden]."""
        hidden: Tensor = self._base(
            input_ids=token_ids,
            position_ids=torch.arange(token_ids.shape[1], device=token_ids.device)[None],
            use_cache=False,
            livingkv_state=state,
        ).last_hidden_state
        return hidden

    def _pass(
        self,
        token_ids: Tensor,
        state: AttentionState,
        compute: Callable[[Tensor, AttentionState], Tensor] | None = None,
    ) -> Tensor:
        """One forward pass: the last hidden states [batch, tokens, hidden], by `compute` or the network's modules."""
        if not self._is_whole:
            self.between()
        n = token_ids.shape[1]
        begun = self._clock.now() if n >= _TIMED_TOKENS else None
        state.begin(n)
        hidden = (compute or self._modules)(token_ids, state)
        state.finish(n)
        self.n_prefilled += n * token_ids.shape[0]
        self.n_passes += 1
        if begun is not None:
            self._clock.add(n * token_ids.shape[0], begun)
        return hidden
