"""A document to pages that fit a budget of tokens, and to the passages that are searched.

A page ends at the strongest boundary near its end: a chapter from three quarters of the budget on,
a paragraph only where nothing stronger is near. Where none is near, it is filled with part of the
next paragraph, cut at a line, a sentence, a word, at last anywhere. Counting tokens is what takes
time, so a stretch of text is counted when it is taken up, and once more as part of its page.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kvgraft.context.document import LINE, PARAGRAPH, Break, Document
from kvgraft.errors import UsageError

Count = Callable[[str], int]

# How full a page has to be to end at a boundary of the level: chapter, section, subsection,
# paragraph, line. Less than three quarters would waste a capture; a better end is worth a quarter.
_FULL_ENOUGH = (0.75, 0.85, 0.92, 0.95, 0.98)
_UNIT_CHARS = 2_000  # a longer stretch without a boundary is cut before it is counted
_SENTENCE = re.compile(r"(?<=[.!?;:。！？])\s+|(?<=[。！？])")
_WORD = re.compile(r"\s+")
_LEAST_WORDS, _MOST_WORDS = 60, 200
_HEADING_WORDS = 16  # a longer stretch behind a heading's start is more than the heading


@dataclass(frozen=True)
class Piece:
    """Characters `[start, end)` of a document, under `heading`."""

    start: int
    end: int
    heading: str


@dataclass(frozen=True)
class _Unit:
    """A stretch that is taken up as a whole. `level` is of the boundary that it begins at."""

    start: int
    end: int
    level: int
    heading: str
    tokens: int


def pages(document: Document, budget_tokens: int, count_tokens: Count) -> list[Piece]:
    """Pages that cover the text in order, none of which counts more than `budget_tokens`.

    Raises:
        UsageError: the budget holds not even one character.
    """
    if budget_tokens < 1:
        raise UsageError(f"a page of {budget_tokens} tokens holds no text")
    out: list[Piece] = []
    waiting = list(reversed([*_units(document, count_tokens)]))
    while waiting:
        taken: list[_Unit] = []
        total = 0
        while waiting and total + waiting[-1].tokens <= budget_tokens:
            taken.append(waiting.pop())
            total += taken[-1].tokens
        if not taken:
            waiting += reversed(_halves(document.text, waiting.pop(), count_tokens))
            continue
        room = budget_tokens - total
        if waiting and room > (1 - _FULL_ENOUGH[PARAGRAPH]) * budget_tokens:
            parts = _divided(document.text, waiting[-1], room, count_tokens)
            if parts is not None:
                taken.append(parts[0])
                waiting[-1] = parts[1]
        if waiting:
            end = _best_end(taken, waiting[-1], budget_tokens)
            while len(taken) > end:
                waiting.append(taken.pop())
        while len(taken) > 1 and count_tokens(_text(document, taken)) > budget_tokens:
            waiting.append(taken.pop())  # together they count more than by themselves
        out.append(Piece(taken[0].start, taken[-1].end, taken[0].heading))
    return out


def _text(document: Document, units: list[_Unit]) -> str:
    return document.text[units[0].start : units[-1].end]


def _best_end(taken: list[_Unit], following: _Unit, budget_tokens: int) -> int:
    """How many of the units to take: up to the strongest boundary that leaves the page full
    enough, the latest of those."""
    total = 0
    best = (LINE, -len(taken))
    for number, unit in enumerate([*taken[1:], following], 1):
        total += taken[number - 1].tokens
        if total >= _FULL_ENOUGH[unit.level] * budget_tokens:
            best = min(best, (unit.level, -number))
    return -best[1]


def _divided(text: str, unit: _Unit, room_tokens: int, count: Count) -> tuple[_Unit, _Unit] | None:
    """A unit as what fits the room that is left on a page, and the rest; None where that would
    take no more than its heading."""
    length = (unit.end - unit.start) * room_tokens // unit.tokens
    if length < 2:
        return None
    middle = _cut(text, unit.start, unit.start + length)
    head = text[unit.start : middle]
    if unit.level < PARAGRAPH and len(head.split()) <= _HEADING_WORDS:
        return None
    tokens = count(head)
    if tokens > room_tokens:
        return None
    rest = _Unit(middle, unit.end, LINE, unit.heading, count(text[middle : unit.end]))
    return _Unit(unit.start, middle, unit.level, unit.heading, tokens), rest


def _units(document: Document, count_tokens: Count) -> Iterator[_Unit]:
    """The document's stretches between boundaries, short lines of a paragraph together."""
    marks = [one for one in _led(document.breaks, document.text) if one.level < LINE]
    ends = [*(one.at for one in marks[1:]), len(document.text)]
    for mark, end in zip(marks, ends, strict=True):
        level = mark.level
        for start, stop in _stretches(document.text, mark.at, end):
            tokens = count_tokens(document.text[start:stop])
            yield _Unit(start, stop, level, mark.heading, tokens)
            level = LINE


