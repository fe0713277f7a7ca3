"""What jobs made, as clients see it.

Knows the library's results and the names of the API; computes nothing.
"""

from __future__ import annotations

from typing import Any

from livingkv.results import Forgotten, Ingested, Reembedded
from livingkv.server.owners import session_of
from livingkv.store import DefragReport

Result = dict[str, Any]


def ingested_json(made: Ingested) -> Result:
    """A text that was read."""
    return {
        "session": session_of(made.session),
        "source": made.source,
        "bytes": made.n_bytes,
        "tokens": made.n_tokens,
        "sentences": made.n_sentences,
        "stale_sentences": made.n_stale_sentences,
        "skipped": made.skipped,
        "seconds": round(made.seconds, 3),
    }


def receipt_json(made: Forgotten) -> Result:
    """A receipt of what was forgotten."""
    return {
        "counts": {
            "sentences": made.n_sentences,
            "tokens": made.n_tokens,
            "pages": made.n_pages,
            "keys": made.n_keys,
        },
        "bytes": {
            "text": made.n_bytes,
            "erased": made.bytes_erased,
            "freed": made.bytes_freed,
            "awaiting": made.bytes_awaiting,
        },
        "keys_left": list(made.keys_left),
    }


def reembedded_json(made: Reembedded) -> Result:
    """Vectors that were made anew."""
    return {
        "embedder": made.embedder,
        "embedder_id": made.embedder_id,
        "dimension": made.dimension,
        "sentences": made.n_sentences,
        "seconds": round(made.seconds, 3),
    }


def defragged_json(made: DefragReport) -> Result:
    """Segments that were moved together."""
    return {
        "segments": made.n_segments,
        "records": made.n_records,
        "bytes_before": made.bytes_before,
        "bytes_after": made.bytes_after,
        "problems": len(made.problems),
    }
