"""What a service has once its model is loaded: engine, stores, limits.

Knows how they are made of options and a model; knows no request.
"""

from __future__ import annotations

import torch

from livingkv.embedder_choice import make_embedder
from livingkv.engine import Engine
from livingkv.errors import UnsupportedModel
from livingkv.model_choice import ModelChoice
from livingkv.models import LoadedModel
from livingkv.sampling import Sampler, Sampling
from livingkv.server.counters import Counters
from livingkv.server.embedding import Embedding
from livingkv.server.jobs import Jobs
from livingkv.server.joining import Joining
from livingkv.server.limits import TurnLimits
from livingkv.server.options import ServerOptions
from livingkv.server.settings import cancellable_settings
from livingkv.server.tenants import Tenants
from livingkv.server.token_texts import TokenTexts
from livingkv.settings import DEFAULT_CODEC
from livingkv.state_model import StateModel, load_state_model


class Parts:
    """What there is once the model is loaded. Used on the inference thread only, but for names and limits."""

    def __init__(
        self, options: ServerOptions, model: LoadedModel, counters: Counters, jobs: Jobs, joining: Joining
    ) -> None:
        self.model = model
        self.settings = cancellable_settings(options.settings, model.device, streamed=model.experts is not None)
        self.engine = Engine.of(model, options.settings.codec or DEFAULT_CODEC)
        joining.take_part(self.engine.runner)
        self._max_batch = options.max_batch
        self.texts = TokenTexts(model.tokenizer)
        self.limits = TurnLimits.of(options, model.shape.native_context)
        self.tenants = Tenants(options.folder, model, self.settings, joining, counters, jobs.writes_to)
        self.embedding = Embedding(self.engine, self.limits)

    def warm_up(self) -> None:
        """Generate two tokens, the second by a decode step, and record those of several replies where they are
        recorded; ready means that this works. Raises ModelNotFound or ModelDamaged for an embedder of the settings that
        cannot be had."""
        if self.settings.embedder is not None:
            make_embedder(self.engine, self.settings.embedder)
        words = self.engine.words
        hot = self.engine.hot_window(self.settings, len(words.framing.prologue))
        ids = torch.tensor([*words.framing.prologue, *words.framing.answer], device=self.model.device)
        for _ in self.engine.runner.generate(self.engine.runner.logits(ids, hot), hot, Sampler(Sampling()), 2):
            pass
        self.engine.runner.prepare(self._max_batch)


def load_for_service(choice: ModelChoice) -> LoadedModel | StateModel:
    """The model; with streamed experts also one that has no plain keys and values. Blocks; raises as `load_model`."""
    try:
        return choice.load(None)
    except UnsupportedModel as error:
        if choice.experts_ram_bytes is None:
            raise
        return load_state_model(choice, str(error))
