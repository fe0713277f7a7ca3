"""How long a probe takes in a large index, and what approximate search would lose.

    python experiments/009_index_scale/run.py MODEL_FOLDER [--sentences 1000000] [--approximate 300000]

Docstring sentences, then pairs of them joined, embedded by the mean of the model's input embeddings; and vectors drawn
around random centres. A probe is words, meaning and fusion as `Index.probe` has them. Times are of the process's CPU
(what one core does) and of the clock, because a machine may be busy with other work. Approximate search: sign bits with
exact scores for the first k, and faiss's inverted lists, each against exact search over the same codes: recall at 10.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import faiss
import numpy as np
import numpy.typing as npt
import typer
from rich.progress import track
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.haystack import PHRASINGS, make_needles, shuffled_filler  # noqa: E402
from experiments.provenance import circumstances, write_json  # noqa: E402
from livingkv.index import Entry, Index, TokenEmbedder, map_embedding_matrix  # noqa: E402
from livingkv.index.dense import vector_codes  # noqa: E402

HERE = Path(__file__).parent
SEED = 1
BATCH = 5000
N_NEEDLES = 20
FAISS: Any = faiss
Codes = npt.NDArray[np.uint8]


def main(
    model: Annotated[Path, typer.Argument(help="Hugging Face folder: tokenizer.json and safetensors.")],
    sentences: Annotated[int, typer.Option(help="Sentences in the index.")] = 1_000_000,
    approximate: Annotated[int, typer.Option(help="Vectors for approximate search.")] = 300_000,
) -> None:
    """Run everything and write result.json beside this file."""
    faiss.omp_set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    embedder = TokenEmbedder(
        map_embedding_matrix(model), lambda text: tokenizer.encode(text, add_special_tokens=False).ids, name=model.name
    )
    result: dict[str, Any] = {"circumstances": circumstances(), "seed": SEED, "model": model.name}
    result["approximate"] = {
        "token embeddings": approximations(*embedded(embedder, approximate)),
        "around 2,000 random centres": approximations(*drawn(approximate, 384)),
    }
    print(json.dumps(result["approximate"], indent=1))
    with tempfile.TemporaryDirectory() as folder:
        result["probe"] = probes(Path(folder), embedder, sentences)
    print(json.dumps(result["probe"], indent=1))
    write_json(HERE / "result.json", result)


def questions() -> list[str]:
    """Questions for needles, in three phrasings."""
    return [needle.question(number) for needle in make_needles(N_NEEDLES, seed=SEED) for number in PHRASINGS]


def long_questions(n_words: int) -> list[str]:
    """Ten questions of so many words."""
    words = (word for text in shuffled_filler(SEED + 1) for word in text.rstrip(".").split())
    return [" ".join(itertools.islice(words, n_words)) + "?" for _ in range(10)]


def probes(folder: Path, embedder: TokenEmbedder, n: int) -> dict[str, Any]:
    """Build time, size, and the milliseconds of a probe as a whole and of its parts."""
    started, cpu = time.perf_counter(), time.process_time()
    with Index.recreate(folder, embedder) as index:
        for lo, texts in batches(n):
            index.add(Entry(lo + row, row % 7, text) for row, text in enumerate(texts))
            index.commit(lo + len(texts) - 1)
    built = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}
    with Index.open(folder, embedder, "read") as index:
        opened = timed([lambda: index.load()])
        kinds = {"needles": questions(), **{f"{k} words": long_questions(k) for k in (40, 100, 200)}}
        rows = {kind: timed([probe_of(index, text) for text in asked]) for kind, asked in kinds.items()}
        sessions = frozenset({2, 3})
        with patch("livingkv.index.word_search.MOST_TERMS", 1 << 20):
            for kind in ("needles", "40 words", "100 words", "200 words"):
                rows[f"{kind}, all terms"] = timed([probe_of(index, text) for text in kinds[kind]])
        rows["needles, two sessions of seven"] = timed([probe_of(index, text, sessions) for text in questions()])
        return {"n_sentences": index.n_sentences, "built": built, "first_load": opened, "probes": rows,
                "bytes_per_sentence": index.size_bytes / index.n_sentences}  # fmt: skip


def probe_of(index: Index, text: str, sessions: frozenset[int] | None = None) -> Callable[[], object]:
    """A probe to be timed."""
    return lambda: index.probe(text, limit=8, session_ids=sessions)


def timed(calls: Sequence[Callable[[], object]]) -> dict[str, float]:
    """Milliseconds of each call: the process's CPU and the clock."""
    cpus, clocks = [], []
    for call in calls:
        cpu, clock = time.process_time(), time.perf_counter()
        call()
        cpus.append((time.process_time() - cpu) * 1000)
        clocks.append((time.perf_counter() - clock) * 1000)
    return {
        "n": len(calls),
        "cpu_ms_median": statistics.median(cpus),
        "cpu_ms_max": max(cpus),
        "clock_ms_median": statistics.median(clocks),
        "clock_ms_max": max(clocks),
    }


