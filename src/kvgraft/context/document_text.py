"""Bytes to the text that a model is to read: encodings, line ends, control characters."""

from __future__ import annotations

import codecs
import re

from kvgraft.errors import InputError

_DECLARED = re.compile(rb"""(?i)(?:charset|encoding)\s*=\s*["']?\s*([a-z0-9._-]{1,40})""")
_HEAD_BYTES = 1_024  # in which a page of HTML or XML declares its encoding
# Codecs of Python that no document is in: their text is not what stands in the file.
_NO_ENCODINGS = frozenset(
    ["idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape", "utf-7"]
)
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b\x0e-\x1f\x7f-\x84\x86-\x9f]")
_ENDS = re.compile(r"\r\n|[\r\x85\u2028\u2029]")


def decoded(name: str, data: bytes, *, declared: bool = False) -> str:
    """Text of bytes: UTF-8, or UTF-16 and UTF-32 with their marks; with `declared`, in the encoding
    that it declares. Anything else is refused: a guess would be read as if it stood there.

    Raises:
        InputError: it is binary, or in another encoding.
    """
    for mark, encoding in (
        (b"\xef\xbb\xbf", "utf-8-sig"),
        (b"\xff\xfe\x00\x00", "utf-32"),
        (b"\x00\x00\xfe\xff", "utf-32"),
        (b"\xff\xfe", "utf-16"),
        (b"\xfe\xff", "utf-16"),
    ):
        if data.startswith(mark):
            return clean(_decode(name, data, encoding))
    if b"\x00" in data:
        raise InputError("it is binary, or UTF-16 without a byte order mark", where=name)
    found = _DECLARED.search(data[:_HEAD_BYTES]) if declared else None
    try:
        return clean(_decode(name, data, "utf-8"))
    except InputError:
        if found is None:
            raise
    return clean(_decode(name, data, _codec(name, found[1].decode("ascii"))))


def clean(text: str) -> str:
    """Text with LF line ends and without control characters: what a model is to read. A form feed
    stays, as the mark of a page."""
    text = _ENDS.sub("\n", text)
    if "\x08" in text:
        text = _struck_over(text)
    return _CONTROL.sub("", text)


def _struck_over(text: str) -> str:
    """Text without what a back space takes back: how manual pages print bold and underlined."""
    kept: list[str] = []
    for character in text:
        if character != "\x08":
            kept.append(character)
        elif kept and kept[-1] != "\n":
            kept.pop()
    return "".join(kept)


def _codec(name: str, declared: str) -> str:
    try:
        known = codecs.lookup(declared).name
    except LookupError:
        known = "undefined"
    if known in _NO_ENCODINGS:
        raise InputError(
            f"it declares {declared!r}, which is no known encoding",
            where=name,
            hint="convert the file to UTF-8 first",
        )
    # As browsers do: who declares Latin-1 uses the quotes and dashes of Windows-1252.
    return "cp1252" if known in ("iso8859-1", "ascii") else known


def _decode(name: str, data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except LookupError:
        what = f"{encoding} is no encoding of text"
    except UnicodeDecodeError as error:
        what = f"not {encoding}: {error.reason} at byte {error.start}"
    except UnicodeError as error:
        what = f"not {encoding}: {error}"
    raise InputError(what, where=name, hint="convert the file to UTF-8 first")
