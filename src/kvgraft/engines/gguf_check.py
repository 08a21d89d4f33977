"""Is this a whole GGUF file? Answered from its header, before anything tries to load it.

Loaders map the file and slice it, so one that was cut short, or one piece of a split download,
otherwise fails deep inside them, or not at all.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TypeVar

from blake3 import blake3

from kvgraft.errors import MissingExtra, UnreadableModel

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT_BYTES = 32  # the format's default
MAX_DIMS = 8  # the format allows 4; more than this is garbage
MAX_ROWS = 100_000  # metadata entries, or tensors: real files have a few hundred
MIN_BYTES = 24  # magic, version, two counts

_TOKENIZER, _TEMPLATE = "tokenizer.", "tokenizer.chat_template"
_ALIGNMENT_KEY, _SPLIT_KEY = "general.alignment", "split.count"
_STRING, _ARRAY = 8, 9
_EMBEDDING, _HEAD, _EXPERTS = "token_embd.weight", "output.weight", "_exps."
_NOT_BODY = (
    *(_HEAD, _EMBEDDING, "per_layer_token_embd.weight"),
    *("position_embd.weight", "token_types.weight"),
    *("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"),
)
# struct codes of the metadata types of fixed size.
_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_Result = TypeVar("_Result")
_CUT_HINT = "it was cut short or damaged: copy or download it again"


@dataclass(frozen=True)
class GgufSummary:
    """What the header says. `parameters` counts the elements of all tensors: `body` without tables
    that are only looked up and without the matrix that gives logits, `head` those of that matrix,
    which may be such a table. `experts`: a token meets a part of the body only."""

    version: int
    architecture: str
    tensors: int
    parameters: int
    body: int
    head: int
    experts: bool


def check_gguf(path: Path) -> GgufSummary:
    """Check magic, version and metadata, and that every tensor lies inside the file.

    Reads the header only. Raises UnreadableModel, and MissingExtra without the `gguf` package.
    """
    return _reading(path, _walk)


def tokenizer_digest(path: Path) -> str:
    """Hex BLAKE3 over every metadata entry that says how text becomes ids, the chat template left
    out. Raises UnreadableModel."""
    return _reading(path, _digest_tokenizer)


def _reading(path: Path, work: Callable[[_Cursor], _Result]) -> _Result:
    """The result of `work` over the file's header."""
    try:
        with path.open("rb") as handle:
            start = handle.read(MIN_BYTES)
            if not start.startswith(MAGIC):
                hint = "give a .gguf file, or a folder with config.json"
                raise _unreadable("this is not a GGUF file (no GGUF magic)", path, hint)
            if len(start) < MIN_BYTES:
                raise _unreadable(f"the file ends after {len(start)} bytes", path, _CUT_HINT)
            with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return work(_Cursor(data, path))
    except OSError as exc:
        hint = "check the path and its permissions"
        raise _unreadable(f"cannot read the file: {exc.strerror or exc}", path, hint) from exc


def _unreadable(what: str, path: Path, hint: str) -> UnreadableModel:
    return UnreadableModel(what, where=str(path), hint=hint)


class _Cursor:
    """Reads a header front to back and refuses to pass the end of the file."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.at = 0

    def skip(self, count: int) -> int:
        """Step over `count` bytes; the offset they start at."""
        start = self.at
        if count > len(self.data) - start:
            what = f"the header needs more than the file's {len(self.data)} bytes"
            raise _unreadable(what, self.path, _CUT_HINT)
        self.at += count
        return start

    def number(self, code: str) -> int:
        layout = struct.Struct(f"<{code}")
        return int(layout.unpack_from(self.data, self.skip(layout.size))[0])

    def text(self) -> str:
        length = self.number("Q")
        start = self.skip(length)
        return self.data[start : start + length].decode("utf-8", errors="replace")

    def value(self, kind: int) -> int | str | None:
        """One metadata value; None for those nobody here asks about (arrays, floats)."""
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            inner, count = self.number("I"), self.number("Q")
            if inner in _CODES:
                self.skip(count * struct.calcsize(_CODES[inner]))
            elif inner == _STRING:
                for _ in range(count):  # ends early by itself: each string takes 8 bytes or more
                    self.skip(self.number("Q"))
            else:
                raise self.damaged(f"an array of type {inner}")
            return None
        if kind not in _CODES:
            raise self.damaged(f"a value of type {kind}")
        if _CODES[kind] in "fd":
            self.skip(struct.calcsize(_CODES[kind]))
            return None
        return self.number(_CODES[kind])

    def damaged(self, what: str) -> UnreadableModel:
        return _unreadable(f"the header holds {what} at byte {self.at}", self.path, _CUT_HINT)


@dataclass(frozen=True)
class _Start:
    """What stands before the metadata."""

    version: int
    tensors: int
    entries: int


def _start(cursor: _Cursor) -> _Start:
    path = cursor.path
    cursor.skip(len(MAGIC))
    version = cursor.number("I")
    if version not in VERSIONS:
        hint = f"versions {VERSIONS[0]} and {VERSIONS[1]} are read, little-endian; convert it anew"
        raise _unreadable(f"GGUF version {version} is not known", path, hint)
    tensor_count, entry_count = cursor.number("Q"), cursor.number("Q")
    if max(tensor_count, entry_count) > MAX_ROWS:
        raise cursor.damaged(f"{tensor_count} tensors and {entry_count} entries")
    return _Start(version, tensor_count, entry_count)


def _entries(cursor: _Cursor, count: int) -> Iterator[tuple[str, int | str | None, int]]:
    """Key, value and the offset of the value's type, entry by entry."""
    for _ in range(count):
        key, at = cursor.text(), cursor.at
        yield key, cursor.value(cursor.number("I")), at


