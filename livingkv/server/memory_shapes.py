"""The library's results in the shapes of the memory routes: hits, sentences, answers, usage, counts.

Knows the shapes (docs/API.md); knows no store and no HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from livingkv.models import LoadedModel
from livingkv.results import Answer, Evidence, Forgotten, Hit, Stats, StoredSentence, TierStats
from livingkv.server.job_results import receipt_json
from livingkv.server.owners import session_of, user_of
from livingkv.server.recollection import Recollection

Json = dict[str, Any]


def _placed(found: Hit | Evidence | StoredSentence) -> Json:
    """What hits and sentences have in common."""
    return {
        "id": None if found.sentence_id is None else str(found.sentence_id),
        "session": session_of(found.session),
        "user": user_of(found.session) or None,
        "text": found.text,
        "source": found.source,
        "role": found.role,
        "positions": list(found.tokens),
    }


def shown_hit(hit: Hit | Evidence) -> Json:
    """A hit; of an answer's evidence the whole passage, with the id and the scores of its best sentence."""
    return _placed(hit) | {
        "score": hit.score,
        "lexical": hit.lexical,
        "semantic": hit.semantic,
        "lexical_rank": hit.lexical_rank,
        "semantic_rank": hit.semantic_rank,
        "coverage": hit.coverage,
    }


def shown_sentence(sentence: StoredSentence) -> Json:
    """A stored sentence."""
    return _placed(sentence) | {
        "weight": sentence.weight,
        "recalls": sentence.n_recalls,
        "recalled_s": sentence.recalled_s,
        "created_s": sentence.created_s,
    }


def shown_answer(answer: Answer) -> Json:
    """What /v1/memory/ask answers."""
    return {
        "answer": answer.answer,
        "mode": answer.mode,
        "reason": answer.reason,
        "confident": answer.confident,
        "confidence": answer.confidence,
        "evidence": [shown_hit(each) for each in answer.evidence],
        "usage": usage(answer.prefilled_tokens, answer.reused_tokens, answer.generated_tokens),
        "timings_ms": asdict(answer.timings_ms),
    }


def shown_recollection(found: Recollection) -> Json:
    """What a chat completion tells of memory: who gave the reply, how sure memory was, and from what."""
    answer, is_given = found.answer, found.words is not None
    return {
        "recall": found.recall,
        "source": "memory" if is_given else "model",
        "confident": None if answer is None else is_given,
        "confidence": None if answer is None else answer.confidence,
        "mode": answer.mode if answer is not None and is_given else None,
        "reason": found.reason,
        "evidence": [shown_hit(each) for each in answer.evidence] if answer is not None and is_given else [],
        "usage": usage(found.n_prefilled, found.n_reused, found.n_generated),
    }


def usage(n_prefilled: int, n_cached: int, n_generated: int) -> Json:
    """Tokens that went through the model, stored ones that were attended, and generated ones."""
    n_prompt = n_prefilled + n_cached
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_generated,
        "total_tokens": n_prompt + n_generated,
        "prompt_tokens_details": {"cached_tokens": n_cached},
    }


def shown_turn(
    session: str,
    sentence_ids: Iterable[int],
    answer: Answer | None,
    hits: Sequence[Hit],
    reason: str,
    used: Json,
    seconds: Mapping[str, float],
) -> Json:
    """What a turn stored and recalled. used: from `usage`; seconds: by step."""
    return {
        "session": session,
        "stored": [str(each) for each in sentence_ids],
        "recalled": shown_hits(hits),
        "confident": answer is not None and answer.confident,
        "confidence": 0.0 if answer is None else answer.confidence,
        "answer": None if answer is None else answer.answer,
        "mode": None if answer is None else answer.mode,
        "reason": reason,
        "usage": used,
        "timings_ms": {step: each * 1000 for step, each in seconds.items()},
    }


def shown_counts(receipt: Forgotten) -> Json:
    """What would go, of a dry run; as in its receipt."""
    shown = receipt_json(receipt)
    return {"counts": shown["counts"], "bytes": {"text": shown["bytes"]["text"]}}


def shown_stats(
    stats: Stats | None, tiers: TierStats | None, device_bytes: int, model: LoadedModel, version: str
) -> Json:
    """A store's counts and bytes; None where nothing was ever stored. tiers: since the service opened it; None where
    no page was asked for yet."""
    return {
        "sessions": 0 if stats is None else stats.n_sessions,
        "tokens": 0 if stats is None else stats.n_tokens,
        "sentences": 0 if stats is None else stats.n_sentences,
        "pages": 0 if stats is None else stats.n_pages,
        "bytes": 0 if stats is None else stats.size_bytes,
        "bytes_by_part": {} if stats is None else stats.bytes_by_part,
        "held_bytes": 0 if stats is None else stats.held_bytes,
        "disk_budget_bytes": None if stats is None else stats.disk_budget_bytes,
        "bytes_per_token": None if stats is None else stats.bytes_per_token,
        "bf16_bytes_per_token": None if stats is None else stats.bf16_bytes_per_token,
        "codec": None if stats is None else stats.codec,
        "tiers": None if tiers is None else asdict(tiers),
        "device_bytes": device_bytes,
        "model": model.name,
        "backend": "whole" if model.experts is None else "experts",
        "version": version,
    }


def shown_hits(hits: Sequence[Hit | Evidence]) -> list[Json]:
    """Hits, best first."""
    return [shown_hit(hit) for hit in hits]
