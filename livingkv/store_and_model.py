"""The store and the model of one memory, each open from its first use on, and agreeing with one another.

Knows fingerprints, labels and codecs; knows no index, no hot window and no question. A store that does not exist is
made by the first write, because its fingerprint needs a model.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from livingkv.codec_gate import require_codec
from livingkv.engine import Engine
from livingkv.errors import RecordDamaged, SettingError, StoreNotFound, StoreUnwritable
from livingkv.model_choice import ModelChoice
from livingkv.model_fetch import Progress
from livingkv.models import LoadedModel
from livingkv.settings import DEFAULT_CODEC, CodecName, Settings
from livingkv.store import Store, require_place


class StoreAndModel:
    """Base of `Home`: what everything else in it stands on. Not thread-safe."""

    def __init__(
        self,
        path: Path,
        model: str | ModelChoice | LoadedModel | None,
        settings: Settings | None,
        *,
        read_only: bool,
        create: bool,
    ) -> None:
        self.path = path
        self.read_only = read_only
        self.load_ms = 0.0
        self._model = model
        self._asked_settings = settings
        self._closing = contextlib.ExitStack()
        self._store: Store | None = None
        self._engine: Engine | None = None
        self._codec_fits = False
        with contextlib.ExitStack() as undo:
            undo.callback(self._closing.close)
            self._open(path, model, create=create)
            undo.pop_all()

    def _open(self, path: Path, model: str | ModelChoice | LoadedModel | None, *, create: bool) -> None:
        try:
            self._store = Store.open(
                path, mode="read" if self.read_only else "write", key_folder=self.settings.key_folder
            )
        except StoreNotFound:
            if self.read_only or not create:
                raise
        else:
            self._closing.callback(self._store.close)
            self._agree(self._store)
            if not self.read_only:
                self._limit_disk(self._store)
        if isinstance(model, LoadedModel) and self._store is not None:
            self._store.fingerprint.require(self.engine().fingerprint(), path)

    @property
    def settings(self) -> Settings:
        """The settings in force, with the span of the store where there is one."""
        asked = self._asked_settings or Settings()
        return asked if self._store is None else replace(asked, span_tokens=self._stored_span(self._store, asked))

    def _stored_span(self, store: Store, asked: Settings) -> int:
        """How far the store's documents look back; those of an earlier livingkv, the whole hot window."""
        known = self._number_label(store, "span_tokens")
        return asked.window_tokens if known is None else known

    def _number_label(self, store: Store, name: str) -> int | None:
        """A label that is a number; None where the store has none. Raises RecordDamaged where it is no number."""
        label = store.labels.get(name)
        if label is None or (label.isascii() and label.isdigit()):
            return None if label is None else int(label)
        raise RecordDamaged(f"{self.path}: the label {name!r} of its manifest is no number; restore it from a backup")

    @property
    def n_sinks(self) -> int:
        """How many first tokens of a session are always attended: a property of the store."""
        known = self._number_label(self.store(), "n_sinks")
        return len(self.engine().words.framing.prologue) if known is None else known

    @property
    def model_label(self) -> str:
        """What the store's model is found by."""
        return self._label("model")

    def _label(self, name: str) -> str:
        label = self.store().labels.get(name)
        if label is None:
            raise RecordDamaged(
                f"{self.path}: its manifest lacks the label {name!r}; restore manifest.json from a backup"
            )
        return label

    @property
    def codec(self) -> CodecName:
        """The store's page codec, or that of the settings while there is no store."""
        if self._store is not None:
            return "int8" if self._store.fingerprint.codec == "int8" else "lossless"
        return self.settings.codec or DEFAULT_CODEC

    def _agree(self, store: Store) -> None:
        """Raise SettingError where codec or span are asked for and the store has others."""
        asked = self._asked_settings
        if asked is not None and asked.span_tokens not in (None, self._stored_span(store, asked)):
            held = self._stored_span(store, asked)
            allowed = f"documents of {self.path} look {held} tokens back: use that, or migrate it"
            raise SettingError("settings.span_tokens", asked.span_tokens, allowed)
        if asked is not None and asked.codec not in (None, store.fingerprint.codec):
            allowed = f"{self.path} was written with {store.fingerprint.codec}: use that, or another store path"
            raise SettingError("settings.codec", asked.codec, allowed)

    def _limit_disk(self, store: Store) -> None:
        wish = self.settings.disk_budget_bytes
        if wish is not None:
            store.limit_disk(None if wish == "unlimited" else wish)

    def store(self) -> Store:
        """The store. Raises StoreNotFound while nothing was ever written."""
        if self._store is None:
            raise StoreNotFound(f"there is no store at {self.path}: ingest something into it first")
        return self._store

    def writable_store(self) -> Store:
        """The store, made now if it does not exist; its model is checked. Raises StoreUnwritable when opened
        read-only."""
        engine = self.ready_to_write()
        if self._store is None:
            self._store = Store.open(
                self.path,
                mode="write",
                fingerprint=engine.fingerprint(),
                create=True,
                labels=engine.labels() | {"span_tokens": str(self.settings.document.window_tokens)},
                key_folder=self.settings.key_folder,
            )
            self._closing.callback(self._store.close)
            self._limit_disk(self._store)
        return self._store

    @property
    def has_store(self) -> bool:
        """False while nothing was ever written."""
        return self._store is not None

    @property
    def loaded_engine(self) -> Engine | None:
        """The model if it is loaded already."""
        return self._engine

    def ready_to_write(self, progress: Progress | None = None) -> Engine:
        """The model, and nothing in the way of writing that can be known before; nothing is changed.

        Raises StoreUnwritable, StoreError for somebody else's folder, ModelError or FingerprintMismatch.
        """
        if self.read_only:
            raise StoreUnwritable(f"{self.path} was opened read-only: open it for writing")
        if self._store is None:
            require_place(self.path)
        engine = self.engine(progress)
        if self._store is None and not self._codec_fits:
            require_codec(engine)
            self._codec_fits = True
        return engine

    def engine(self, progress: Progress | None = None) -> Engine:
        """The model, loaded now if need be, and checked against the store. Raises ModelError or FingerprintMismatch."""
        if self._engine is None:
            started = perf_counter()
            model = self._model
            if not isinstance(model, LoadedModel):
                choice = ModelChoice.of(model)
                if self._store is not None:
                    choice = choice.as_in(self._store.fingerprint, str(choice.spec or self.model_label))
                model = choice.load(progress)
                self._closing.callback(model.close)
            if self.settings.placement == "dual_chunk" and model.dual_chunk is None:
                allowed = "a model with dual-chunk positions is needed; compact and absolute work with every model"
                raise SettingError("settings.placement", "dual_chunk", allowed)
            engine = Engine.of(model, self.codec)
            if self._store is not None:
                self._store.fingerprint.require(engine.fingerprint(), self.path)
            self._engine = engine
            self.load_ms += (perf_counter() - started) * 1000.0
        return self._engine

    def close(self) -> None:
        """Close the store, and the model if it was loaded here. A second call does nothing."""
        self._closing.close()
