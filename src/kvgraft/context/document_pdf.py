"""PDF: the text of its pages, divided at them."""

from __future__ import annotations

import io
import logging
from pathlib import PurePath
from typing import Any

from kvgraft.context.document import CHAPTER, Document, Heading, breaks_of
from kvgraft.context.document_text import clean
from kvgraft.errors import InputError, KvgraftError, LimitExceeded, MissingExtra
from kvgraft.limits import MAX_PDF_PAGES


def read_pdf(name: str, data: bytes) -> Document:
    """The text of a PDF's pages.

    Raises:
        MissingExtra: pypdf is not installed.
        InputError: it is encrypted, damaged, or has no text (pages that were scanned).
        LimitExceeded: it has over `limits.MAX_PDF_PAGES` pages.
    """
    try:
        import pypdf
    except ImportError as error:
        raise MissingExtra(
            "PDF files need the package pypdf", hint="pip install 'kvgraft[documents]'", where=name
        ) from error
    logging.getLogger("pypdf").setLevel(logging.ERROR)
    try:
        pages, title = _texts(name, pypdf.PdfReader(io.BytesIO(data)))
    except KvgraftError:
        raise
    except Exception as error:  # whatever a damaged file makes of the parser
        raise InputError(f"it cannot be read as PDF: {error}", where=name) from error
    parts: list[str] = []
    headings, at = [], 0
    for number, page in enumerate(pages, 1):
        if page.strip():
            headings.append(Heading(at, CHAPTER, f"page {number}"))
            parts.append(page.strip("\n") + "\n\n")
            at += len(parts[-1])
    text = "".join(parts)
    if not text.strip():
        raise InputError(
            "it has no text: its pages may be pictures", where=name, hint="recognise its text first"
        )
    return Document("pdf", title or PurePath(name).name, text, breaks_of(text, headings))


def _texts(name: str, reader: Any) -> tuple[list[str], str]:
    if reader.is_encrypted and not reader.decrypt(""):
        raise InputError("it is encrypted", where=name, hint="remove its password first")
    if len(reader.pages) > MAX_PDF_PAGES:
        raise LimitExceeded(f"over {MAX_PDF_PAGES:,} pages", where=name)
    title = str((reader.metadata or {}).get("/Title") or "").strip()
    texts = [clean(page.extract_text() or "").replace("\f", "\n") for page in reader.pages]
    # Glyphs that stand for nothing come out as lone surrogates.
    plain = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
    return plain, clean(title).replace("\n", " ")
