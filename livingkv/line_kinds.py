"""Which lines of a text are one sentence whatever they hold: headings, rows of tables, lines of logs and of code.

Knows one line at a time. Prose speaks of code (`name()`, `x = 1`, `a -> b`), so signs of code alone make no line of
code: what is decisive is whether words stand beside them as only prose has them.
"""

from __future__ import annotations

import regex

WHOLE_LINE_CHARS = 240
"""A longer line is split like prose whatever it is."""

HEADING_CHARS = 100
_HEADING_WORDS = 8

_LAID_OUT = regex.compile(  # headings, rows of tables, lines of logs
    r"""\s*\#{1,6}\s | .*\S[ ]*(?:\t|[ ]\|[ ])[ ]*\S | \s*\|
      | \s*[\[(]?\d{4}-\d\d-\d\d[T ]\d\d:\d\d | \s*\[?\d\d:\d\d:\d\d | \p{Lu}\p{Ll}\p{Ll}\s[ \d]?\d\s\d\d:\d\d
      | \s*\[?(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|FATAL|CRITICAL)\b
    """,
    regex.VERBOSE,
)
_TYPES = r"(?:None|null|nil|undefined|int|str|bytes|bool|float|string|number|dict|list)\b"
_UNION = regex.compile(rf"[\w.\[\]]+(?:\ \|\ [\w.\[\]]+)*\ \|\ {_TYPES}|\b{_TYPES}(?:\ \|\ [\w.\[\]]+)+")
_SIGN_OF_CODE = regex.compile(
    r"""[{};\\]\s*$ | \)[ ]?:\s*$ | [=-]>\s*$ | \s(?:=|==|!=|:=|\+=|->|=>)\s | \w\(\)
      | ^\s*(?:def|class|import|from|return|if|for|while|fn|let|const|var|func|public|private)\b.*[:;{(=]\s*$
    """,
    regex.VERBOSE,
)
_CALL = regex.compile(  # a statement that is a call, its brackets closed at the end of the line
    r"\s*(?:(?:return|raise|await|yield|throw|new|assert|print|echo)\s+)*[\w.:$]+(\((?:[^()]++|(?1))*+\)|\.\w+)+"
    r"(?:\s+from\s+\w+)?\s*[;,]?\s*"
)
_QUOTED = regex.compile(
    r"`+[^`]+`+|(\"{3}|'{3})|(?:\b[bfru]{1,2})?\"(?:[^\"\\]|\\.)*\"|(?<!\w)(?:[bfru]{1,2})?'(?:[^'\\]|\\.)*'(?!\w)"
)
_COMMENT = regex.compile(r"(?:(?<=\s)\s#|(?<=[;,{})\]])\s*(?:#|//|/\*)|(?<=\S)\s//\s).*")
_IN_BRACKETS = regex.compile(r"(?<=\w)(\((?:[^()]++|(?1))*+\))")
_ASSIGNMENT = regex.compile(r"\s*(?:[\w.$\[\]]+,\s+)*[\w.$\[\]]+\s+[-+*/|]?=\s")
_PROSE_WORD = regex.compile(  # before a comma stand names as well
    r"(?<![^\s(\"'])\p{L}[\p{Ll}\p{M}]+(?:['’-]\p{Ll}+)*(?=[)\"'’]*[.;:!?]*[)\"'’]*(?:\s|$))"
)
_SENTENCE_ENDS = regex.compile(r"[\w)\]`\"'][.!?][\"')\]]*(?:\s+[\"'(\[`]?(?:\p{Lu}|$)|$)")
_WIDE_WORDS = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]{2}|[。！？]")
_MARKED_HEADING = regex.compile(
    r"""\#{1,6}\s+\S.* | [^\n]+\n\s*(?:={3,}|-{3,}) | \d+(?:\.\d+)+\.?\s+\p{L}[^\n]*[^\s.!?;,]
      | (?:chapter|section|part|appendix|kapitel|abschnitt|teil|chapitre|partie|cap[ií]tulo|capitolo|parte|sección|глава
        |часть|hoofdstuk|rozdział)\s+(?:\d+|[ivxlc]+)\b[^\n]*[^\s.!?;,]?
      | 第\s*[\d一二三四五六七八九十百零〇]+\s*[章节節部回課课][^\n。！？]*
    """,
    regex.VERBOSE | regex.IGNORECASE,
)
_FEW_WORDS = regex.compile(r"[\p{Lu}\p{Lt}\d][^\n]*[\p{L}\p{M}\p{N})\"'”’]")
_LIST_MARK = regex.compile(r"(?:[-*+•‣◦·–]|\(?\d{1,3}[.)]|\(?[A-Za-z][.)])\s")
_LISTED_CODE_WORDS = """
if else elif for while do in is not and or as with from import return raise yield await async assert lambda def class
del pass try except finally match case switch break continue new throw throws catch this self super public private
protected static final abstract void int char long short float double bool boolean byte string unsigned signed auto
const let mut var val fn func function struct enum union interface type package use using namespace extends
implements export default extern inline volatile typedef sizeof select where order by group insert into values update
set create table join on limit then fi done echo exec sudo True False None true false null nil
"""
_CODE_WORDS = frozenset(_LISTED_CODE_WORDS.split())
_PROSE_WORDS = 3
"""So many words outside of brackets, quotes and comments are prose; where a sentence ends one is enough, and in a line
that begins like an assignment a sentence must end."""


def is_whole(line: str) -> bool:
    """Whether this line, without its line break, is a sentence of its own and holds no others."""
    line = line[:WHOLE_LINE_CHARS]
    if _LAID_OUT.match(_UNION.sub("x", line) if " | " in line else line):
        return True
    is_call = _CALL.fullmatch(_QUOTED.sub(_placeholder, line)) is not None
    return is_call or (_SIGN_OF_CODE.search(line) is not None and not _is_prose(line))


def is_heading(sentence: str) -> bool:
    """Whether a sentence, with the line breaks behind it, is a heading of what follows.

    Headings are marked as such (#, an underline, "3.1", "Chapter 3"), lead on by a colon, or are a few words without
    an end that a blank line follows.
    """
    line = sentence.strip()
    breaks = sentence[len(sentence.rstrip()) :].count("\n")
    if not line or len(line) > HEADING_CHARS or not breaks:
        return False
    if _MARKED_HEADING.fullmatch(line):
        return True
    if "\n" in line or _LIST_MARK.match(line) or is_whole(line):
        return False
    n_words = len(line.split())
    return n_words <= _HEADING_WORDS and (
        line.endswith((":", "：")) or (breaks > 1 and _FEW_WORDS.fullmatch(line) is not None)
    )


def _is_prose(line: str) -> bool:
    """Whether a line with signs of code has words as prose has them. What is quoted or a comment says nothing, unless
    it is all that there is."""
    bare = _COMMENT.sub("", _QUOTED.sub(_placeholder, line))
    if _WIDE_WORDS.search(bare):
        return True
    words = _PROSE_WORD.findall(_IN_BRACKETS.sub("()", bare))
    n_words = sum(word not in _CODE_WORDS for word in words)
    if n_words >= _PROSE_WORDS and not _ASSIGNMENT.match(bare):
        return True
    return n_words >= 1 and _SENTENCE_ENDS.search(bare) is not None


def _placeholder(quoted: regex.Match[str]) -> str:
    if quoted[1]:
        return " "  # the marks of a docstring, not what is in it
    return "x" if quoted[0].startswith("`") else '""'
