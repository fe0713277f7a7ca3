"""A probe of 50,000 sentences, words and meaning fused, against cosines with all of them in numpy alone."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import numpy as np
from figure import Plan, Row, run_figure
from tokenizers import Tokenizer

from experiments.haystack import PHRASINGS, make_needles, shuffled_filler
from experiments.side_by_side import in_turn, ratios, summary
from livingkv.index import Entry, Index, TokenEmbedder, map_embedding_matrix

SENTENCES = 50_000
BASELINE = "numpy, fp32 cosines with all sentences, no words"


def measure(plan: Plan) -> Iterator[Row]:
    """Sixty questions, each asked of both sides."""
    tokenizer = Tokenizer.from_file(str(plan.folder / "tokenizer.json"))
    embedder = TokenEmbedder(
        map_embedding_matrix(plan.folder),
        lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        name=plan.folder.name,
    )
    texts = list(itertools.islice(shuffled_filler(1), SENTENCES))
    vectors = embedder.embed(texts)
    with Index.recreate(plan.scratch, embedder) as index, index.filling(None) as filling:
        for lo in range(0, SENTENCES, 5000):
            batch = texts[lo : lo + 5000]
            filling.add([Entry(lo + row, row % 7, text) for row, text in enumerate(batch)], lo + len(batch) - 1)
    questions = [needle.question(number) for needle in make_needles(20, seed=1) for number in PHRASINGS]
    asked = {"ours": itertools.cycle(questions), "numpy": itertools.cycle(questions)}
    with Index.open(plan.scratch, embedder, "read") as index:
        index.load()
        cpu: list[float] = []

        def ours() -> float:
            busy = time.process_time()
            seconds = timed(lambda: index.probe(next(asked["ours"]), limit=8))
            cpu.append(1000 * (time.process_time() - busy))
            return 1000 * seconds

        def numpy() -> float:
            return 1000 * timed(lambda: np.argpartition(vectors @ embedder.embed([next(asked["numpy"])])[0], -64)[-64:])

        found = in_turn(plan.either(60, 300), {"ours": ours, BASELINE: numpy})
    yield Row(
        "probe", f"{SENTENCES:,} sentences", "ms", summary(found["ours"]), {BASELINE: summary(found[BASELINE])},
        {BASELINE: ratios(found["ours"], found[BASELINE])}, facts={"cpu_ms": summary(cpu)},
    )  # fmt: skip


def timed(call: Callable[[], object]) -> float:
    """Seconds of the clock."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


if __name__ == "__main__":
    run_figure(measure)
