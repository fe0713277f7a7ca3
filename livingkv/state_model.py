"""A streamed model whose state is more than keys and values: what it can be talked to with, and why it has no memory.

Such are recurrent, convolutional and compressing layers, and sliding windows. Knows a folder and a choice; knows no
stores and no snapshots.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from livingkv.errors import InputError, UnsupportedModel
from livingkv.experts import StreamedModel, load_streamed
from livingkv.experts.plan import refuse_unstreamable
from livingkv.model_choice import ModelChoice
from livingkv.model_sources import find_model
from livingkv.models import device_of, dtype_of, stop_ids_of


@dataclass(frozen=True, eq=False)
class StateModel:
    """native_context: tokens that it was trained to tell apart. digest: of its files' headers, sizes and times.

    reason: why it cannot keep a memory, as `load_model` says it.
    """

    name: str
    streamed: StreamedModel
    tokenizer: Any
    stop_ids: frozenset[int]
    native_context: int
    digest: str
    reason: str

    @property
    def network(self) -> Any:
        """transformers' network."""
        return self.streamed.network

    def close(self) -> None:
        """Give back files and RAM."""
        self.streamed.close()


def load_state_model(choice: ModelChoice, reason: str) -> StateModel:
    """Load what `choice.load` refused for that reason, its experts streamed. Blocks.

    Raises UnsupportedModel where it has no experts, ModelNotFound, ModelDamaged or InputError.
    """
    if choice.weights not in (None, "bf16", "fp32"):
        raise InputError("weights", choice.weights, "bf16 or fp32 is allowed where experts are streamed")
    assert choice.experts_ram_bytes is not None, "asked for with the backend experts"
    source = find_model(choice.spec, check=refuse_unstreamable, streamed=True)
    with ExitStack() as undo:
        streamed = undo.enter_context(
            load_streamed(
                source.folder,
                ram_bytes=choice.experts_ram_bytes,
                pack=choice.experts_pack,
                device=device_of(None),
                dtype=dtype_of(choice.weights, None),
            )
        )
        if streamed.tokenizer is None:
            raise UnsupportedModel(f"{source.folder}: no tokenizer in it (tokenizer.json), so it cannot be talked to")
        network = streamed.network
        made = StateModel(
            name=source.name,
            streamed=streamed,
            tokenizer=streamed.tokenizer,
            stop_ids=stop_ids_of(network, streamed.tokenizer),
            native_context=int(network.config.max_position_embeddings),
            digest=streamed.checkpoint.fingerprint,
            reason=reason,
        )
        undo.pop_all()
    return made
