"""HTML: what a reader sees of it, divided at its headings."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import PurePath

from kvgraft.context.document import Document, Heading, breaks_of
from kvgraft.context.document_text import clean
from kvgraft.errors import InputError

_UNSEEN = frozenset(
    ["script", "style", "template", "noscript", "svg", "math", "head", "nav", "iframe", "object"]
)
_OF_HEAD = frozenset(["base", "link", "meta", "noscript", "script", "style", "template", "title"])
_BLOCKS = frozenset(
    [
        "address",
        "article",
        "aside",
        "blockquote",
        "body",
        "caption",
        "dd",
        "details",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figcaption",
        "figure",
        "footer",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "header",
        "hr",
        "html",
        "legend",
        "li",
        "main",
        "ol",
        "option",
        "p",
        "pre",
        "section",
        "summary",
        "table",
        "tbody",
        "td",
        "tfoot",
        "th",
        "thead",
        "tr",
        "ul",
    ]
)
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_PARAGRAPHS = frozenset(
    [*_HEADINGS, *["p", "table", "pre", "ul", "ol", "dl", "section", "article"]]
)
# What DocBook and Texinfo call them.
_NAVIGATION = frozenset(["navheader", "navfooter", "nav-panel"])
_SECTION = re.compile(r"<!\[[^>]*>?")
_SPACE = re.compile(r"[ \t\n\f]+")


def read_html(name: str, text: str) -> Document:
    """A page of HTML without its scripts, styles and navigation.

    Raises:
        InputError: the parser refuses it.
    """
    seen = _Seen()
    # Marked sections go with the comments, as in browsers: `<![if IE]>`, and what only begins so.
    text = _SECTION.sub("", _without_comments(text))
    # Behind the last ">" no tag can end, and the parser looks for its end from every "<" anew.
    end = text.rfind(">") + 1
    try:
        seen.feed(text[:end])
        seen.close()
    except AssertionError as error:  # how the parser refuses declarations
        raise InputError(f"it cannot be read as HTML: {error}", where=name) from error
    seen.handle_data(text[end:])
    seen.end_line()
    whole = seen.text()
    title = _SPACE.sub(" ", "".join(seen.title)).strip()
    title = title or next((one.title for one in seen.headings), "") or PurePath(name).name
    return Document("html", title, whole, breaks_of(whole, seen.headings))


def _navigates(tag: str, attrs: list[tuple[str, str | None]]) -> bool:
    """Whether it holds links to other pages and nothing of this one."""
    if tag not in ("div", "ul", "table"):
        return False
    known = dict(attrs)
    classes = (known.get("class") or "").split()
    return known.get("role") == "navigation" or not _NAVIGATION.isdisjoint(classes)


def _without_comments(text: str) -> str:
    """As a parser leaves them out, but in one pass, however many are not closed."""
    parts, at = [], 0
    while (start := text.find("<!--", at)) >= 0:
        parts.append(text[at:start])
        end = text.find("-->", start + 2)  # "<!-->" is a whole one
        if end < 0:
            return "".join(parts)
        at = end + 3
    return "".join([*parts, text[at:]])


class _Seen(HTMLParser):
    """Collects what is seen, line by line. It knows the outermost tag that hides what is in it and
    how often that is open, and has no stack of the others, so depth costs nothing."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title: list[str] = []
        self.headings: list[Heading] = []
        self._lines: list[str] = []
        self._length = 0  # of the lines so far, their ends included
        self._line: list[str] = []
        self._hiding = ""
        self._hidden = 0  # how often the hiding tag is open
        self._in_title = False
        self._preformatted = 0
        self._heading: int | None = None

    def text(self) -> str:
        return "".join(self._lines)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "body" or (self._hiding == "head" and tag not in _OF_HEAD):
            self._hiding, self._hidden, self._in_title = "", 0, False
        if tag == "title" and self._hiding in ("", "head"):
            self._in_title = True
        if not self._hidden and (tag in _UNSEEN or _navigates(tag, attrs)):
            self._hiding = tag
        self._hidden += tag == self._hiding
        if self._hidden:
            return
        if tag == "br":
            self.end_line()
        elif tag in ("td", "th") and self._line:
            self._line.append(" | ")
        elif tag in _BLOCKS:
            self._begin_block(tag)
        if tag == "li":
            self._line.append("- ")
        if tag == "pre":
            self._preformatted += 1

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        if self._hidden:
            self._hidden -= tag == self._hiding
            self._hiding = self._hiding if self._hidden else ""
            return
        if tag in ("td", "th"):
            return
        if tag in _BLOCKS and tag != "hr":
            self._end_heading(tag)
            self.end_line()
            if tag in _PARAGRAPHS:
                self._blank_line()
        if tag == "pre":
            self._preformatted = max(0, self._preformatted - 1)

    def handle_data(self, data: str) -> None:
        data = clean(data).replace("\f", " ")  # what character references bring along
        if self._in_title:
            self.title.append(data)
        if self._hidden or self._in_title:
            return
        if self._preformatted:
            first, *rest = data.split("\n")
            self._line.append(first)
            for line in rest:
                self.end_line()
                self._line.append(line)
        else:
            self._line.append(_SPACE.sub(" ", data))

    def _begin_block(self, tag: str) -> None:
        self._end_heading("")
        self.end_line()
        if tag in _PARAGRAPHS:
            self._blank_line()
        if tag in _HEADINGS:
            self._heading = _HEADINGS.index(tag)

    def _end_heading(self, tag: str) -> None:
        if self._heading is None:
            return
        title = _SPACE.sub(" ", "".join(self._line)).strip(" \u00b6#")
        if title:
            self.headings.append(Heading(self._length, self._heading, title))
        self._heading = None

    def end_line(self) -> None:
        """Put the line in hand behind the others."""
        line = "".join(self._line)
        line = line.rstrip() if self._preformatted else _SPACE.sub(" ", line).strip()
        self._line = []
        if line or self._preformatted:
            self._put(line + "\n")

    def _blank_line(self) -> None:
        if self._lines and self._lines[-1] != "\n":
            self._put("\n")

    def _put(self, line: str) -> None:
        self._lines.append(line)
        self._length += len(line)
