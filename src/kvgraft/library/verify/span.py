r"""Where an expression begins and ends in running text: `the answer is **3, 4** and so on`.

A text is read as tokens, and an expression is a run of tokens that can stand in a formula. What
ends a run is prose: a word of two letters or more that is no function, no unit and not glued to a
number. Formulas between `$...$`, `\(...\)` and the like are one token each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

Span = tuple[int, int]

NUMBER = (
    r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?"
    r"(?:[eE][-+]?[0-9]{1,4}(?![0-9A-Za-z]))?|\.[0-9]+"
)


class Cut(Exception):
    """The text ends in the middle of an expression."""


# ASCII, then: minus and dash, times, division, dots, relations, sets, infinity, root, plus-minus,
# degree, powers, fractions, small Greek letters, currencies, a wide percent sign.
_SIGNS = (
    r"-+*/^_=<>()\[\]{}!%$~"
    r"\u2212\u2013\u00d7\u00f7\u00b7\u22c5\u2264\u2265\u2260\u2248\u2208\u222a\u2229\u2205\u221e\u221a"
    r"\u00b1\u00b0\u00b2\u00b3\u00bc-\u00be\u2153\u2154\u03b1-\u03c9\u20ac\u00a3\u00a5\u20b9\uff05"
)
# Not what looks like a digit: superscripts, subscripts, fractions.
_LETTER = r"[^\W\d_\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u209c\u2150-\u215f]"
_TOKEN = re.compile(
    rf"""(?x)
      (?P<half_of_day> (?<=:[0-9][0-9])[ ]?(?:[aApP][mM](?!{_LETTER}|[0-9])|[aApP]\.[mM]\.) )
    | (?P<space> [ \t\r\u00a0\u2009\u202f]+ )
    | (?P<text> \\(?:text|mbox|textbf|textrm|textit|mathrm|mathbf)[ ]?\{{[^{{}}\n]{{0,200}}\}} )
    | (?P<box> \\{{1,4}}(?:boxed|fbox)(?![A-Za-z]) )
    | (?P<delimiter> \\[()\[\]] )
    | (?P<command> \\(?:[A-Za-z]+|[^\sA-Za-z]) )
    | (?P<number> {NUMBER} )
    | (?P<article> [aAI](?=[ ]+{_LETTER}{{2}}) )
    | (?P<word> {_LETTER}(?:{_LETTER}|[0-9])+ )
    | (?P<letter> [A-Za-z] )
    | (?P<comma> , | (?<=[0-9]):(?=[0-9]) )
    | (?P<sign> [{_SIGNS}] )
    """
)
# Words that can stand in a formula.
_FORMULA_WORD = re.compile(
    r"(?ix) sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt|pi|infinity|inf|mod|percent|pct"
    r"|thousand|million|billion|trillion"
)
# A word of more letters that follows these is part of the formula: `2ab`, `f(ab)`, `2 + ab`.
_GLUE = re.compile(r"(?:[0-9]|[^\s*][+/^_(*]|[\w)\]}][ ][+*/^][ ])$")

_LEADING = " \t\r\u00a0\u2009\u202f*_,/^=!%:)]}~\u2248$\u20ac\u00a3\u00a5\u20b9"
_TRAILING = " \t\r\u00a0\u2009\u202f*_,:+-/^=<>!([{~$\u2212\u2013\u2248"
# A dash that is no sign, and the article of a sentence.
_NO_PART = re.compile(r"[-+]\s+|[aAI][ ]+(?=[0-9])")
_TEXT_END = re.compile(r"\s*\Z")
_LINE_MARK = re.compile(r"(?:[ \t]*(?:[0-9]{1,3}[.)]|[-*>+\u2022]{1,3}|#{1,6})[ \t]+(?=\S)){1,3}")


class _Formulas(NamedTuple):
    """The delimited formulas of a stretch of text, delimiters included."""

    ends: dict[int, int]  # for the beginning of each, its end
    closings: frozenset[int]  # the ends alone


def first_span(text: str, low: int, high: int) -> Span | None:
    """The expression that begins at `low`, white space aside.

    Raises:
        Cut: the text ends in the middle of it.
    """
    while low < high and text[low].isspace():
        low += 1
    formulas = _formulas(text, low, high)
    run = next(_runs(text, low, high, formulas), None)
    if run is None or run[0] != low:
        return None
    if run[1] == high < len(text) and not text[high].isspace():
        return None  # longer than the reach: a part of a number is another number
    span = _trimmed(text, run, formulas, dash=False)
    if span is None or not (_has_value(text, span, formulas) or _is_symbolic(text, span, high)):
        return None
    return _unwrapped(text, span, formulas)


def last_span(text: str, low: int, high: int) -> Span | None:
    """The last expression with a number of the last line that has one; else its last formula.

    Raises:
        Cut: the text ends in the middle of it.
    """
    formulas = _formulas(text, low, high)
    while high > low:
        line = text.rfind("\n", low, high) + 1 or low
        mark = _LINE_MARK.match(text, line, high)
        spans = [
            span
            for run in _runs(text, mark.end() if mark else line, high, formulas)
            if (span := _trimmed(text, run, formulas)) and _has_value(text, span, formulas)
        ]
        with_digits = [span for span in spans if _digits(text, span)]
        if spans:
            return _unwrapped(text, (with_digits or spans)[-1], formulas)
        high = line - 1
    return None


def right_side(text: str, span: Span) -> Span:
    """What `3 + 4 = 7`, `x = 7` or `x = 22/3 ≈ 7.33` state: the 7; the 22/3. Else the span itself:
    an equation such as `x^2 + y^2 = 25` is its own answer, and so is a list of them."""
    start, end = span
    if re.search(r",(?![0-9]{3})|\b(?:and|or)\b", text[start:end]):
        return span
    cuts = [start]
    depth = 0
    for match in re.finditer(r"\\.|[<>!=]?=|[(){}\[\]]|\u2248", text[start:end]):
        sign = match[0]
        if sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
        elif depth == 0 and sign == "=":
            cuts.append(start + match.end())
        elif depth == 0 and sign == "\u2248" and _digits(text, (cuts[-1], start + match.start())):
            end = start + match.start()
            break
    if len(cuts) > 1 and not re.fullmatch(
        r"\s*(?:[^A-Za-z]*|\\?[A-Za-z]+(?:_\{?\w+\}?)?(?:\([a-z]\))?)\s*",
        text[start : cuts[1] - 1],
    ):
        return span
    return strip(text, cuts[-1], end) or span


def strip(text: str, start: int, end: int) -> Span | None:
    """The span without white space at its ends, or None when nothing else is in it."""
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return (start, end) if start < end else None


# --- tokens to runs ---------------------------------------------------------------------------


def _runs(text: str, low: int, high: int, formulas: _Formulas) -> Iterator[Span]:
    start = end = -1  # of the run in hand
    position = low
    while position < high:
        if formulas.ends.get(position, high + 1) <= high:
            kind, stop = "formula", formulas.ends[position]
        elif token := _TOKEN.match(text, position, high):
            kind, stop = token.lastgroup or "", token.end()
        else:
            kind, stop = "prose", position + 1
        if kind == "word":
            kind = _kind_of_word(text, start, position, stop)
        elif kind in ("delimiter", "sign") and _opens_nothing(text, position, stop, high):
            raise Cut
        if kind in ("prose", "article", "box", "delimiter"):
            if start >= 0:
                yield start, end
            start = -1
        elif kind not in ("space", "comma", "joining"):
            start = position if start < 0 else start
            end = stop
        position = stop
    if start >= 0:
        yield start, end


def _kind_of_word(text: str, start: int, position: int, stop: int) -> str:
    word = text[position:stop].lower()
    if _FORMULA_WORD.fullmatch(word):
        return "letter"
    if start < 0:
        return "prose"
    if word in ("and", "or"):
        return "joining"
    return "letter" if _GLUE.search(text[max(start, position - 4) : position]) else "prose"


def _opens_nothing(text: str, position: int, stop: int, high: int) -> bool:
    r"""Whether a formula opens here that the text ends in: `\(\frac{1}`, `$x =`."""
    if high < len(text):
        return False
    if text[position:stop] in (r"\(", r"\["):
        return True
    if text[position] != "$" or text.find("\n", position, high) >= 0:
        return False
    return text[stop : stop + 1].strip("0123456789.$ ") != ""


def _trimmed(text: str, run: Span, formulas: _Formulas, *, dash: bool = True) -> Span | None:
    """The run without punctuation at its ends and without brackets that have no partner.

    `dash`: whether a minus with space behind it is a dash (in `in total - 18`, not in `x is - 18`).
    """
    start, end = run
    while True:
        before = (start, end)
        while start < end and start not in formulas.ends and text[start] in _LEADING:
            start += 1
        if (lead := _NO_PART.match(text, start, end)) and (dash or text[start] not in "-+"):
            start = lead.end()
        while start < end and end not in formulas.closings and _ends_badly(text, end):
            if text[end - 1] in "([{" and _TEXT_END.match(text, end):
                raise Cut
            end -= 2 if text[end - 2 : end] == r"\\" else 1
        if start >= end:
            return None
        opener, closer = _unpaired(text, start, end, formulas)
        if closer is not None:
            end = closer
        elif opener is not None:
            if _TEXT_END.match(text, end):
                raise Cut
            start = opener + 1
        if (start, end) == before:
            return before
        if start >= end:
            return None


def _ends_badly(text: str, end: int) -> bool:
    escaped = text[end - 2 : end - 1] == "\\"
    return (text[end - 1] in _TRAILING and not escaped) or text[end - 2 : end] == r"\\"


def _unpaired(
    text: str, start: int, end: int, formulas: _Formulas
) -> tuple[int | None, int | None]:
    """The last bracket that opens without closing, and the first that closes without opening."""
    opened: list[int] = []
    position = start
    while position < end:
        if position in formulas.ends:
            position = formulas.ends[position]
            continue
        # `[1, 2)` is a pair; braces and escaped braces pair with what stands there as well.
        if text[position] in "([{":
            opened.append(position)
        elif text[position] in ")]}":
            if not opened:
                return None, position - (text[position - 1 : position] == "\\")
            opened.pop()
        position += 1
    return (opened[-1] if opened else None), None


def _has_value(text: str, span: Span, formulas: _Formulas) -> bool:
    return _digits(text, span) or any(position in formulas.ends for position in range(*span))


def _is_symbolic(text: str, span: Span, high: int) -> bool:
    r"""`x + y`, `\pi`, `(C)`, `C`; not the `a` or `I` of a sentence."""
    expression = text[span[0] : span[1]]
    if re.search(r"\\[A-Za-z]|[\u221e\u2205\u03b1-\u03c9]|[+*/^=<>\u2212-]", expression):
        return True
    if re.fullmatch(r"\(?[A-Za-z]\)?", expression):
        rest = text[span[1] : min(high, span[1] + 8)]
        ends = re.match(r"[)\s.,;:!*_\"'`\u201d]*(?:\n|$)|[.,;:!*_]", rest)
        return bool(ends) or expression.strip("()") in "BCDEFGH"
    return bool(re.search(r"[A-Za-z]", expression))


def _digits(text: str, span: Span) -> bool:
    return re.compile(r"[0-9\u00b2\u00b3\u00bc-\u00be\u2153\u2154]").search(text, *span) is not None


# --- formulas ---------------------------------------------------------------------------------

_DELIMITER = re.compile(r"\\.|\$\$?|\n", re.DOTALL)
_CLOSES = {r"\)": r"\(", r"\]": r"\[", "$$": "$$", "$": "$"}


def _formulas(text: str, low: int, high: int) -> _Formulas:
    ends: dict[int, int] = {}
    opener, start = "", low
    for token in _DELIMITER.finditer(text, low, high):
        sign = token[0]
        if sign == "\n":
            opener = "" if opener == "$" else opener
        elif opener and _CLOSES.get(sign) == opener:
            if sign == "$" and _is_money(text, start + 1, token.start()):
                start = token.start()
                continue
            ends[start] = token.end()
            opener = ""
        elif not opener and (sign in (r"\(", r"\[") or sign[0] == "$"):
            opener, start = sign, token.start()
    return _Formulas(ends, frozenset(ends.values()))


def _is_money(text: str, start: int, end: int) -> bool:
    r"""Whether `$72 and then $` holds prices: it begins with a digit, and it has words, or a space
    before the closing sign, or a digit behind it."""
    content = text[start:end]
    if not content[:1].isdigit():
        return False
    words = re.sub(r"\\[A-Za-z]+[ ]?(?:\{[^{}]*\})?", "", content)
    behind = text[end + 1 : end + 2]
    return content[-1].isspace() or behind.isdigit() or bool(re.search(r"\s[A-Za-z]{2}", words))


def _unwrapped(text: str, span: Span, formulas: _Formulas) -> Span | None:
    """The inside of a span that is one formula; other spans as they are."""
    start, end = span
    if formulas.ends.get(start) != end:
        return span
    width = 1 if text[start] == "$" != text[start + 1] else 2
    return strip(text, start + width, end - width)
