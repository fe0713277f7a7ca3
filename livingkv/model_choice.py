"""Which model a memory is to load, and how, before it is loaded.

Knows what a store's fingerprint says of that; knows nothing of where models come from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from livingkv.model_fetch import Progress
from livingkv.models import AskedDualChunk, DualChunk, LoadedModel, Weights, load_model
from livingkv.store import Fingerprint

_WEIGHTS_OF_DTYPE: dict[str, Weights] = {"float32": "fp32"}
"""bfloat16 is read by all that is left; what generation reads is no store's (docs/decisions/0029)."""


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The arguments of `load_model` that a person chooses; None leaves one to the store, or to the default for a new
    one. What differs from what the store was written with is refused when the model is loaded. dual_chunk: True for the
    rules of the model's config, False for none. experts_ram_bytes, experts_pack: as in `load_model`; no store
    remembers them."""

    spec: str | Path | None = None
    weights: Weights | None = None
    dual_chunk: DualChunk | bool | None = None
    experts_ram_bytes: int | None = None
    experts_pack: str | Path = "auto"

    @classmethod
    def of(cls, model: str | ModelChoice | None) -> ModelChoice:
        """A choice as such; a spec or None as the choice of that alone."""
        return model if isinstance(model, ModelChoice) else cls(model)

    def as_in(self, fingerprint: Fingerprint, spec: str) -> ModelChoice:
        """What was left open, filled in with what a store was written with; `spec` finds its model."""
        weights, dual_chunk = self.weights, self.dual_chunk
        if weights is None:
            packed: dict[str, Weights] = {"8bit": "8bit", "4bit": "4bit"}
            weights = packed.get(fingerprint.quantization) or _WEIGHTS_OF_DTYPE.get(fingerprint.dtype)
        if dual_chunk is None:
            sizes = re.search(r"\bdual_chunk=(\d+)/(\d+)/(\d+)", fingerprint.rope)
            dual_chunk = DualChunk(*map(int, sizes.groups())) if sizes else False
        chosen = self.spec if self.spec is not None else spec
        return replace(self, spec=chosen, weights=weights, dual_chunk=dual_chunk)

    def load(self, progress: Progress | None = None) -> LoadedModel:
        """Find and load it. Blocks and raises as `load_model`; InputError where wanted rules are not in the config."""
        asked = self.dual_chunk
        rules: AskedDualChunk = ("config" if asked else "off") if isinstance(asked, bool) else asked
        return load_model(
            self.spec,
            weights=self.weights,
            dual_chunk=rules,
            experts_ram_bytes=self.experts_ram_bytes,
            experts_pack=self.experts_pack,
            progress=progress,
        )
