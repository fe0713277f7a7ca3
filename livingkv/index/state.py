"""The one record that says what an index holds: it is committed together with the lexical documents.

Knows the fields and their JSON; a version it does not know is refused.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields

from livingkv.errors import IndexDamaged
from livingkv.index.analysis import ANALYSIS_VERSION
from livingkv.json_fields import FieldError, Fields

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class IndexState:
    """What is durable in an index.

    high_water: the caller's mark of how far it has fed the index, None before the first commit.
    last_id: the highest sentence id that was ever committed.
    n_sentences, n_terms: how many there are; after a removal the terms are an estimate, for they serve a mean.
    embedder_id, dimension: of the vectors; None when there is no dense channel.
    vector_file, vector_bytes: where the vectors lie, and how many bytes of that file count.
    """

    format: int = FORMAT_VERSION
    analysis: int = ANALYSIS_VERSION
    high_water: int | None = None
    last_id: int | None = None
    n_sentences: int = 0
    n_terms: int = 0
    embedder_id: str | None = None
    dimension: int | None = None
    vector_file: str | None = None
    vector_bytes: int = 0

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> IndexState:
        """The state; IndexDamaged when it is of another version or not a state at all."""
        try:
            given = Fields.read(line)
            versions = (given.integer("format"), given.integer("analysis"))
            if versions != (FORMAT_VERSION, ANALYSIS_VERSION) or given.names != {field.name for field in fields(cls)}:
                ours = f"format {FORMAT_VERSION} and term analysis {ANALYSIS_VERSION}"
                lines = f"the index was written in versions {versions}, not {ours}; rebuild it from the store"
                raise IndexDamaged(lines)
            return cls(
                high_water=given.integer("high_water") if given.has("high_water") else None,
                last_id=given.integer("last_id") if given.has("last_id") else None,
                n_sentences=given.integer("n_sentences"),
                n_terms=given.integer("n_terms"),
                embedder_id=given.text("embedder_id", stray_bytes=True) if given.has("embedder_id") else None,
                dimension=given.integer("dimension", lo=1) if given.has("dimension") else None,
                vector_file=given.text("vector_file") if given.has("vector_file") else None,
                vector_bytes=given.integer("vector_bytes"),
            )
        except FieldError as error:
            raise IndexDamaged(f"the index holds no readable state ({error}); rebuild it from the store") from error
