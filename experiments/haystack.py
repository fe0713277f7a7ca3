"""Haystacks and needles for recall experiments: real English sentences with facts of one type hidden among them.

The sentences are the prose of docstrings in the standard library and the installed packages, read from their source
files without importing anything. Which packages are installed decides which sentences there are, so a result records
the haystack's digest. Everything else follows from the seed. The needles are those of RULER's multi-key task (arXiv
2404.06654): "One of the special magic numbers for KEY is: NUMBER."
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CountTokens = Callable[[Sequence[str]], list[int]]
"""How many tokens each of the texts has."""

PHRASINGS = {
    1: "What is the special magic number for {key}?",
    2: "Someone asked me about {key}: which seven digits belong to it?",
    3: "I forgot the secret value that goes with {key}. Which value was it?",
}

_ADJECTIVES = """
amber ancient autumn azure bitter blunt bold brave brisk broken calm careful cedar clever cloudy copper crimson
crooked curious distant dusty eager early emerald faint fierce foggy forgotten fragile frosty gentle golden hidden
hollow humble icy ivory jolly keen lazy little lonely loud lucky marble mellow misty narrow noble odd pale patient
plain polite proud quick quiet rapid restless rough royal rusty sandy scarlet secret shallow silent silver simple
sleepy slender smooth solemn sour spare steep stormy strange sturdy sudden tender tidy tiny upright velvet violet
wandering weary wild windy wooden young
"""

_NOUNS = """
acorn anchor anvil apron badger balcony barley basket beacon bell bicycle blanket bottle bridge brook bucket button
cabin candle canyon carpet castle cellar chapel cherry chimney clock cottage cradle cricket curtain drawer dune
engine falcon feather fence ferry fiddle forest fountain garden gate glacier glove hammer harbor harvest hedge
helmet island jacket kettle ladder lantern lemon library lighthouse lizard locket magnet mantle meadow mirror mitten
needle orchard otter oven paddle parrot pasture pebble pillow pocket pond puzzle quilt raven ribbon river rocket
saddle sailor shovel sparrow spoon stable statue teapot thimble tunnel turnip valley violin wagon walnut window
"""

_DOCSTRING = re.compile(r"""(?P<quotes>\"{3}|'{3})(?P<text>.*?)(?P=quotes)""", re.DOTALL)
_PARAGRAPH_END = re.compile(r"\n\s*\n")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_PROSE = re.compile(r"(?!.*(?:--|magic number))[A-Z][A-Za-z]*[A-Za-z0-9 ,;'()/%-]*[a-z0-9)]\.")
_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "testing", "idlelib", "lib2to3"})
_MIN_WORDS, _MAX_WORDS = 6, 40
_PARAGRAPH_SENTENCES = 8


@dataclass(frozen=True, slots=True)
class Needle:
    """One hidden fact. Keys are different from each other, and so are values."""

    key: str
    value: str

    @property
    def sentence(self) -> str:
        """The fact as it stands in the text."""
        return f"One of the special magic numbers for {self.key} is: {self.value}."

    def question(self, phrasing: int = 1) -> str:
        """A question whose answer is the value, in one of the PHRASINGS."""
        return PHRASINGS[phrasing].format(key=self.key)

    def answered_by(self, answer: str) -> bool:
        """Whether the value stands in the answer, thousands separators or not, and not inside a longer number."""
        digits = re.sub(r"(?<=\d)[, .](?=\d)", "", answer)
        return re.search(rf"(?<!\d){self.value}(?!\d)", digits) is not None


@dataclass(frozen=True, slots=True)
class Haystack:
    """A text with needles in it. `digest` is the text's SHA-256, `n_tokens` the count that it was built by."""

    text: str
    needles: tuple[Needle, ...]
    n_sentences: int
    n_tokens: int
    digest: str


def make_needles(n: int, *, seed: int) -> list[Needle]:
    """Needles with different adjective-noun keys and different 7-digit values; the first n for a seed never change."""
    generator = random.Random(f"needles {seed}")
    keys = shuffled_keys(generator)
    values = itertools.islice(different_numbers(generator), n)
    return [Needle(key, str(value)) for key, value in zip(keys[:n], values, strict=True)]


def shuffled_keys(generator: random.Random) -> list[str]:
    """All adjective-noun keys, some thousands, in a random order."""
    keys = [f"{adjective}-{noun}" for adjective in _ADJECTIVES.split() for noun in _NOUNS.split()]
    generator.shuffle(keys)
    return keys


def choose_asked(needles: Sequence[Needle], n: int, *, seed: int) -> list[Needle]:
    """The needles to ask for: n of them, spread over the text, in the order they stand in."""
    chosen = random.Random(f"asked {seed}").sample(range(len(needles)), n)
    return [needles[index] for index in sorted(chosen)]


