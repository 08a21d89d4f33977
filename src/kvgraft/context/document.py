"""What a document is once it was read: text, and where it may be divided."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kvgraft.limits import MAX_HEADING_CHARS

CHAPTER, SECTION, SUBSECTION, PARAGRAPH, LINE = range(5)


@dataclass(frozen=True)
class Break:
    """A natural boundary: the piece that begins at character `at`. `level`: 0 the strongest (a page
    of a PDF, a chapter, a top-level class) to 3 (a paragraph) and 4 (a line). `heading`: the path
    of headings in force from here on, "" where there is none."""

    at: int
    level: int
    heading: str


@dataclass(frozen=True)
class Document:
    """`kind`: text, markdown, html, pdf or code. `text` has LF line ends and no control characters
    but tab and LF. `breaks` rise; the first is at 0."""

    kind: str
    title: str
    text: str
    breaks: tuple[Break, ...]


@dataclass(frozen=True)
class Heading:
    """A heading that stands at character `at`; `level` 0 to 2, deeper ones count as 2."""

    at: int
    level: int
    title: str


_LINES = re.compile(r"\n(?=[ \t]*\S)")


def breaks_of(text: str, headings: Iterable[Heading]) -> tuple[Break, ...]:
    """All boundaries of a text: its headings, paragraphs and lines."""
    levels: dict[int, int] = {0: PARAGRAPH}
    for match in _LINES.finditer(text):
        before = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        levels[match.end()] = LINE if before.strip() else PARAGRAPH
    path: list[str] = []
    named: dict[int, str] = {}
    for heading in sorted(headings, key=lambda one: one.at):
        level = min(heading.level, SUBSECTION)
        levels[heading.at] = min(level, levels.get(heading.at, level))
        path[level:] = [*([""] * (level - len(path))), shortened(heading.title)]
        named[heading.at] = " > ".join(part for part in path if part)
    out, current = [], ""
    for at in sorted(levels):
        current = named.get(at, current)
        out.append(Break(at, levels[at], current))
    return tuple(out)


def shortened(title: str) -> str:
    """A title in one line, cut where it is over `limits.MAX_HEADING_CHARS`: it stands before every
    page under it."""
    title = " ".join(title[: MAX_HEADING_CHARS * 4].split())
    if len(title) > MAX_HEADING_CHARS:
        title = title[: MAX_HEADING_CHARS - 1].rstrip() + "…"
    return title
