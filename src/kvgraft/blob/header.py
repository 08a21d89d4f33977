"""The fixed 256-byte header in front of every stored object (`docs/FORMAT.md`, "Object header").

It names the object (key, role), its place in the sequence (start, count, rows), its maker
(fingerprint digest), and three digests that are kept apart: of the raw payload (equal for every
tenant, codec and sealing), of the stored bytes (transport), and of the header itself.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from kvgraft.errors import DigestMismatch, FormatError, Truncated, UnsupportedVersion
from kvgraft.limits import MAX_OBJECT_BYTES, OBJECT_HEADER_BYTES
from kvgraft.state import Role

MAGIC = b"KVGRAFT\x00"
VERSION = 1
CODEC_RAW = 0
SEAL_NONE = 0

# magic, version, role, codec, seal, 3 zero bytes; key, fingerprint, raw, stored digests;
# raw and stored length; start, count, rows. Little endian, no padding.
_FIELDS = struct.Struct("<8sHBBB3s32s32s32s32sQQQII")
_DIGEST_BYTES = 32
# Positions and offsets fit a signed 64-bit integer: file offsets and SQLite integers are that.
MAX_POSITION = 2**63 - 1
_ZEROS = bytes(OBJECT_HEADER_BYTES - _FIELDS.size - _DIGEST_BYTES)


@dataclass(frozen=True)
class ObjectHeader:
    """`start`, `count`: the tokens the object covers; `rows`: the shape of the call."""

    role: Role
    key: bytes
    fingerprint: bytes
    raw_digest: bytes
    stored_digest: bytes
    raw_length: int
    stored_length: int
    start: int
    count: int
    rows: int

    def pack(self) -> bytes:
        """The 256 bytes."""
        body = _FIELDS.pack(
            MAGIC,
            VERSION,
            self.role.value,
            CODEC_RAW,
            SEAL_NONE,
            bytes(3),
            self.key,
            self.fingerprint,
            self.raw_digest,
            self.stored_digest,
            self.raw_length,
            self.stored_length,
            self.start,
            self.count,
            self.rows,
        )
        return body + _ZEROS + blake3(body + _ZEROS).digest()


def parse_header(data: bytes | bytearray | memoryview, *, where: str = "") -> ObjectHeader:
    """Read and check a header.

    Raises:
        Truncated: not 256 bytes.
        FormatError: not a kvgraft object, or a field out of its range.
        UnsupportedVersion: a format version this release does not read.
        DigestMismatch: the header is not as written.
    """
    data = bytes(data)
    if len(data) != OBJECT_HEADER_BYTES:
        raise Truncated(
            f"an object header has {OBJECT_HEADER_BYTES} bytes, not {len(data)}", where=where
        )
    if data[:8] != MAGIC:
        raise FormatError("this is not a kvgraft object", where=where)
    version = int.from_bytes(data[8:10], "little")
    if version != VERSION:
        raise UnsupportedVersion(
            f"format version {version}; this release reads {VERSION}",
            where=where,
            hint="use the release that wrote it, or rebuild the artifact from its tokens",
        )
    if blake3(data[:-_DIGEST_BYTES]).digest() != data[-_DIGEST_BYTES:]:
        raise DigestMismatch("the object header is damaged", where=where)
    fields = _FIELDS.unpack_from(data)
    role, codec, seal, zeros = fields[2:6]
    header = _checked(role, fields, where)
    if codec != CODEC_RAW or seal != SEAL_NONE:
        raise FormatError(f"unknown codec {codec} or seal {seal}", where=where)
    if zeros != bytes(3) or data[_FIELDS.size : -_DIGEST_BYTES] != _ZEROS:
        raise FormatError("reserved header bytes are not zero", where=where)
    return header


def _checked(role: int, fields: tuple[Any, ...], where: str) -> ObjectHeader:
    try:
        known_role = Role(role)
    except ValueError:
        raise FormatError(f"unknown object role {role}", where=where) from None
    header = ObjectHeader(known_role, *fields[6:])
    if header.raw_length != header.stored_length:
        raise FormatError("raw and stored length differ without a codec", where=where)
    if header.raw_digest != header.stored_digest:
        # Readers hash the stored bytes; unequal, they would prove nothing about the raw ones.
        raise FormatError("raw and stored digest differ without a codec", where=where)
    if not 0 < header.stored_length <= MAX_OBJECT_BYTES:
        raise FormatError(f"payload length {header.stored_length} is out of range", where=where)
    check_place(header.start, header.count, header.rows, where)
    return header


def check_place(start: int, count: int, rows: int, where: str) -> None:
    """Refuse tokens that cannot be a chunk.

    Raises:
        FormatError: no tokens, more than the call had rows, or positions out of range.
    """
    if not 0 < count <= rows:
        raise FormatError(f"{count} tokens in {rows} rows", where=where)
    if start + count > MAX_POSITION:
        raise FormatError(f"tokens at position {start} are out of range", where=where)
