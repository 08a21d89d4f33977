"""The object header: what is packed is parsed, and nothing else is."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from kvgraft.blob.header import MAX_POSITION, ObjectHeader, parse_header
from kvgraft.errors import ArtifactError, DigestMismatch, FormatError, Truncated, UnsupportedVersion
from kvgraft.limits import MAX_OBJECT_BYTES
from kvgraft.state import Role

DIGEST = bytes(range(32))
SOUND = ObjectHeader(Role.NEAR, b"k" * 32, b"f" * 32, DIGEST, DIGEST, 5000, 5000, 16, 5, 8)
DIGESTS = st.binary(min_size=32, max_size=32)


def resigned(data: bytes) -> bytes:
    """The header with its own digest made right again: what is left to refuse is the content."""
    return data[:224] + blake3(data[:224]).digest()


def edited(offset: int, content: bytes, header: ObjectHeader = SOUND) -> bytes:
    data = bytearray(header.pack())
    data[offset : offset + len(content)] = content
    return resigned(bytes(data))


@given(
    role=st.sampled_from(Role),
    key=DIGESTS,
    fingerprint=DIGESTS,
    digest=DIGESTS,
    length=st.integers(1, MAX_OBJECT_BYTES),
    start=st.integers(0, 2**62),
    count=st.integers(1, 2**32 - 1),
    data=st.data(),
)
def test_round_trip(role, key, fingerprint, digest, length, start, count, data) -> None:
    rows = data.draw(st.integers(count, 2**32 - 1))
    header = ObjectHeader(
        role, key, fingerprint, digest, digest, length, length, start, count, rows
    )
    packed = header.pack()
    assert len(packed) == 256
    assert parse_header(packed) == header
    assert parse_header(memoryview(packed)) == header


@pytest.mark.parametrize("size", [0, 1, 255, 257, 4096])
def test_another_length_is_refused(size: int) -> None:
    with pytest.raises(Truncated):
        parse_header(SOUND.pack().ljust(size, b"\0")[:size])


@pytest.mark.parametrize("offset", range(8))
def test_another_magic_is_refused(offset: int) -> None:
    data = bytearray(SOUND.pack())
    data[offset] ^= 1
    for tried in (bytes(data), resigned(bytes(data))):
        with pytest.raises(FormatError, match="not a kvgraft object"):
            parse_header(tried)


@pytest.mark.parametrize("version", [0, 2, 256, 65535])
def test_another_version_is_refused_by_number(version: int) -> None:
    with pytest.raises(UnsupportedVersion, match=str(version)) as caught:
        parse_header(edited(8, version.to_bytes(2, "little")))
    assert caught.value.hint


def test_every_flipped_bit_is_noticed() -> None:
    sound = SOUND.pack()
    for bit in range(8 * len(sound)):
        data = bytearray(sound)
        data[bit // 8] ^= 1 << bit % 8
        expected = FormatError if bit < 80 else DigestMismatch  # magic and version come first
        with pytest.raises(expected):
            parse_header(bytes(data))


@pytest.mark.parametrize("role", [0, 4, 255])
def test_an_unknown_role_is_refused(role: int) -> None:
    with pytest.raises(FormatError, match=f"role {role}"):
        parse_header(edited(10, bytes([role])))


@pytest.mark.parametrize("offset", [11, 12])
def test_an_unknown_codec_or_seal_is_refused(offset: int) -> None:
    with pytest.raises(FormatError, match="codec"):
        parse_header(edited(offset, b"\x01"))


@pytest.mark.parametrize("offset", [13, 14, 15, *range(176, 224)])
def test_reserved_bytes_are_zero(offset: int) -> None:
    with pytest.raises(FormatError, match="reserved"):
        parse_header(edited(offset, b"\x01"))


@pytest.mark.parametrize("length", [0, MAX_OBJECT_BYTES + 1, 2**63, 2**64 - 1])
def test_absurd_lengths_are_refused(length: int) -> None:
    with pytest.raises(FormatError, match="length"):
        parse_header(replace(SOUND, raw_length=length, stored_length=length).pack())
    parse_header(replace(SOUND, raw_length=1, stored_length=1).pack())


def test_raw_and_stored_agree_without_a_codec() -> None:
    with pytest.raises(FormatError, match="length differ"):
        parse_header(replace(SOUND, raw_length=4999).pack())
    # Readers hash the stored bytes: a raw digest beside another stored one would prove nothing.
    with pytest.raises(FormatError, match="digest differ"):
        parse_header(replace(SOUND, stored_digest=bytes(32)).pack())


@pytest.mark.parametrize(
    ("start", "count", "rows"),
    [(0, 0, 8), (0, 9, 8), (MAX_POSITION, 1, 1), (2**64 - 1, 5, 8)],
)
def test_impossible_places_are_refused(start: int, count: int, rows: int) -> None:
    with pytest.raises(FormatError):
        parse_header(replace(SOUND, start=start, count=count, rows=rows).pack())


def test_the_last_possible_place_is_read() -> None:
    header = replace(SOUND, start=MAX_POSITION - 5)
    assert parse_header(header.pack()) == header


@given(st.binary(min_size=246, max_size=246))
def test_noise_behind_a_sound_beginning_raises_only_typed_errors(noise: bytes) -> None:
    data = SOUND.pack()[:10] + noise
    for tried in (data, resigned(data)):
        with contextlib.suppress(ArtifactError):
            parse_header(tried)
