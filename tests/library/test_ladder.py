"""The ladder as text and as values, budgets, seeds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgraft import limits
from kvgraft.decode import Sampling
from kvgraft.errors import KvgraftError, LimitExceeded, MissingExtra, UsageError
from kvgraft.library import endpoint
from kvgraft.library.ladder import (
    CORRECT,
    GREEDY,
    LARGER,
    SAMPLE,
    Effort,
    Rung,
    derived_seed,
    parse_ladder,
)

# --- ladders ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rungs"),
    [
        ("greedy", [Rung(GREEDY)]),
        ("sample", [Rung(SAMPLE)]),
        ("sample:8", [Rung(SAMPLE, 8)]),
        ("sample:8@0.7", [Rung(SAMPLE, 8, 0.7)]),
        ("sample@0.7,0.9", [Rung(SAMPLE, None, 0.7, 0.9)]),
        ("correct", [Rung(CORRECT)]),
        ("correct:2", [Rung(CORRECT, rounds=2)]),
        ("correct:2x4@1.5", [Rung(CORRECT, 4, 1.5, rounds=2)]),
        ("larger:demo:qwen-coder-1.5b", [Rung(LARGER, model="demo:qwen-coder-1.5b")]),
        ("larger:4:demo:x", [Rung(LARGER, 4, model="demo:x")]),
        ("larger:4@0.7,0.9:./4:x", [Rung(LARGER, 4, 0.7, 0.9, model="./4:x")]),
        ("larger:./4:x", [Rung(LARGER, model="./4:x")]),
        (
            "larger:2:http://localhost:8000/v1#Qwen/Qwen2.5#1",
            [Rung(LARGER, 2, model="http://localhost:8000/v1#Qwen/Qwen2.5#1")],
        ),
        ("greedy+sample:8", [Rung(GREEDY), Rung(SAMPLE, 8)]),
        ("  greedy  +  correct:1 ", [Rung(GREEDY), Rung(CORRECT)]),
        # A plus in a model's name is no joint.
        ("larger:c++/model+sample", [Rung(LARGER, model="c++/model"), Rung(SAMPLE)]),
        ("larger:a+sampled", [Rung(LARGER, model="a+sampled")]),
    ],
)
def test_a_ladder_is_read_and_written(text: str, rungs: list[Rung]) -> None:
    assert list(parse_ladder(text)) == rungs
    again = " + ".join(rung.spec for rung in rungs)
    assert list(parse_ladder(again)) == rungs


NUMBERS = st.integers(1, 64)
HEAT = st.sampled_from([None, 0.5, 1.0, 1.25])


@given(
    st.lists(
        st.one_of(
            st.builds(Rung, st.just(GREEDY)),
            st.builds(Rung, st.just(SAMPLE), NUMBERS, HEAT),
            st.builds(Rung, st.just(CORRECT), NUMBERS, HEAT, rounds=st.integers(1, 9)),
            st.builds(
                Rung, st.just(LARGER), NUMBERS, model=st.sampled_from(["a:b", "x+y", "/p q"])
            ),
        ),
        min_size=1,
        max_size=limits.MAX_RUNGS,
    )
)
def test_every_ladder_survives_its_own_text(rungs: list[Rung]) -> None:
    assert list(parse_ladder(" + ".join(rung.spec for rung in rungs))) == rungs


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "+", "greedy +", "+ greedy", "greedy ++ greedy", "greedy, sample", "Greedy"),
        *("greedy:1", "sample:", "sample:0", "sample:-1", "sample:1.5", "sample:8@", "sample:8@0"),
        *("sample:8@0.8,0", "sample:8@0.8,1.5", "sample:8@nan", "sample:8 @0.8", "sample:²"),
        *(
            "correct:0",
            "correct:2x",
            "correct:2x0",
            "correct:2@0.8",
            "larger",
            "larger:",
            "larger: ",
        ),
        *("best:3", "greedy+foo", f"sample:{limits.MAX_ATTEMPTS + 1}", "sample:99999999999"),
        *("larger:http://", "larger:http://host/v1", "larger:http://host/v1#", "larger:http://#m"),
        *("larger:http://host:port/v1#m", "larger:http://host/v1?key=1#m"),
    ],
)
def test_what_is_no_ladder_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_ladder(text)


def test_ladders_have_limits() -> None:
    with pytest.raises(LimitExceeded):
        parse_ladder("+".join(["greedy"] * (limits.MAX_RUNGS + 1)))
    with pytest.raises(LimitExceeded):
        parse_ladder(f"greedy + correct:{limits.MAX_CORRECTION_ROUNDS + 1}")
    with pytest.raises(LimitExceeded):
        Effort(rungs=())


@given(st.text("gredysampl:@x,+ 0123.-#/h\n", max_size=40))
def test_any_text_is_a_ladder_or_refused(text: str) -> None:
    try:
        rungs = parse_ladder(text)
    except KvgraftError:
        return
    assert list(parse_ladder(" + ".join(rung.spec for rung in rungs))) == list(rungs)


@pytest.mark.parametrize(
    "parts",
    [
        {"kind": "best"},
        {"kind": GREEDY, "model": "x"},
        {"kind": LARGER},
        {"kind": LARGER, "model": " "},
        {"kind": GREEDY, "temperature": 0.5},
        {"kind": SAMPLE, "count": 4, "temperature": 0.0},
        {"kind": CORRECT, "rounds": 0},
    ],
)
def test_a_rung_that_is_none_is_refused(parts: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Rung(**parts)  # type: ignore[arg-type]


def test_a_password_in_an_endpoint_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError) as refused:
        parse_ladder("greedy + larger:http://me:hunter2@host/v1#m")
    assert "hunter2" not in str(refused.value)
    assert endpoint.KEY_VARIABLE in str(refused.value)


def test_an_endpoint_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="httpx"):
        parse_ladder("larger:http://host/v1#m")
    assert parse_ladder("larger:demo:x")


# --- efforts ----------------------------------------------------------------------------------


def test_an_effort_is_samples_unless_it_says_otherwise() -> None:
    assert Effort(16).ladder == (Rung(SAMPLE, 16),)
    assert Effort(16).spec == "sample:16"
    mixed = Effort(4, rungs="greedy + sample + sample:2@0.5")
    assert mixed.spec == "greedy + sample:4 + sample:2@0.5"
    assert mixed == Effort(4, rungs=(Rung(GREEDY), Rung(SAMPLE), Rung(SAMPLE, 2, 0.5)))


@pytest.mark.parametrize(
    ("rungs", "count"),
    [
        ("greedy", 1),
        ("sample:4", 4),
        ("greedy + sample:4 + correct:3x9 + sample:2", 7),
        ("greedy + larger:9:big", 9),
        ("greedy + larger:3:big + larger:big", 4),
    ],
)
def test_corrections_and_other_models_are_not_compared(rungs: str, count: int) -> None:
    assert Effort(rungs=rungs).comparable == count


def test_there_is_nothing_to_correct_at_first() -> None:
    with pytest.raises(UsageError, match="nothing to correct"):
        Effort(rungs="correct:2 + sample:4")


def test_a_rung_draws_as_it_says_or_as_the_effort_does() -> None:
    effort = Effort(sampling=Sampling(0.9, 0.8, 7))
    assert effort.sampling_of(Rung(GREEDY), 1) is None
    assert effort.sampling_of(Rung(SAMPLE, 2), 1) == Sampling(0.9, 0.8, 1)
    assert effort.sampling_of(Rung(SAMPLE, 2, 0.5), 1) == Sampling(0.5, 0.8, 1)
    assert effort.sampling_of(Rung(CORRECT, 2, 0.5, 0.6), 1) == Sampling(0.5, 0.6, 1)


def test_seeds_differ_by_each_part_and_stay() -> None:
    parts: list[tuple[int, str | None, str, int, int]] = [
        (0, None, "problem", 0, 0),
        (1, None, "problem", 0, 0),
        (0, "", "problem", 0, 0),
        (0, None, "other", 0, 0),
        (0, None, "problem", 1, 0),
        (0, None, "problem", 0, 1),
        (2**64 - 1, None, "problem", 0, 0),
    ]
    seeds = [derived_seed(*part) for part in parts]
    assert len(set(seeds)) == len(parts)
    assert all(0 <= seed < 2**64 for seed in seeds)
    # Of another release too: a run that goes on draws what it would have drawn.
    assert derived_seed(0, None, "problem", 0, 0) == 7279520871616457552
