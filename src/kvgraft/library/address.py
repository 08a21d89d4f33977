"""The exact address of a request: canonical text, and a digest over everything that matters.

A stored answer is returned for one reason only: the request asked again is the same request
(invariant I6). "Same" is written down in `docs/ADDRESS.md`, byte by byte; this module is that
page in code.
"""

from __future__ import annotations

import re
import struct
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, replace

from blake3 import blake3

from kvgraft import limits
from kvgraft.errors import InputError

ADDRESS_VERSION = 1
ADDRESS_BYTES = 32

_CONTEXT = "kvgraft 2026-11 v1 library address"
_PARTS_CONTEXT = "kvgraft 2026-11 v1 library parts"

_U64 = struct.Struct("<Q")
_FIELD = struct.Struct("<BBQ")  # number, kind, length of what follows in bytes
_ABSENT, _TEXT, _INTEGER, _LIST = 0, 1, 2, 3
_PROBLEM = 12
_PROBLEM_HEAD = bytes((_PROBLEM, _TEXT))

# No character below U+0300 combines. These three have combining class 0 and still decompose into
# combining marks alone.
_MAYBE_MARKS = re.compile(r"[^\x00-\u02ff]+")
_HIDDEN_MARKS = "\u0f73\u0f75\u0f81"


# --- canonical text -------------------------------------------------------------------------


def canonical_text(text: str) -> str:
    """The one form of `text` that is addressed and, equally, tokenised.

    Three things change and nothing else: Unicode is composed (NFC); CRLF and CR become LF; space
    and tab before a line end, and space, tab and line ends at the end of the text, are removed.
    Never inner or leading white space, never case, never signs or digits. Idempotent.

    Raises:
        InputError: a lone surrogate, a NUL, more than `limits.MAX_PROMPT_BYTES` of UTF-8, or a
            run of more than `limits.MAX_COMBINING_RUN` combining marks.
    """
    if len(text) > limits.MAX_PROMPT_BYTES:
        raise _too_long(len(text))
    if not text.isascii():
        text = _composed(text)
    if "\0" in text:
        raise InputError(
            "the text holds a NUL character",
            where=f"character {text.index(chr(0))}",
            hint="remove it: no model's text has one",
        )
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    # Looking is several times cheaper than splitting, and most texts have nothing to remove.
    if text[-1:] in (" ", "\t", "\n") or " \n" in text or "\t\n" in text:
        text = "\n".join([line.rstrip(" \t") for line in text.split("\n")]).rstrip("\n")
    return text


def _composed(text: str) -> str:
    """`text` in NFC, after the checks that keep composing it safe."""
    _check_bytes(text)
    if len(text) > limits.MAX_COMBINING_RUN:
        _check_combining_runs(text)
    if unicodedata.is_normalized("NFC", text):
        return text
    composed = unicodedata.normalize("NFC", text)
    _check_bytes(composed)  # composing may lengthen: some characters have only a longer form
    return composed


def _check_bytes(text: str) -> None:
    try:
        size_bytes = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise InputError(
            "the text holds a lone surrogate, which no encoding can carry",
            where=f"character {error.start}",
            hint="decode the source as UTF-8, or pair the \\uD8xx\\uDCxx escapes",
        ) from None
    if size_bytes > limits.MAX_PROMPT_BYTES:
        raise _too_long(size_bytes)


def _check_combining_runs(text: str) -> None:
    # Canonical ordering sorts each run of marks by insertion: its time grows with the square of
    # the run, so that a few hundred kilobytes of marks would hold a server for minutes.
    for stretch in _MAYBE_MARKS.finditer(text):
        run = 0
        for character in stretch.group():
            marks = unicodedata.combining(character) or character in _HIDDEN_MARKS
            run = run + 1 if marks else 0
            if run > limits.MAX_COMBINING_RUN:
                raise InputError(
                    f"more than {limits.MAX_COMBINING_RUN} combining marks in a row",
                    where=f"characters {stretch.start()} to {stretch.end()}",
                )


def _too_long(size_bytes: int) -> InputError:
    return InputError(
        f"the text has {size_bytes:,} bytes or more, the limit is {limits.MAX_PROMPT_BYTES:,}",
        hint="page a long text instead of asking it whole",
    )


