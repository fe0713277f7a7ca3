"""A loaded model with everything that a memory needs of it: runner, words, codec, fingerprint.

Knows how the parts fit together; knows no store and no session. One engine may serve many stores of its codec.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from livingkv.codec import PageCodec, PageShape, make_codec
from livingkv.device_numbers import numbers_on
from livingkv.device_rows import DeviceRows
from livingkv.framing import Words
from livingkv.hot_window import HotWindow
from livingkv.index import TokenEmbedder
from livingkv.model_sources import cache_folder
from livingkv.models import LoadedModel
from livingkv.page_gate import with_kernels
from livingkv.pass_size import device_bytes, fitting_tokens
from livingkv.positions import shift
from livingkv.runner import Runner
from livingkv.settings import PAGE_TOKENS, CodecName, LookBack, Settings
from livingkv.state_embedder import StateEmbedder
from livingkv.store import Fingerprint
from livingkv.workspace import Workspace

PAGE_FORMAT = 1
"""Version of the page bytes, part of every fingerprint. Codecs check it in each page's header."""


@dataclass(frozen=True, eq=False)
class Engine:
    """Made by `Engine.of`. Not thread-safe: one forward pass at a time."""

    model: LoadedModel
    runner: Runner
    words: Words
    shape: PageShape
    codec: PageCodec

    @classmethod
    def of(cls, model: LoadedModel, codec: CodecName) -> Engine:
        """Takes the model's network over (see Runner). A codec is made, and its kernels compared, once for a model."""
        shape = PageShape(model.shape.n_layers, model.shape.n_kv_heads, model.shape.head_dim, model.dtype)
        if codec not in model.codecs:
            made = make_codec(codec, shape, model.key_bias, model.rope)
            model.codecs[codec] = with_kernels(made, model.rope, model.device)
        return cls(
            model=model,
            runner=Runner(model),
            words=Words(model.tokenizer),
            shape=shape,
            codec=model.codecs[codec],
        )

    def fingerprint(self) -> Fingerprint:
        """What a store must have been written with for its KV to mean anything to this engine."""
        return Fingerprint(
            model=self.model.model_digest,
            tokenizer=self.model.tokenizer_digest,
            rope=self.model.rope_text,
            dtype=str(self.model.dtype).removeprefix("torch."),
            quantization=self.model.quantization,
            codec=self.codec.name,
            page_tokens=PAGE_TOKENS,
            format=PAGE_FORMAT,
        )

    def labels(self) -> dict[str, str]:
        """What a new store notes about its model besides the fingerprint: what finds it again, the number of
        sinks, the size of KV."""
        shape = self.model.shape
        return {
            "model": self.model.spec,
            "n_sinks": str(len(self.words.framing.prologue)),
            "bf16_bytes_per_token": str(shape.n_layers * shape.n_kv_heads * shape.head_dim * 2 * 2),
        }

    def hot_window(self, settings: Settings, n_sinks: int, look: LookBack | None = None) -> HotWindow:
        """An empty hot window for a new session of this model. look: left out, that of a conversation."""
        look = look or settings.conversation
        return HotWindow(
            self.shape,
            self.model.rope,
            self.codec,
            n_sinks=n_sinks,
            look=look,
            block_tokens=self.pass_tokens(settings, look),
            device=self.model.device,
            dual_chunk=self.model.dual_chunk,
        )

    def pass_tokens(self, settings: Settings, look: LookBack) -> int:
        """Tokens that one forward pass of this model holds at most where text looks back like `look`: as the settings
        say, of a document on a GPU no more than fit."""
        device, streamed = self.model.device, self.model.experts is not None
        on_gpu = device.type == "cuda"
        tokens = settings.pass_tokens(look, on_gpu=on_gpu, streamed=streamed)
        if on_gpu and look.grid_tokens > 1 and settings.block_tokens is None:
            return min(tokens, fitting_tokens(self.model, device_bytes(device)))
        return tokens

    def settle(self) -> None:
        """Return when the device has done what was asked of it: passes on a GPU are only launched."""
        if self.model.device.type == "cuda":
            torch.cuda.current_stream(self.model.device).synchronize()

    def embedder(self) -> TokenEmbedder:
        """The dense channel's embedder that needs no download: weighted means of the model's input embeddings. Made
        once for a model; the embeddings stay where they are."""
        if not self.model.embedders:
            rows = DeviceRows(self.model.network.get_input_embeddings().weight)
            name = f"{self.model.model_digest}:{self.model.tokenizer_digest}"
            self.model.embedders.append(TokenEmbedder(rows, self.words.encode, name=name))
        return self.model.embedders[0]

    def state_embedder(self) -> StateEmbedder:
        """The one made of the model's own states: better at meaning, and each text goes through the model once."""
        name = f"{self.model.model_digest}:{self.model.tokenizer_digest}"
        return StateEmbedder(self.runner, self.words.encode, name=name, cache=cache_folder())

    def workspace(self, capacity: int, *, dual_chunk: bool = False) -> Workspace:
        """An empty workspace; with `dual_chunk` its positions follow the model's dual-chunk rules where it has them."""
        rules = self.model.dual_chunk if dual_chunk else None
        return Workspace(self.shape, self.model.rope, capacity, self.model.device, rules)

    def on_device(self, token_ids: Sequence[int]) -> Tensor:
        """Token ids, int64 [tokens], on the model's device, which is not waited for."""
        return numbers_on(self.model.device, token_ids)

    def moved(self, keys: Tensor, delta: int) -> Tensor:
        """Stored keys [..., tokens, head_dim] rotated `delta` positions on."""
        return shift(keys, delta, self.model.rope)
