"""Source code: its text as it is, divided at its functions and classes."""

from __future__ import annotations

import ast
import re
import warnings
from itertools import accumulate
from pathlib import PurePath

from kvgraft.context.document import SECTION, SUBSECTION, Document, Heading, breaks_of
from kvgraft.limits import MAX_PARSED_SOURCE_CHARS

# A line that begins at the margin behind an empty one, and is no comment, bracket or directive.
_TOP = re.compile(r"(?<=\n\n)(?=[A-Za-z_@])([^\n]{1,80})")


def read_code(name: str, text: str) -> Document:
    """A source file; headings are the first lines of its definitions."""
    text = text.replace("\f", "")
    headings = None
    if PurePath(name).suffix in (".py", ".pyi"):
        headings = _python(text)
    if headings is None:
        headings = [
            Heading(match.start(), SUBSECTION, match[1].strip(" {(:"))
            for match in _TOP.finditer(text)
        ]
    return Document("code", PurePath(name).name, text, breaks_of(text, headings))


def _python(text: str) -> list[Heading] | None:
    """Definitions by the parser; None where it does not take the text."""
    if len(text) > MAX_PARSED_SOURCE_CHARS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    starts = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
    headings = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            headings.append(Heading(_start(node, starts), SECTION, node.name))
        if isinstance(node, ast.ClassDef):
            headings += [
                Heading(_start(one, starts), SUBSECTION, one.name)
                for one in node.body
                if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
    return headings


def _start(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, starts: list[int]) -> int:
    """Where its first line begins, decorators included."""
    return starts[min([node.lineno, *(one.lineno for one in node.decorator_list)]) - 1]