def _digest_tokenizer(cursor: _Cursor) -> str:
    found = {
        key: blake3(cursor.data[at : cursor.at]).hexdigest()
        for key, _, at in _entries(cursor, _start(cursor).entries)
        if key.startswith(_TOKENIZER) and not key.startswith(_TEMPLATE)
    }
    return blake3("\n".join(f"{key} {found[key]}" for key in sorted(found)).encode()).hexdigest()


def _walk(cursor: _Cursor) -> GgufSummary:
    path, start = cursor.path, _start(cursor)
    tensor_count = start.tensors
    known = {key: value for key, value, _ in _entries(cursor, start.entries)}
    architecture, split = known.get("general.architecture"), known.get(_SPLIT_KEY)
    if not isinstance(architecture, str):
        raise _unreadable("the file names no architecture", path, _CUT_HINT)
    if isinstance(split, int) and split > 1:
        raise _unreadable(f"this is one of {split} pieces", path, "merge the pieces into one file")
    if not tensor_count:
        raise _unreadable("the file holds no tensors", path, "give a GGUF file with weights")
    sizes = _type_sizes()
    extents = [_tensor(cursor, sizes) for _ in range(tensor_count)]
    alignment = known.get(_ALIGNMENT_KEY, ALIGNMENT_BYTES)
    if not isinstance(alignment, int) or alignment < 1:
        raise cursor.damaged(f"the alignment {alignment}")
    data_start = -(-cursor.at // alignment) * alignment
    needed = data_start + max(offset + size for _, _, offset, size in extents)
    if needed > len(cursor.data):
        what = f"the tensors need {needed} bytes and the file has {len(cursor.data)}"
        raise _unreadable(what, path, _CUT_HINT)
    elements = {name: count for name, count, _, _ in extents}
    return GgufSummary(
        start.version,
        architecture,
        tensor_count,
        parameters=sum(elements.values()),
        body=sum(count for name, count in elements.items() if name not in _NOT_BODY),
        head=elements.get(_HEAD, elements.get(_EMBEDDING, 0)),
        experts=any(_EXPERTS in name for name in elements),
    )


def _type_sizes() -> dict[int, tuple[int, int]]:
    """For each tensor type, the elements and the bytes of one block."""
    try:
        from gguf.constants import GGML_QUANT_SIZES
    except ImportError as exc:
        hint = "pip install 'kvgraft[transformers]'"
        raise MissingExtra("reading GGUF needs gguf", where="gguf", hint=hint) from exc
    return {int(kind): size for kind, size in GGML_QUANT_SIZES.items()}


def _tensor(cursor: _Cursor, sizes: dict[int, tuple[int, int]]) -> tuple[str, int, int, int]:
    """One row of the tensor table: name, elements, offset in the data, bytes."""
    name, dim_count = cursor.text(), cursor.number("I")
    if dim_count > MAX_DIMS:
        raise cursor.damaged(f"a tensor of {dim_count} dimensions")
    elements = prod(cursor.number("Q") for _ in range(dim_count))
    kind, offset = cursor.number("I"), cursor.number("Q")
    if kind not in sizes:
        raise cursor.damaged(f"the unknown type {kind} of tensor {name!r}")
    block_elements, block_bytes = sizes[kind]
    return name, elements, offset, elements // block_elements * block_bytes