def _led(breaks: Sequence[Break], text: str) -> Iterator[Break]:
    """Boundaries without those between a heading and the first lines of what it is over."""
    led = -1  # where the latest heading began
    for one in breaks:
        if one.level < PARAGRAPH:
            led = one.at
        elif led >= 0 and len(text[led : one.at].split()) <= _HEADING_WORDS:
            continue
        else:
            led = -1
        yield one


def _stretches(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    while end - start > _UNIT_CHARS:
        middle = _cut(text, start, start + _UNIT_CHARS)
        yield start, middle
        start = middle
    if end > start:
        yield start, end


def _halves(text: str, unit: _Unit, count_tokens: Count) -> list[_Unit]:
    """A unit that fits no page, as two.

    Raises:
        UsageError: it is one character.
    """
    if unit.end - unit.start < 2:
        raise UsageError(f"a page has no room for {unit.tokens} tokens, which one character takes")
    middle = _cut(text, unit.start, unit.start + (unit.end - unit.start + 1) // 2)
    return [
        _Unit(start, end, level, unit.heading, count_tokens(text[start:end]))
        for start, end, level in ((unit.start, middle, unit.level), (middle, unit.end, LINE))
    ]


def _cut(text: str, start: int, end: int) -> int:
    """Where to cut `text[start:end]`: behind its last line, sentence or word in its second half, or
    at its end, but not within what is one character to a reader."""
    half = start + (end - start) // 2
    line = text.rfind("\n", half, end)
    if line >= half and line + 1 < len(text):
        return line + 1
    for pattern in (_SENTENCE, _WORD):
        last = None
        for match in pattern.finditer(text, half, end):
            last = match
        if last is not None and start < last.end() < len(text):
            return last.end()
    whole = end
    while whole > half and whole < len(text) and _joins(text, whole):
        whole -= 1
    return whole if whole > half else end  # a longer run of marks is no character to anybody


def _joins(text: str, at: int) -> bool:
    return (
        bool(unicodedata.combining(text[at]))
        or text[at] in "\u200d\ufe0f"
        or (text[at - 1] == "\u200d")
    )


# --- passages -----------------------------------------------------------------------------------


def passages(document: Document, page: Piece) -> list[Piece]:
    """The passages of a page: some 60 to 200 words each, together the page's whole text."""
    first = bisect_right(document.breaks, page.start, key=lambda one: one.at)
    last = bisect_left(document.breaks, page.end, key=lambda one: one.at)
    # The break at the page's start goes with them: it may be a heading, which leads the next.
    leading = [one for one in document.breaks[max(0, first - 1) : first] if one.at == page.start]
    marks = [
        one
        for one in _led([*leading, *document.breaks[first:last]], document.text)
        if one.at > page.start
    ]
    edges = [(page.start, PARAGRAPH, page.heading)]
    edges += [(one.at, one.level, one.heading) for one in marks]
    out: list[Piece] = []
    start, heading, words = page.start, page.heading, 0
    for number, (at, _, its) in enumerate(edges):
        end = edges[number + 1][0] if number + 1 < len(edges) else page.end
        level = edges[number + 1][1] if number + 1 < len(edges) else 0
        if at == start:
            heading = its
        more = len(document.text[at:end].split())
        if words and words + more > _MOST_WORDS:
            out += _short(document.text, Piece(start, at, heading))
            start, heading, words = at, its, 0
        words += more
        enough = words >= _LEAST_WORDS and level <= PARAGRAPH
        new_section = level < PARAGRAPH and words >= _LEAST_WORDS // 3
        if enough or new_section:
            out += _short(document.text, Piece(start, end, heading))
            start, words = end, 0
    if start < page.end:
        out += _short(document.text, Piece(start, page.end, heading))
    return [one for one in out if document.text[one.start : one.end].strip()]


def _short(text: str, piece: Piece) -> Iterator[Piece]:
    """A piece as ones of at most 200 words, and of so many characters."""
    start = piece.start
    while start < piece.end:
        end = _after_words(text, start, piece.end)
        if end < piece.end:
            end = _cut(text, start, end)
        yield Piece(start, end, piece.heading)
        start = end


def _after_words(text: str, start: int, end: int) -> int:
    """Where 200 words end, or as many characters as they have at most."""
    end = min(end, start + _UNIT_CHARS)
    for number, match in enumerate(re.finditer(r"\S+", text[start:end]), 1):
        if number == _MOST_WORDS:
            return start + match.end()
    return end
