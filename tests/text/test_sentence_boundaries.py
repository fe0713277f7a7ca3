"""Golden cases: where sentences end in prose of many languages, and in lists, tables, code and logs."""

from __future__ import annotations

import pytest

from livingkv.text import split_sentences


def sentences(text: str, max_bytes: int = 1024) -> list[str]:
    encoded = text.encode()
    return [encoded[lo:hi].decode() for lo, hi in split_sentences(encoded, max_bytes=max_bytes)]


_PROSE = {
    "abbreviations": ["Dr. Smith met J. R. R. Tolkien at 3 p.m. on Jan. 5.", " He left, e.g. by train."],
    "decimals and versions": ["It cost $3.50, or 1,234.56.", " Version 1.2.3 works.", " Use v2.0!"],
    "quotes": ['"Really?" she asked.', " Yes!", ' He said: "No."'],
    "urls": ["See https://a.example/b.c?d=e.f#g for more.", " Mail x.y@z.example."],
    "ellipsis": ["Well... maybe.", " Sure."],
    "emoji": ["Nice!", " 👍 Go on.", " 👩\u200d👩\u200d👧 at home."],
    "chinese": ["今天天气很好。", "我们去公园吧!", "你说呢?", "好的。"],
    "japanese": ["今日は天気がいい。", "公園へ行きましょう。"],
    "hindi": ["यह एक वाक्य है।", " यह दूसरा है।", " क्या हाल है?"],
    "arabic": ["هذا نص.", " هل هذا سؤال؟", " نعم."],
    "urdu": ["یہ ایک جملہ ہے۔", " دوسرا؟", " ہاں۔"],
    "russian": ["Это г. Москва.", " Он пришёл в 5 ч. вечера.", " Да!"],
    "greek": ["Τι είναι;", " Καλό.", " Ναι."],
    "thai": ["สวัสดีครับ ผมชื่อสมชาย"],
    "burmese": ["မင်္ဂလာပါ။", " ကောင်းလား။"],
    "amharic": ["ሰላም።", " እንዴት ነህ።"],
    "german": ["Am 3. Mai kam er mit dem Zug und das war gut.", " Das ist z.B. nicht schlecht."],
    "spanish": ["El Sr. García vino con los niños.", " ¿Sí?", " ¡No!"],
    "polish": ["To jest prof. Nowak i nie przyszedł na czas.", " Tak."],
    "byte-order mark": ["\ufeffHello.", " World."],
    "zero-width space": ["One.", " \u200bTwo."],
}

_LAYOUT = {
    "heading": ["# 3. Results\n", "The body follows.", " It is short.\n"],
    "underlined heading": ["Results\n=======\n\n", "The body follows.\n"],
    "numbered list": ["1. Wash the rice.", " Twice.\n", "2. Boil it.\n", "  a) slowly\n"],
    "bullets": ["- milk\n", "- 3 eggs, a packet of flour\n  and sugar\n", "* bread\n"],
    "lone marker": ["3.\nThird thing.\n", "- \nAnother.\n"],
    "table": ["| name | code |\n|---|---|\n", "| Ada | 12.5 |\n", "| Bob | n. a. |\n"],
    "tab-separated": ["name\tcode. x\n", "Ada\t12.5\n"],
    "fence": ["Run this.\n", "```sh\nmake. all\n", "echo done. ok\n```\n", "Then stop.\n"],
    "code": ["def area(self):\n", "    x = a.b. c\n", "    return x\n"],
    "log": ["2024-01-02 12:00:00,123 ERROR db: Failed. Retrying.\n", "2024-01-02 12:00:01,000 INFO db: ok\n"],
    "chat": ["ada: are you there?\n", "bob: yes.", " Wait.\n", "ada: fine\n"],
    "windows lines": ["One.\r\n", "Two.\r\n\r\n", "Three\r\n"],
    "old mac lines": ["One\r", "Two\r"],
    "unicode lines": ["One\u2028", "Two\u2029", "Three"],
    "front matter": ["---\ntitle: Notes\n---\n\n", "Text.\n"],
    "indentation": ["  First.\n", "  Second.\n"],
    "blank lines": ["One\n \n\t\n\n", "Two\n\n\n"],
    "rule between": ["One.\n\n", "---\n\nTwo.\n"],
}


@pytest.mark.parametrize("case", _PROSE)
def test_prose(case: str) -> None:
    assert sentences("".join(_PROSE[case])) == _PROSE[case]


@pytest.mark.parametrize("case", _LAYOUT)
def test_layout(case: str) -> None:
    assert sentences("".join(_LAYOUT[case])) == _LAYOUT[case]


def test_a_hard_wrapped_paragraph_is_read_as_one() -> None:
    wrapped = (
        "We met Anna at the station in the afternoon, and then we went on to the\n"
        "office, where Bob was waiting with the keys. He said that the meeting\n"
        "would be late. Nobody minded.\n"
    )
    assert [" ".join(sentence.split()) for sentence in sentences(wrapped)] == [
        "We met Anna at the station in the afternoon, and then we went on to the office, "
        "where Bob was waiting with the keys.",
        "He said that the meeting would be late.",
        "Nobody minded.",
    ]


def test_wrapped_chinese_is_read_as_one() -> None:
    line = "这是一个很长的句子它被编辑器在固定的列宽处折断了所以它在下一行继续"
    assert sentences(f"{line}\n{line[:20]}。\n好。\n") == [f"{line}\n{line[:20]}。\n", "好。\n"]


def test_a_wrapped_line_does_not_swallow_the_list_after_it() -> None:
    text = "The things that we still have to buy before the weekend comes are these\n- milk and a very long item\n"
    assert len(sentences(text)) == 2


def test_a_sentence_longer_than_the_window_of_sentencex_keeps_its_end() -> None:
    text = "word " * 3000 + "end. Next one. And one more."
    assert sentences(text, max_bytes=1 << 20)[-2:] == [" Next one.", " And one more."]


def test_a_long_log_line_is_split_like_prose() -> None:
    text = "[12:00:00] ada: " + "This is a sentence of some length. " * 20
    assert len(sentences(text)) == 20
