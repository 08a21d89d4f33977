"""Markdown: its text as it is written, divided at its headings."""

from __future__ import annotations

from itertools import accumulate, pairwise
from pathlib import PurePath

from kvgraft.context.document import Document, Heading, breaks_of
from kvgraft.errors import MissingExtra


def read_markdown(name: str, text: str) -> Document:
    """A Markdown file; its first heading is its title.

    Raises:
        MissingExtra: markdown-it-py is not installed.
    """
    try:
        from markdown_it import MarkdownIt
    except ImportError as error:
        raise MissingExtra(
            "Markdown files need the package markdown-it-py",
            where=name,
            hint="pip install 'kvgraft[documents]'",
        ) from error
    text = text.replace("\f", "")
    lines = text.split("\n")
    starts = [0, *accumulate(len(line) + 1 for line in lines)]
    headings = []
    parser = MarkdownIt("commonmark", {"maxNesting": 20})
    # Blocks alone: headings are found without what is inside of lines, which can take long.
    parser.core.ruler.enableOnly(["normalize", "block"])
    tokens = parser.parse(text)
    for token, content in pairwise(tokens):
        if token.type == "heading_open" and token.map is not None and token.level == 0:
            level = int(token.tag[1:]) - 1
            headings.append(Heading(starts[token.map[0]], level, content.content))
    title = headings[0].title if headings else PurePath(name).name
    return Document("markdown", title, text, breaks_of(text, headings))
