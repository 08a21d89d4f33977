"""A stored text at another place: refused by default, labelled when asked for, never stored."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvgraft.decode import greedy
from kvgraft.engines.toy import RECURRENT, ToyEngine, ToyShape
from kvgraft.errors import (
    ContextTooLong,
    InputError,
    RelocationRefused,
    UnsupportedModel,
    UsageError,
)
from kvgraft.evidence.probe import probe
from kvgraft.relocation import (
    Measured,
    Relocated,
    Relocating,
    measured_in,
    relocate,
    relocating,
)
from kvgraft.reuse import Keep, compute_prompt
from kvgraft.store.chunks import ChunkStore
from toys import listed, logits_bits, memory_chunks, prompt

OFFSET = 100
FIGURES = {"rows": 5, "kl_mean_nats": 1e-3, "kl_max_nats": 1e-2}
IDS = prompt(70)


@pytest.fixture
def engine() -> ToyEngine:
    return ToyEngine()


@pytest.fixture
def store(engine: ToyEngine) -> ChunkStore:
    """Holds all of `IDS`."""
    chunks = memory_chunks()
    compute_prompt(engine, chunks, IDS, keep=Keep.ALL).context.close()
    return chunks


def measured(engine: ToyEngine, offset: int = OFFSET) -> Measured:
    return Measured(engine.fingerprint, offset, 64, 33, 1e-6, 5e-6)


def at_offset(engine: ToyEngine, store: ChunkStore, **options: Any) -> Relocated:
    options = {"approximate": True, "measured": measured(engine), "room": 8, **options}
    return relocate(engine, store, IDS, OFFSET, **options)


# --- refused ----------------------------------------------------------------------------------


def test_refused_by_default(engine: ToyEngine, store: ChunkStore) -> None:
    for options in ({}, {"measured": measured(engine)}):
        with pytest.raises(RelocationRefused, match="not exact") as refused:
            relocate(engine, store, IDS, OFFSET, **options)
        assert refused.value.code == "relocation_refused"
        assert refused.value.exit_status == 2
        assert "as approximate" in refused.value.hint


def test_refused_where_it_was_not_measured(engine: ToyEngine, store: ChunkStore) -> None:
    for known in (None, measured(engine, OFFSET + 1)):
        with pytest.raises(RelocationRefused, match="not measured") as refused:
            at_offset(engine, store, measured=known)
        assert f"--offsets {OFFSET}" in refused.value.hint


def test_a_measurement_on_another_model_is_refused_by_name(
    engine: ToyEngine, store: ChunkStore
) -> None:
    other = replace(measured(engine), fingerprint=ToyEngine(1).fingerprint)
    with pytest.raises(RelocationRefused, match="weights differ"):
        at_offset(engine, store, measured=other)


@pytest.mark.parametrize("offset", [0, -5])
def test_no_offset_is_a_graft(engine: ToyEngine, store: ChunkStore, offset: int) -> None:
    with pytest.raises(UsageError, match="by 1 position or more"):
        relocate(engine, store, IDS, offset, approximate=True, measured=measured(engine, offset))


def test_past_the_context(engine: ToyEngine, store: ChunkStore) -> None:
    offset = engine.context_tokens - len(IDS) - 3
    options = {"approximate": True, "measured": measured(engine, offset)}
    with pytest.raises(ContextTooLong):
        relocate(engine, store, IDS, offset, room=4, **options)  # type: ignore[arg-type]
    found = relocate(engine, store, IDS, offset, room=3, **options)  # type: ignore[arg-type]
    assert found.context.capacity == len(IDS) + 3


def test_an_engine_that_cannot_move_states(engine: ToyEngine, store: ChunkStore) -> None:
    class Fixed:
        """A toy without that ability."""

        def __init__(self) -> None:
            self.inner = engine

        def __getattr__(self, name: str) -> Any:
            if name in ("open_context_at", "inner"):
                raise AttributeError(name)
            return getattr(self.inner, name)

    fixed: Any = Fixed()
    assert isinstance(engine, Relocating)
    with pytest.raises(UnsupportedModel, match="the toy engine does not move states"):
        relocating(fixed)
    with pytest.raises(UnsupportedModel):
        at_offset(fixed, store)


# --- approximate ------------------------------------------------------------------------------


def test_the_answer_carries_what_it_costs(engine: ToyEngine, store: ChunkStore) -> None:
    found = at_offset(engine, store)
    assert found.report.reused_tokens == len(IDS)
    assert found.report.calls_made == 0
    assert (found.context.length, found.context.offset) == (len(IDS), OFFSET)
    assert found.approximate is True
    assert json.loads(json.dumps(found.as_dict())) == {
        "approximate": True,
        "exact": False,
        "offset": OFFSET,
        "kl_mean_nats": 1e-6,
        "kl_max_nats": 5e-6,
        "kl_rows": 33,
        "kl_block_tokens": 64,
    }
    assert len(greedy(found.context, 6, frozenset()).ids) == 6


@pytest.mark.parametrize("windows", [(0, 24, 0, 7), (0, 0), (24, 7)])
def test_close_to_what_would_have_been_computed_there_and_never_equal(
    windows: tuple[int, ...],
) -> None:
    engine = ToyEngine(shape=ToyShape(windows=windows))
    store = memory_chunks()
    compute_prompt(engine, store, IDS, keep=Keep.ALL).context.close()
    there = relocate(  # nothing is stored for it, so all of it is computed at the offset
        engine,
        memory_chunks(),
        IDS,
        OFFSET,
        approximate=True,
        measured=measured(engine),
        room=8,
    )
    assert (there.report.reused_tokens, there.report.computed_tokens) == (0, len(IDS))
    moved = at_offset(engine, store)
    assert moved.report.reused_tokens == len(IDS)
    for context in (there.context, moved.context):
        context.decode(7)
    np.testing.assert_allclose(there.context.logits(), moved.context.logits(), atol=1e-4)
    assert logits_bits(there.context) != logits_bits(moved.context)


def test_recurrent_layers_have_no_places() -> None:
    engine = ToyEngine(shape=ToyShape(windows=(0, RECURRENT, 24), rungs=()))
    store = memory_chunks()
    compute_prompt(engine, store, IDS, keep=Keep.ALL).context.close()
    found = at_offset(engine, store)
    assert found.report.reused_tokens == len(IDS)
    found.context.decode(7)
    here = compute_prompt(engine, None, IDS, room=8).context
    here.decode(7)
    np.testing.assert_allclose(found.context.logits(), here.logits(), atol=1e-4)


def test_what_is_not_stored_is_computed_at_the_offset(engine: ToyEngine) -> None:
    store = memory_chunks()
    compute_prompt(engine, store, IDS[:40]).context.close()
    found = at_offset(engine, store)
    assert found.report.reused_tokens == 32
    assert found.report.computed_tokens == len(IDS) - 32
    assert found.report.misses
    assert found.as_dict()["approximate"] is True


def test_nothing_is_stored(engine: ToyEngine, store: ChunkStore) -> None:
    empty = memory_chunks()
    for chunks in (store, empty):
        before = listed(chunks)
        found = at_offset(engine, chunks)
        found.context.decode(1)
        found.context.close()
        assert listed(chunks) == before
        assert found.report.captured_bytes == 0
    assert listed(empty) == set()


def test_an_exact_run_afterwards_has_its_bits(engine: ToyEngine, store: ChunkStore) -> None:
    """The arena that was moved is used again."""
    cold = logits_bits(compute_prompt(engine, None, IDS, room=8).context)
    for _ in range(3):
        at_offset(engine, store).context.close()
        done = compute_prompt(engine, store, IDS, keep=Keep.NOTHING, room=8)
        assert done.report.calls_made == 0
        assert logits_bits(done.context) == cold
        done.context.close()


# --- from a probe -----------------------------------------------------------------------------


def test_the_figures_of_a_probe(engine: ToyEngine, store: ChunkStore) -> None:
    found = probe(engine, [OFFSET, 300], 1, block_tokens=32, suffix_tokens=16)
    document = json.loads(json.dumps(found.as_dict()))
    for offset in (OFFSET, 300):
        assert measured_in(document, offset) == found.measured(offset)
    answer = at_offset(engine, store, measured=measured_in(document, OFFSET)).as_dict()
    assert answer["kl_mean_nats"] == found.offsets[0].relocated.kl_mean_nats
    assert answer["kl_rows"] == 17
    with pytest.raises(RelocationRefused, match="not measured"):
        measured_in(document, 8)
    with pytest.raises(InputError):
        found.measured(8)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"fingerprint": [], "offsets": []},
        {"fingerprint": {}, "offsets": 3},
        {"fingerprint": {}, "offsets": [{"offset": OFFSET}], "block_tokens": 1},
        {"fingerprint": {}, "offsets": [{"offset": OFFSET, "relocated": {"rows": "many"}}]},
        *(
            {
                "fingerprint": {},
                "block_tokens": 1,
                "offsets": [{"offset": OFFSET, "relocated": {**FIGURES, name: value}}],
            }
            for name, value in (("rows", -1), ("kl_mean_nats", "nan"), ("kl_max_nats", -3.0))
        ),
    ],
)
def test_another_document(document: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="not the document of a probe"):
        measured_in(document, OFFSET)