# --- the request ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RequestIdentity:
    """Everything that makes a request this request and no other.

    `problem` and `system` are held in canonical form, so what is read back from here is what has
    to be tokenised. Every other text is taken exactly as it is. `None` and `""` differ.

    `tools_digest` and `images_digest` stand for content (see `digest_parts`); `max_tokens` and
    `stop` are the request's own, not a solver's budget; `parent` is the deposit that a follow-up
    continues; `extra` carries whatever else an edge finds in a request that can change its
    answer, as sorted pairs with unique names.

    Raises:
        InputError: text that `canonical_text` refuses, an empty tenant or digest, a field over
            its cap, `max_tokens` below 1, a name twice in `extra`.
    """

    problem: str
    tenant: str
    template_digest: str
    tokenizer_digest: str
    system: str | None = None
    tools_digest: str | None = None
    tool_choice: str | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    images_digest: str | None = None
    parent: str | None = None
    extra: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        put = object.__setattr__  # the dataclass is frozen; this is its constructor
        put(self, "problem", canonical_text(self.problem))
        if self.system is not None:
            put(self, "system", canonical_text(self.system))
        put(self, "stop", tuple(self.stop))
        put(self, "extra", tuple(sorted((name, value) for name, value in self.extra)))
        for name in ("tenant", "template_digest", "tokenizer_digest"):
            if not getattr(self, name):
                raise InputError(f"{name} is empty", where="request identity")
        for name in ("tools_digest", "images_digest", "parent"):
            if getattr(self, name) == "":
                raise InputError(f"{name} is empty; None says absent", where="request identity")
        for name in _EXACT_FIELDS:
            _check_exact(name, getattr(self, name))
        for text in self.stop:
            _check_exact("stop", text)
        for pair in self.extra:
            for text in pair:
                _check_exact("extra", text)
        if len({name for name, _ in self.extra}) != len(self.extra):
            raise InputError("a name stands twice in extra", where="request identity")
        if self.max_tokens is not None and not 1 <= self.max_tokens < 2**63:
            raise InputError(f"max_tokens is {self.max_tokens}, not a positive number of tokens")


_EXACT_FIELDS = (
    "tenant",
    "template_digest",
    "tokenizer_digest",
    "tools_digest",
    "tool_choice",
    "images_digest",
    "parent",
)


def _check_exact(name: str, text: str | None) -> None:
    if text is None:
        return
    try:
        size_bytes = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise InputError(f"{name} holds a lone surrogate", where="request identity") from None
    if "\0" in text:
        raise InputError(f"{name} holds a NUL character", where="request identity")
    if size_bytes > limits.MAX_ADDRESS_FIELD_BYTES:
        raise InputError(
            f"{name} has {size_bytes:,} bytes, the limit is {limits.MAX_ADDRESS_FIELD_BYTES:,}",
            where="request identity",
        )


# --- the digest -----------------------------------------------------------------------------


class AddressSpace:
    """Addresses of requests that differ in their problem alone.

    The rest of the identity is hashed once, here; `address` then hashes only the problem, in a
    few microseconds. Safe to share between threads.
    """

    def __init__(self, like: RequestIdentity) -> None:
        """`like` gives everything but the problem."""
        self._like = like
        self._hasher = blake3(_everything_but_the_problem(like), derive_key_context=_CONTEXT)

    @property
    def tenant(self) -> str:
        return self._like.tenant

    def identity(self, problem: str) -> RequestIdentity:
        """The identity of the request that asks `problem` here.

        Raises:
            InputError: as `canonical_text`.
        """
        return replace(self._like, problem=problem)

    def address(self, problem: str) -> bytes:
        """The 32-byte address of `problem`, which is put into canonical form first.

        Raises:
            InputError: as `canonical_text`.
        """
        data = canonical_text(problem).encode("utf-8")
        hasher = self._hasher.copy()
        hasher.update(_PROBLEM_HEAD + _U64.pack(len(data)) + data)
        digest: bytes = hasher.digest()
        return digest


def address(identity: RequestIdentity) -> bytes:
    """The 32-byte BLAKE3 address of a request (layout: `docs/ADDRESS.md`)."""
    return AddressSpace(identity).address(identity.problem)


def digest_parts(parts: Iterable[bytes]) -> str:
    """Hex digest of an ordered list of byte strings, such as a request's images.

    Each part enters with its length, so that moving bytes from one part to the next changes the
    digest; so does another order.
    """
    hasher = blake3(derive_key_context=_PARTS_CONTEXT)
    for part in parts:
        hasher.update(_U64.pack(len(part)))
        hasher.update(part)
    digest: str = hasher.hexdigest()
    return digest


def _everything_but_the_problem(identity: RequestIdentity) -> bytes:
    pairs = [text for pair in identity.extra for text in pair]
    return b"".join(
        (
            bytes((ADDRESS_VERSION,)),
            _text(1, identity.tenant),
            _text(2, identity.system),
            _text(3, identity.template_digest),
            _text(4, identity.tokenizer_digest),
            _text(5, identity.tools_digest),
            _text(6, identity.tool_choice),
            _list(7, identity.stop),
            _integer(8, identity.max_tokens),
            _text(9, identity.images_digest),
            _text(10, identity.parent),
            _list(11, pairs),
        )
    )


def _text(number: int, text: str | None) -> bytes:
    if text is None:
        return _FIELD.pack(number, _ABSENT, 0)
    data = text.encode("utf-8")
    return _FIELD.pack(number, _TEXT, len(data)) + data


def _integer(number: int, value: int | None) -> bytes:
    if value is None:
        return _FIELD.pack(number, _ABSENT, 0)
    return _FIELD.pack(number, _INTEGER, _U64.size) + _U64.pack(value)


def _list(number: int, texts: Iterable[str]) -> bytes:
    items = [text.encode("utf-8") for text in texts]
    data = _U64.pack(len(items)) + b"".join(_U64.pack(len(item)) + item for item in items)
    return _FIELD.pack(number, _LIST, len(data)) + data