def batches(n: int) -> Iterator[tuple[int, list[str]]]:
    """The first `n` sentences of filler, with the number of the first of each batch."""
    filler = shuffled_filler(SEED)
    for lo in track(range(0, n, BATCH), "sentences"):
        yield lo, list(itertools.islice(filler, min(BATCH, n - lo)))


def embedded(embedder: TokenEmbedder, n: int) -> tuple[Codes, Codes]:
    """Codes of sentences and of questions."""
    codes = np.concatenate([vector_codes(embedder.embed(texts)) for _, texts in batches(n)])
    return codes, vector_codes(embedder.embed(questions()))


def drawn(n: int, dimension: int) -> tuple[Codes, Codes]:
    """Codes of unit vectors around random centres, and sixty more as questions."""
    generator = np.random.default_rng(SEED)
    centres = generator.standard_normal((2000, dimension), dtype=np.float32)
    rows = centres[generator.integers(0, 2000, n + 60)] + 0.7 * generator.standard_normal(
        (n + 60, dimension), dtype=np.float32
    )
    codes = vector_codes(rows / np.linalg.norm(rows, axis=1, keepdims=True))
    return codes[:n], codes[n:]


def approximations(codes: Codes, asked: Codes) -> dict[str, Any]:
    """Recall at 10 and CPU milliseconds of exact search, sign bits and inverted lists."""
    n, dimension = codes.shape
    kind, product = faiss.ScalarQuantizer.QT_8bit_direct_signed, faiss.METRIC_INNER_PRODUCT
    exact = FAISS.IndexScalarQuantizer(dimension, kind, product)
    exact.add_sa_codes(codes)
    vectors = asked.astype(np.float32) - 128
    cpu, truth = searched(lambda row: exact.search(vectors[row : row + 1], 10)[0][0], len(asked))
    tenth = [scores[9] for scores in truth]
    rows: dict[str, Any] = {"n": n, "dimension": dimension, "questions": len(asked), "exact": {"cpu_ms": cpu}}
    bits, asked_bits = np.packbits(codes > 128, axis=1), np.packbits(asked > 128, axis=1)
    signs = FAISS.IndexBinaryFlat(dimension // 8 * 8)
    signs.add(bits)

    def by_signs(row: int, k: int) -> npt.NDArray[np.float32]:
        first = signs.search(asked_bits[row : row + 1], k)[1][0]
        scores: npt.NDArray[np.float32] = (codes[first].astype(np.float32) - 128) @ vectors[row]
        return scores

    for k in (512, 2048, 4096):
        cpu, found = searched(partial(by_signs, k=k), len(asked))
        rows[f"sign bits, exact for {k}"] = {"cpu_ms": cpu, "recall_at_10": recall(found, tenth)}
    rows |= inverted_lists(codes, vectors, tenth)
    return rows


def inverted_lists(codes: Codes, vectors: npt.NDArray[np.float32], tenth: Sequence[float]) -> dict[str, Any]:
    """faiss's IVF over the same codes, 1,024 lists, more and more of them searched."""
    n, dimension = codes.shape
    quantizer = FAISS.IndexFlatIP(dimension)
    kind, product = faiss.ScalarQuantizer.QT_8bit_direct_signed, faiss.METRIC_INNER_PRODUCT
    lists = FAISS.IndexIVFScalarQuantizer(quantizer, dimension, 1024, kind, product, False)
    lists.cp.niter, lists.cp.spherical = 6, True
    sample = np.sort(np.random.default_rng(SEED).choice(n, min(n, 40 * 1024), replace=False))
    lists.train(codes[sample].astype(np.float32) - 128)
    for lo in range(0, n, 20_000):
        lists.add(codes[lo : lo + 20_000].astype(np.float32) - 128)
    rows = {}
    for n_probes in (32, 128, 256, 512):
        lists.nprobe = n_probes
        cpu, found = searched(lambda row: lists.search(vectors[row : row + 1], 10)[0][0], len(vectors))
        rows[f"inverted lists, {n_probes} of 1024"] = {"cpu_ms": cpu, "recall_at_10": recall(found, tenth)}
    return rows


def searched(search: Callable[[int], Any], n: int) -> tuple[float, list[Any]]:
    """CPU milliseconds for each of `n` searches, and what they found."""
    cpu = time.process_time()
    found = [search(row) for row in range(n)]
    return (time.process_time() - cpu) * 1000 / n, found


def recall(found: Sequence[npt.NDArray[np.float32]], tenth: Sequence[float]) -> float:
    """The share of the ten best that were found, by their scores."""
    hits = [min(10, int((scores >= least).sum())) for scores, least in zip(found, tenth, strict=True)]
    return sum(hits) / (10 * len(hits))


if __name__ == "__main__":
    typer.run(main)
