"""Altered states: wrong in one way, signed like sound ones, served, and seen in the logits."""

from __future__ import annotations

import numpy as np
import pytest
import safetensors.numpy

from kvgraft.engines.toy import RECURRENT, ToyEngine, ToyShape
from kvgraft.errors import ArtifactError
from kvgraft.evidence.controls import (
    CONTROLS,
    FLIPPED_BIT,
    NEIGHBOUR,
    WRONG_CHUNK,
    Prefix,
    altered_store,
    full_blocks,
)
from kvgraft.evidence.samples import Sample
from kvgraft.evidence.worker import _observe
from kvgraft.reuse import Keep, compute_prompt
from kvgraft.state import Role
from kvgraft.store.chunks import ChunkStore
from kvgraft.testing.grafting import raw_digests, read_blob
from toys import memory_chunks, prompt

STORED = 5 * 16 + 3
SHAPES = {
    "full and sliding": ToyShape(),
    "full only": ToyShape(windows=(0, 0)),
    "sliding only": ToyShape(windows=(24, 7)),
    "recurrent only": ToyShape(windows=(RECURRENT, RECURRENT), rungs=()),
    "recurrent and full": ToyShape(windows=(RECURRENT, 0), rungs=()),
}


@pytest.fixture(params=SHAPES)
def engine(request: pytest.FixtureRequest) -> ToyEngine:
    return ToyEngine(shape=SHAPES[request.param])


@pytest.fixture
def chunks(engine: ToyEngine) -> ChunkStore:
    """Two stored prompts."""
    store = memory_chunks()
    for seed in (0, 1):
        compute_prompt(engine, store, prompt(STORED, seed), keep=Keep.BLOCKS).context.close()
    return store


def prefixes(engine: ToyEngine) -> tuple[Prefix, Prefix]:
    first, second = (full_blocks(engine, prompt(STORED, seed), STORED) for seed in (0, 1))
    return first, second


def test_a_prefix_is_the_full_blocks_that_are_stored(engine: ToyEngine, chunks: ChunkStore) -> None:
    prefix, other = prefixes(engine)
    assert [(p.start, p.count, p.rows) for p in prefix.places] == [
        (n * 16, 16, 16) for n in range(5)
    ]
    assert all(Role.KEEP in chunks.find(key) for key in prefix.keys)
    assert not set(prefix.keys) & set(other.keys)
    # What lies behind the stored tokens changes no key.
    longer = full_blocks(engine, [*prompt(STORED), 1, 2, 3] + [0] * 40, STORED)
    assert longer == prefix


@pytest.mark.parametrize("control", CONTROLS)
def test_one_object_is_altered_and_its_digests_are_made_anew(
    engine: ToyEngine, chunks: ChunkStore, control: str
) -> None:
    prefix, donor = prefixes(engine)
    altered = altered_store(engine, chunks, prefix, donor, control)
    honest, wrong = raw_digests(chunks), raw_digests(altered)
    assert set(wrong) == {(key, role) for key in prefix.keys for role in chunks.find(key)}
    different = [where for where in wrong if wrong[where] != honest[where]]
    assert different == [(prefix.keys[-1], target(engine, control))]


def target(engine: ToyEngine, control: str) -> Role:
    windows = engine.shape.windows
    if any(window > 0 for window in windows) and (control == NEIGHBOUR or 0 not in windows):
        return Role.NEAR
    return Role.KEEP if 0 in windows else Role.END


@pytest.mark.parametrize("control", CONTROLS)
def test_an_altered_state_is_served_and_changes_the_logits(
    engine: ToyEngine, chunks: ChunkStore, control: str
) -> None:
    ids = prompt(5 * 16 + 9)
    sample = Sample(tuple(ids.tolist()), 80, 80, 1)
    wanted = _observe(engine, chunks, sample)
    altered = altered_store(engine, chunks, *prefixes(engine), control)
    seen = _observe(engine, altered, sample)
    for one in (wanted, seen):
        assert (one["reused_tokens"], one["calls_made"], one["misses"]) == (
            80,
            1,
            ["not_stored: no chunk after 5 calls"],
        )
    assert list(altered.index.alarms()) == []  # nothing below the logits noticed
    assert seen["sha256"] != wanted["sha256"]
    done = compute_prompt(engine, altered, ids, keep=Keep.NOTHING)
    assert np.isfinite(done.context.logits()).all()  # wrong, and plausible
    done.context.close()


def test_the_flipped_bit_is_one(engine: ToyEngine, chunks: ChunkStore) -> None:
    prefix, donor = prefixes(engine)
    altered = altered_store(engine, chunks, prefix, donor, FLIPPED_BIT)
    role = target(engine, FLIPPED_BIT)
    bits = 0
    for before, after in zip(
        *(payload(s, prefix.keys[-1], role) for s in (chunks, altered)), strict=True
    ):
        bits += (before ^ after).bit_count()
    assert bits == 1


def payload(store: ChunkStore, key: bytes, role: Role) -> bytes:
    entry = store.find(key)[role]
    end = entry.object.offset + entry.object.size_bytes
    return read_blob(store.blobs, entry.pack)[end - entry.object.stored_length : end]


def test_the_wrong_chunk_has_the_donors_tensors_and_its_own_tokens(
    engine: ToyEngine, chunks: ChunkStore
) -> None:
    prefix, donor = prefixes(engine)
    altered = altered_store(engine, chunks, prefix, donor, WRONG_CHUNK)
    role = target(engine, WRONG_CHUNK)
    mine, theirs = (payload(chunks, p.keys[-1], role) for p in (prefix, donor))
    mixed = payload(altered, prefix.keys[-1], role)
    tensors = (
        len(mixed)
        - next(n for n, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b)
        - 4 * 16
    )  # behind the ids, which are the first to differ
    assert mixed[-tensors:] == theirs[-tensors:]
    assert mixed[:-tensors] == mine[:-tensors]


@pytest.mark.parametrize("shape", ["full and sliding", "full only"])
def test_the_neighbours_rows_are_one_token_off(shape: str) -> None:
    engine, store = ToyEngine(shape=SHAPES[shape]), memory_chunks()
    compute_prompt(engine, store, prompt(STORED)).context.close()
    prefix = full_blocks(engine, prompt(STORED), STORED)
    altered = altered_store(engine, store, prefix, prefix, NEIGHBOUR)
    role = target(engine, NEIGHBOUR)
    mine, theirs = (
        safetensors.numpy.load(payload(s, prefix.keys[-1], role)) for s in (store, altered)
    )
    assert np.array_equal(mine.pop("ids"), theirs.pop("ids"))
    for name, rows in mine.items():
        assert np.array_equal(np.concatenate([rows[:1], rows[:-1]]), theirs[name])


def test_what_a_control_needs_must_be_there(engine: ToyEngine, chunks: ChunkStore) -> None:
    prefix, donor = prefixes(engine)
    with pytest.raises(ArtifactError, match="is gone"):
        altered_store(engine, memory_chunks(), prefix, donor, FLIPPED_BIT)
