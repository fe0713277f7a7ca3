"""Prose with code words in it is split like prose; lines of code, tables and logs stay whole."""

from __future__ import annotations

import textwrap

import pytest

from livingkv.text import split_sentences


def sentences(text: str) -> list[str]:
    encoded = text.encode()
    return [encoded[lo:hi].decode() for lo, hi in split_sentences(encoded)]


_PROSE = {
    "call": [
        "Note that unlike write() methods this one is not idempotent.",
        " Returns None.",
        " The magic number is: 123.",
    ],
    "only calls": ["Call foo().", " Then bar()."],
    "call last": ["The stream is closed.", " See also close()."],
    "call in brackets": ["It sorts (see sorted()) the list.", " The list is kept."],
    "method": ["Use a.b() for this.", " It is quick."],
    "arguments": ["Then use foo(bar, baz).", " It takes x() too."],
    "backticks": ["Use `open()` here.", " Or `a = b.c. d` there.", " Done."],
    "double backticks": ["The ``x = foo()`` form is old.", " Do not use it."],
    "assignment": ["Here x = 1 is the default.", " Set y = 2 to change it."],
    "assignment first": ["x = 1 is the default value.", " Any other number is refused."],
    "comparison": ["When a == b nothing happens.", " Else it is an error."],
    "lambda": ["The rule is a -> b here.", " It holds for all.", " See f => g also."],
    "arrow last": ["First do this.", " The result is what we call x ->"],
    "question": ["Why does foo() fail?", " Because bar() is missing!", " Fix it."],
    "path": ["The file /etc/app/conf.d = default is read.", " It must exist."],
    "option": ["Give --depth = 3 to the tool.", " It then calls run() once."],
    "semicolon": ["He read the first line.", " It was late; he went home;"],
    "union": ["Returns int | None.", " The default is None."],
    "quoted": ['He said "call foo() now" and left.', " Nobody did."],
    "docstring": ['"""Return the size() of it.', " It may be zero."],
    "call after a value": ["After g = of(2, 5), the call g(r) gives a pair.", " It is new."],
    "apostrophes": ["Don't call foo().", " It isn't safe."],
    "german": ["Die Methode lesen() gibt nichts zurück.", " Sie ist langsam."],
    "chinese": ["调用 foo() 方法。", "然后返回。"],
    "statement": ["for the reason given in foo() it is slow.", " It waits for the following:"],
    "brackets and colon": ["It stops.", " It has two parts (see below):"],
}

_CODE = (
    "x = a.b. c",
    "x = foo()  # the first one. The second follows.",
    "int n = count();  // how many. Never negative.",
    'print("Hello. World.")',
    'raise ValueError("The name is empty. Give one.") from error',
    "logger.info('It is done. Next one, please.', extra=extra)",
    'title = "The first. The second."',
    "return foo() if bar else baz",
    "assert isinstance(x, int) and x is not None",
    "for (int i = 0; i < n; i++) {",
    "if not ready():",
    "public static void main() {",
    'std::cout << "Well. Done." << std::endl;',
    "const twice = (x) => x + x;",
    "ok = a ? B : c",
    "for opcode, arg, place in walk(pickled, whole):",
    "END = b'.'   # every one ends so. No other does.",
    "value = first . Map.toList . Second",
    "$a = foo() . Bar;",
    "SELECT name, size FROM files WHERE kind = 'x. Y';",
    "make_all() && echo done",
    "| a() | b. C |",
    "name\tfoo(). Bar",
    "2024-01-02 12:00:00,123 ERROR db: close() failed. Retrying once more.",
    "WARNING: write() failed. Trying the next one.",
    "Ada | n. A. | 12.5",
)

_WRAPPED = [
    "Return the number of bytes written, which is always the length of b in bytes, since if the write() call fails an "
    "OSError is raised by the writer.",
    "Note that unlike write() methods of raw streams it is not idempotent; see flush() and also the notes of the other "
    "class (IOBase): they say more (or less), given that x = 1, on mode -> buffer tables and on the options.",
    "One of the special magic numbers for emerald-candle is: 123.",
]


@pytest.mark.parametrize("case", _PROSE)
def test_prose_with_code_words_is_split(case: str) -> None:
    assert sentences("".join(_PROSE[case])) == _PROSE[case]


@pytest.mark.parametrize("case", _PROSE)
def test_also_where_it_is_indented_between_other_lines(case: str) -> None:
    line = "    " + "".join(_PROSE[case])
    assert sentences(f"# A heading\n{line}\n\nThe end.\n") == [
        "# A heading\n",
        "    " + _PROSE[case][0],
        *_PROSE[case][1:-1],
        _PROSE[case][-1] + "\n\n",
        "The end.\n",
    ]


@pytest.mark.parametrize("line", _CODE)
def test_code_stays_whole(line: str) -> None:
    assert sentences(line) == [line]
    assert sentences(f"Like this.\n\n    {line}\n\nThat was it.\n") == [
        "Like this.\n\n",
        f"    {line}\n\n",
        "That was it.\n",
    ]


def test_wrapped_prose_with_calls_is_read_as_one_paragraph() -> None:
    prose = " ".join(_WRAPPED)
    docstring = "\n".join(textwrap.wrap(prose, 72, initial_indent="    ", subsequent_indent="    ")) + "\n"
    assert [" ".join(sentence.split()) for sentence in sentences(docstring)] == _WRAPPED


def test_a_wrapped_paragraph_does_not_swallow_the_code_after_it() -> None:
    text = (
        "This is how the whole thing is called by everybody who has to call it\n"
        "connection.open(path, mode, timeout, retries)\n"
    )
    assert len(sentences(text)) == 2
