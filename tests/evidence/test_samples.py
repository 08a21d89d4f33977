"""The prompts of a proof: real text, telling lengths, and expectations that come true."""

from __future__ import annotations

import pytest

from kvgraft.engines.toy import ToyEngine, ToyShape
from kvgraft.errors import InputError
from kvgraft.evidence.samples import (
    DECODE_STEPS,
    LONGEST,
    SHORTEST,
    Sample,
    corpus,
    cut_kind,
    make_samples,
)
from kvgraft.reuse import Keep, compute_prompt
from toys import memory_chunks

SHAPES = {
    "toy": ToyShape(),
    "large blocks": ToyShape(windows=(0, 300), block=256, rungs=(8, 64, 256)),
    "small blocks": ToyShape(windows=(7, 0), block=8, rungs=(2, 8), context_tokens=600),
    "long context": ToyShape(windows=(0, 9), block=512, rungs=(512,), context_tokens=8192),
}


@pytest.fixture(params=SHAPES)
def engine(request: pytest.FixtureRequest) -> ToyEngine:
    return ToyEngine(shape=SHAPES[request.param])


def test_the_corpus_is_prose_and_longer_than_any_sample() -> None:
    text = corpus()
    assert len(text) > 2 * LONGEST * 12
    assert text.count(" the ") > 1000
    assert text == corpus()


def test_samples_are_made_from_their_seed(engine: ToyEngine) -> None:
    first = make_samples(engine, 12, seed=3)
    assert first == make_samples(engine, 12, seed=3)
    assert first != make_samples(engine, 12, seed=4)
    assert len(first) == 12
    assert len({sample.ids for sample in first}) == 12


def test_lengths_go_from_the_shortest_to_the_longest(engine: ToyEngine) -> None:
    lengths = [len(sample.ids) for sample in make_samples(engine, 50)]
    longest = min(LONGEST, engine.context_tokens - DECODE_STEPS - 1)
    assert lengths[0] == SHORTEST
    assert lengths[-1] == longest
    assert (min(lengths), max(lengths)) == (SHORTEST, longest)
    # Spread by ratio: about as many below the geometric middle as above it.
    middle = (SHORTEST * longest) ** 0.5
    assert 20 <= sum(length < middle for length in lengths) <= 30


def test_lengths_can_be_limited(engine: ToyEngine) -> None:
    assert max(len(sample.ids) for sample in make_samples(engine, 10, longest=100)) <= 100
    with pytest.raises(InputError, match="64 tokens or more, here at most 63"):
        make_samples(engine, 10, longest=SHORTEST - 1)


def test_block_boundaries_and_their_neighbours_are_among_them() -> None:
    samples = make_samples(ToyEngine(), 50)
    beside = {(len(sample.ids) + 1) % 16 - 1 for sample in samples[1::5]}
    assert beside == {-1, 0, 1}
    large = make_samples(ToyEngine(shape=SHAPES["large blocks"]), 50)
    assert {(len(sample.ids) + 1) % 256 - 1 for sample in large[1::5]} == {-1, 0, 1}


def test_a_context_too_short_for_samples_is_refused() -> None:
    shape = ToyShape(context_tokens=SHORTEST + DECODE_STEPS)
    with pytest.raises(InputError, match="at most 63 are possible"):
        make_samples(ToyEngine(shape=shape), 10)
    shape = ToyShape(context_tokens=SHORTEST + DECODE_STEPS + 1)
    assert {len(sample.ids) for sample in make_samples(ToyEngine(shape=shape), 10)} == {64}


def test_some_samples_are_stored_whole_and_most_in_part(engine: ToyEngine) -> None:
    samples = make_samples(engine, 50)
    whole = [sample for sample in samples if sample.calls == 0]
    part = [sample for sample in samples if sample.calls]
    assert len(whole) >= 7
    assert len(part) >= 20
    assert all(sample.reused == sample.stored == len(sample.ids) for sample in whole)
    assert all(0 < sample.reused <= sample.stored < len(sample.ids) for sample in part)
    assert all(sample.reused % engine.form.block == 0 for sample in part)


def test_every_sample_begins_with_one_bos(engine: ToyEngine) -> None:
    bos = engine.tokenizer.bos_id
    for sample in make_samples(engine, 10):
        assert sample.ids[0] == bos
        assert bos not in sample.ids[1:]


def keep(sample: Sample) -> Keep:
    return Keep.ALL if sample.stored == len(sample.ids) else Keep.BLOCKS


@pytest.mark.parametrize("name", ["toy", "large blocks", "small blocks"])
def test_what_is_expected_of_a_graft_is_what_happens(name: str) -> None:
    engine = ToyEngine(shape=SHAPES[name])
    for sample in make_samples(engine, 20, seed=1, longest=700):
        store = memory_chunks()
        compute_prompt(
            engine, store, sample.ids[: sample.stored], keep=keep(sample)
        ).context.close()
        done = compute_prompt(engine, store, sample.ids, keep=Keep.NOTHING)
        done.context.close()
        assert (done.report.reused_tokens, done.report.calls_made) == (sample.reused, sample.calls)
        assert sample.reused > 0


def test_a_cut_is_named_by_what_is_around_it() -> None:
    kinds = {stored: cut_kind(stored, 600, 256) for stored in (255, 256, 257, 300, 511, 512, 600)}
    assert kinds == {
        255: "beside",
        256: "boundary",
        257: "beside",
        300: "tail",
        511: "beside",
        512: "boundary",
        600: "whole",
    }
    assert cut_kind(256, 256, 256) == "whole"  # nothing is left to compute
