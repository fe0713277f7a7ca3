"""Made tests/data/v1 once: `python -m tests.data.make_v1 FOLDER`. The files are kept as they are; never make them anew.

Every kind of record and row of version 1 is in it: two roles, a fork, a rename, dropped, restored and forgotten pages,
a forgotten sentence, a text-only session, a pinned one, weights, a tail.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from pathlib import Path

from livingkv.store import Store
from tests.store.store_cases import SessionModel, make_append, new_store


def facts(store: Store) -> list[dict[str, object]]:
    """What the store holds, as JSON."""
    found: list[dict[str, object]] = []
    for row in store.sessions():
        missing = store.missing_pages(row.session_id)
        present = [page for page in range(row.n_sealed_tokens // 4) if page not in missing]
        own = [each for each in store.sentences_after(None, 1 << 20) if each.session_id == row.session_id]
        found.append(
            {
                "row": [row.session_id, row.name, row.n_tokens, row.n_sentences, row.n_turns, row.created_s],
                "flags": [row.text_only, row.needs_tail, row.pinned],
                "sources": [
                    [each.name, each.digest, each.n_bytes, each.complete] for each in store.sources(row.session_id)
                ],
                "ids": store.token_ids(row.session_id, 0, row.n_tokens).tolist(),
                "text": store.text(row.session_id).hex(),
                "missing": missing,
                "pages": [page.hex() for page in store.read_pages(row.session_id, present)],
                "tail": None if row.needs_tail else store.read_tail(row.session_id)[1].hex(),
                "sentences": [[each.sentence_id, each.source, each.role, each.raw.hex()] for each in own],
                "gaps": [list(gap) for gap in store.gaps(row.session_id)],
            }
        )
    return found


def main(folder: Path) -> None:
    """Make the store, the exported session, and what they must hold."""
    rng = random.Random(1)
    with new_store(folder / "store", segment_bytes=6000) as store:
        models = [SessionModel(store.create_session(name).session_id, name) for name in ("main", "other")]
        models.append(SessionModel(store.create_session("log", kv=False).session_id, "log"))
        for number in range(12):
            model = models[number % 3]
            append = make_append(model, rng, n_tokens=9, source=rng.choice(["book", "notes"]))
            store.append(replace(append, pages=(), tail=b"") if number % 3 == 2 else append)
            models[number % 3] = model.applied(append)
        store.fork(1, "fork")
        store.rename(2, "renamed")
        store.pin(2)
        store.drop_pages(2, [1, 3, 4])
        store.replace_pages(2, {3: models[1].pages[3]})
        own = [each.sentence_id for each in store.sentences_after(None, 999) if each.session_id == 1]
        store.recharge(own[:1])
        store.forget_sentences(own[1:2])
        store.export_session(2, folder / "renamed.lkv")
        (folder / "facts.json").write_text(json.dumps(facts(store), indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
