"""Whether a message asks something, by cheap signs, in any script. Knows marks and words; knows no model and no store.

Errs on the side of no: a statement must never be taken for a question, an oddly put question is merely not recognised.
"""

from __future__ import annotations

import regex

from livingkv.question import MOST_SIGNS

_MARK = regex.compile(
    r"(?:[?\uff1f\u061f\u055e\u1367\u2047\u2049\u2e2e\ua60f]|(?<=\p{Greek})[;\u037e])"  # in Greek a semicolon asks
    r"(?P<closing>[\"'”’»」』)\]*_!?\uff1f]*)(?P<then>\s*)(?P<next>\S?)"
)
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Hangul}]")
_QUOTES = frozenset("\"'”’»」』")
_CODE = regex.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", regex.DOTALL)
_PARTICLE = regex.compile(
    r"(?:[吗嗎呢]|(?:です|ます|でした|ました|ません)か|(?:[은는을를가이]|습니|ㅂ니)까|나요|까요|인가요|습니까|입니까)[。．.!！\s]*$"
)
_AUXILIARY = (
    r"(?:is|are|was|were|am|do|does|did|has|have|had|can|could|will|would|should|shall|may|might|must|"
    r"isn't|aren't|wasn't|weren't|don't|doesn't|didn't|hasn't|haven't|can't|won't|wouldn't|shouldn't)"
)
_SUBJECT = r"(?:i|you|he|she|it|we|they|the|my|your|his|her|our|their|that|this|there|anyone|anybody|any)"
_PERSON = r"(?:i|you|he|she|we|they)(?:'\w+)?"
_LEAD = r"^(?:(?:hi|hey|hello|ok|okay|so|and|but|well|please|sorry|oh|by the way|also)[,\s]+)*"
_LAZY = regex.compile(  # typed without its mark: the word that asks, and a verb before its subject
    rf"{_LEAD}(?:(?:what|who|where|when|how|why|which|whose|whom)(?:'s|'re|\s+{_AUXILIARY})\b"
    rf"|(?:what|which|whose|how)\s+(?!{_PERSON}\b)[\w'-]+(?:\s+[\w'-]+)?\s+{_AUXILIARY}\s+{_SUBJECT}\b"
    rf"|{_AUXILIARY}\s+{_SUBJECT}\b)",
    regex.IGNORECASE,
)
_DEMAND = regex.compile(
    rf"{_LEAD}(?:(?:can|could|would) you )?(?:tell me|remind me|let me know)\s+"
    r"(?:again\s+)?(?:what|who|where|when|how|why|which|whose|if|whether|of|about|the|my|our|your)\b",
    regex.IGNORECASE,
)
_SENTENCE = regex.compile(r"[^.!…\n]+(?:[.!…]+(?=\s|$)|\n|$)")


def is_question(message: str) -> bool:
    """True for a question mark at the end of a sentence, for "tell me what ...", and where the mark was left out for a
    verb before its subject (English) or a particle that asks (Chinese, Japanese, Korean).

    Marks inside of quotations that go on, of code and of addresses say nothing.
    """
    plain = _CODE.sub(" ", _shortened(message)).replace("’", "'")
    if any(_ends_a_question(found) for found in _MARK.finditer(plain)):
        return True
    sentences = [found[0].strip() for found in _SENTENCE.finditer(plain)]
    return any(_asks_without_mark(sentence) for sentence in sentences)


def _shortened(message: str) -> str:
    """The end of a message, runs of blanks as one: the patterns below take long over long stretches without a stop."""
    plain: str = regex.sub(r"[^\S\n]+", " ", message[-8 * MOST_SIGNS :])
    return plain[-MOST_SIGNS:]


def _ends_a_question(mark: regex.Match[str]) -> bool:
    following = mark["next"]
    if not following or _UNSPACED.match(following):
        return True
    quoted = any(sign in _QUOTES for sign in mark["closing"])
    return bool(mark["then"]) and not (quoted and following.islower())


def _asks_without_mark(sentence: str) -> bool:
    if _PARTICLE.search(sentence) or _DEMAND.search(sentence):
        return True
    return not sentence.endswith("!") and _LAZY.search(sentence) is not None
