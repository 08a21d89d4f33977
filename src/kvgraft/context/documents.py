"""Bytes of a file to a document: what kind it is, its text, where it may be divided."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath

from kvgraft.context.document import CHAPTER, Document, Heading, breaks_of, shortened
from kvgraft.context.document_text import decoded
from kvgraft.errors import InputError, LimitExceeded
from kvgraft.limits import MAX_DOCUMENT_BYTES

_MARKDOWN = frozenset({".md", ".markdown", ".mdown", ".mkd"})
_HTML = frozenset({".html", ".htm", ".xhtml"})
_XML = frozenset({".xml", ".svg", ".docbook"})
_CODE = frozenset(
    [
        ".py",
        ".pyi",
        ".c",
        ".h",
        ".cc",
        ".cpp",
        ".cxx",
        ".hh",
        ".hpp",
        ".cs",
        ".go",
        ".java",
        ".js",
        ".jsx",
        ".kt",
        ".lua",
        ".m",
        ".php",
        ".pl",
        ".pm",
        ".r",
        ".rb",
        ".rs",
        ".scala",
        ".sh",
        ".bash",
        ".sql",
        ".swift",
        ".ts",
        ".tsx",
        ".vb",
        ".zig",
        ".el",
        ".lisp",
        ".clj",
        ".ex",
        ".exs",
        ".erl",
        ".hs",
        ".ml",
    ]
)


def read_document(name: str, data: bytes) -> Document:
    """The document in a file's bytes; the suffix of its `name` says what kind it is.

    Raises:
        InputError: it is empty, not text, in an unknown encoding, or not what its suffix says.
        LimitExceeded: over `limits.MAX_DOCUMENT_BYTES`.
        MissingExtra: its kind needs a package that is not installed.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        raise LimitExceeded(f"over {MAX_DOCUMENT_BYTES:,} bytes", where=name)
    suffix = PurePath(name).suffix.lower()
    if suffix == ".pdf" or data.startswith(b"%PDF-"):
        from kvgraft.context.document_pdf import read_pdf

        return _checked(read_pdf(name, data), name)
    text = decoded(name, data, declared=suffix in _HTML or suffix in _XML)
    if suffix in _HTML:
        from kvgraft.context.document_html import read_html

        return _checked(read_html(name, text), name)
    if suffix in _MARKDOWN:
        from kvgraft.context.document_markdown import read_markdown

        return _checked(read_markdown(name, text), name)
    if suffix in _CODE:
        from kvgraft.context.document_code import read_code

        return _checked(read_code(name, text), name)
    return _checked(_read_text(name, text), name)


def _read_text(name: str, text: str) -> Document:
    """Plain text; a form feed begins a page of it."""
    headings, parts, at = [], [], 0
    for number, page in enumerate(text.split("\f")):
        if number and page.strip():
            headings.append(Heading(at, CHAPTER, ""))
        parts.append(page)
        at += len(page)
    whole = "".join(parts)
    return Document("text", PurePath(name).name, whole, breaks_of(whole, headings))


def _checked(document: Document, name: str) -> Document:
    if not document.text.strip():
        raise InputError("there is no text in it", where=name)
    try:
        document.text.encode()
    except UnicodeEncodeError:
        raise InputError("its text holds a lone surrogate", where=name) from None
    return replace(document, title=shortened(document.title) or PurePath(name).name)
