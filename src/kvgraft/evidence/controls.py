"""Negative controls: states that are wrong in one known way, and signed so that they are served.

A proof by equal digests is worth something only if a wrong state changes the digest. Each control
copies a stored prefix with one object altered and every digest made anew, so that nothing below
the logits can notice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvgraft.blob.payload import ChunkPlace, payload_head
from kvgraft.engines.base import Engine
from kvgraft.errors import ArtifactError
from kvgraft.limits import OBJECT_HEADER_BYTES
from kvgraft.plan import as_token_ids, chunk_keys, plan_calls, plan_root
from kvgraft.state import Role
from kvgraft.store.chunks import ChunkStore
from kvgraft.store.index import Index, IndexEntry
from kvgraft.store.memory import MemoryStore

FLIPPED_BIT = "one flipped bit"
WRONG_CHUNK = "another prompt's chunk"
NEIGHBOUR = "the neighbour's window"
CONTROLS = (FLIPPED_BIT, WRONG_CHUNK, NEIGHBOUR)


@dataclass(frozen=True)
class Prefix:
    """A stored prefix of full blocks: its chunks' keys and places."""

    keys: tuple[bytes, ...]
    places: tuple[ChunkPlace, ...]


def full_blocks(engine: Engine, ids: Sequence[int], stored: int) -> Prefix:
    """The full blocks among the first `stored` tokens of a prompt in the public namespace."""
    tokens = as_token_ids(ids)[:stored]
    calls = plan_calls(len(tokens), engine.form, engine.context_tokens)
    keys = chunk_keys(plan_root(engine.fingerprint.digest), tokens, calls)
    full = [number for number, call in enumerate(calls) if call.count == engine.form.block]
    places = [ChunkPlace(calls[n].start, calls[n].count, calls[n].rows) for n in full]
    return Prefix(tuple(keys[n] for n in full), tuple(places))


def altered_store(
    engine: Engine, chunks: ChunkStore, prefix: Prefix, donor: Prefix, control: str
) -> ChunkStore:
    """A copy of `prefix` in memory, its last block altered as `control` says.

    Raises:
        ArtifactError: an object of the prefix is not in the store.
    """
    copy = ChunkStore(MemoryStore(), Index(None))
    capture = copy.capture(engine.fingerprint)
    last = len(prefix.keys) - 1
    roles = engine.spec.roles()
    target = Role.NEAR if control == NEIGHBOUR and Role.NEAR in roles else roles[0]
    for number, (key, place) in enumerate(zip(prefix.keys, prefix.places, strict=True)):
        for role in roles:
            payload = _payload(chunks, key, role)
            if number == last and role is target:
                start = len(payload_head(engine.spec, role, place)) + 4 * place.count
                if control == FLIPPED_BIT:
                    # the last value's top exponent bit but one: a plausible, wrong number
                    payload[-1] ^= 0x20
                elif control == WRONG_CHUNK:
                    payload[start:] = _payload(chunks, donor.keys[last], role)[start:]
                else:
                    payload[start:] = _payload(chunks, prefix.keys[last - 1], role)[start:]
            parts = [memoryview(payload)]
            capture.add(role, key, (place.start, place.count, place.rows), parts)
    capture.commit()
    return copy


def _payload(chunks: ChunkStore, key: bytes, role: Role) -> bytearray:
    entry: IndexEntry | None = chunks.find(key).get(role)
    if entry is None:
        raise ArtifactError("a stored object that a control needs is gone", where=key.hex())
    payload = bytearray(entry.object.stored_length)
    reader = chunks.blobs.open(entry.pack)
    try:
        reader.read_into(entry.object.offset + OBJECT_HEADER_BYTES, [memoryview(payload)])
    finally:
        reader.close()
    return payload