def build_haystack(
    n_tokens: int,
    needles: Sequence[Needle],
    *,
    seed: int,
    count_tokens: CountTokens,
    filler: Iterable[str] | None = None,
) -> Haystack:
    """A text of `n_tokens`, at most one sentence more, with the needles spread evenly, with jitter.

    `filler` is the sentences in the order of use; left out, it is `shuffled_filler(seed)`. Tokens are counted a
    sentence at a time, so a tokenizer that merges across sentences gives a few less. Raises ValueError when the needles
    alone are too long, or when the filler is too short.
    """
    total = sum(count_tokens([f" {needle.sentence}" for needle in needles]))
    if total >= n_tokens:
        raise ValueError(f"{len(needles)} needles take {total} tokens of the {n_tokens} asked for; ask for more tokens")
    rows: list[str] = []
    for sentence, count in _counted(shuffled_filler(seed) if filler is None else filler, count_tokens):
        rows.append(sentence)
        total += count
        if total >= n_tokens:
            return _assemble(rows, needles, total, random.Random(f"places {seed}"))
    raise ValueError(f"the filler ends at {total} of {n_tokens} tokens; give more sentences")


def shuffled_filler(seed: int) -> Iterator[str]:
    """Distinct sentences in an order that follows from the seed: each once, then pairs of them joined: any amount."""
    sentences = docstring_sentences()
    generator = random.Random(f"filler {seed}")
    generator.shuffle(sentences)
    yield from prose_without_end(sentences)


def prose_without_end(sentences: Sequence[str]) -> Iterator[str]:
    """The sentences in their order, then pairs of them joined, all distinct."""
    yield from sentences
    for first, second in itertools.combinations(sentences, 2):
        yield f"{first.removesuffix('.')}, and {second[0].lower()}{second[1:]}"


def docstring_sentences(roots: Sequence[Path] | None = None) -> list[str]:
    """All distinct sentences of prose in the docstrings below the roots, in a fixed order.

    The roots are, left out, the standard library and the installed packages. Takes some ten seconds for a large
    environment; nothing is imported or run, and tests are left out.
    """
    found: dict[str, str] = {}
    for source in _sources(roots):
        for sentence in prose_sentences(source):
            found.setdefault(sentence.casefold(), sentence)
    return list(found.values())


def docstring_paragraphs(roots: Sequence[Path] | None = None) -> list[str]:
    """All distinct paragraphs of the same docstrings, lists, code and markup among them, each on one line, in a fixed
    order: some 170,000 in a large environment."""
    found: dict[str, None] = {}
    for source in _sources(roots):
        for docstring in _DOCSTRING.finditer(source):
            paragraphs = (" ".join(paragraph.split()) for paragraph in _PARAGRAPH_END.split(docstring["text"]))
            found.update((paragraph, None) for paragraph in paragraphs if len(paragraph.split()) >= _MIN_WORDS)
    return list(found)


def _sources(roots: Sequence[Path] | None) -> Iterator[str]:
    """The source files below the roots, tests left out."""
    paths = sysconfig.get_paths()
    for folder in [Path(paths["stdlib"]), Path(paths["purelib"])] if roots is None else roots:
        for file in sorted(folder.rglob("*.py")):
            if _SKIPPED_FOLDERS.isdisjoint(file.relative_to(folder).parts):
                yield file.read_text("utf-8", "replace")


def prose_sentences(source: str) -> Iterator[str]:
    """The sentences of plain prose in the docstrings of a source text: words and commas, no code, lists or markup."""
    for docstring in _DOCSTRING.finditer(source):
        for paragraph in _PARAGRAPH_END.split(docstring["text"]):
            for sentence in _SENTENCE_END.split(" ".join(paragraph.split())):
                if _is_prose(sentence):
                    yield sentence


def _is_prose(sentence: str) -> bool:
    words = sentence.split()
    n_plain = sum(word.strip(",;()'.").isalpha() for word in words)
    return _MIN_WORDS <= len(words) <= _MAX_WORDS and n_plain >= 0.8 * len(words) and bool(_PROSE.fullmatch(sentence))


def _counted(sentences: Iterable[str], count_tokens: CountTokens) -> Iterator[tuple[str, int]]:
    """The sentences with their token counts, counted in batches."""
    remaining = iter(sentences)
    while batch := list(itertools.islice(remaining, 256)):
        yield from zip(batch, count_tokens([f" {sentence}" for sentence in batch]), strict=True)


def _assemble(filler: list[str], needles: Sequence[Needle], n_tokens: int, generator: random.Random) -> Haystack:
    """Puts needle i at a jittered place within the i-th of equal shares of the filler, and breaks paragraphs."""
    share = len(filler) / max(1, len(needles))
    places = [int((index + generator.uniform(0.1, 0.9)) * share) for index in range(len(needles))]
    rows = list(filler)
    for place, needle in sorted(zip(places, needles, strict=True), key=lambda pair: pair[0], reverse=True):
        rows.insert(place, needle.sentence)
    text = in_paragraphs(rows)
    return Haystack(text, tuple(needles), len(rows), n_tokens, hashlib.sha256(text.encode()).hexdigest())


def in_paragraphs(sentences: Sequence[str]) -> str:
    """The sentences as text, with a blank line after every eighth."""
    starts = range(0, len(sentences), _PARAGRAPH_SENTENCES)
    return "\n\n".join(" ".join(sentences[lo : lo + _PARAGRAPH_SENTENCES]) for lo in starts) + "\n"


def different_numbers(generator: random.Random) -> Iterator[int]:
    """Random 7-digit numbers without repeats."""
    seen: set[int] = set()
    while True:
        number = generator.randrange(1_000_000, 10_000_000)
        if number not in seen:
            seen.add(number)
            yield number
