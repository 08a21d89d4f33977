"""Nucleus sampling against a plain reference: how often each token comes, at any temperature."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kvgraft.decode import Sampling, draw_tokens
from kvgraft.errors import UsageError

PEAK = np.array([0, 0, 5, -1, 0, 0, 0, 1, 0, 0, 0], np.float32)


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": 0.0},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 0.0},
        {"top_p": 1.01},
        {"top_p": float("nan")},
        {"seed": -1},
        {"seed": 2**64},
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Sampling(**wrong)  # type: ignore[arg-type]


def nucleus(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """The reference: probabilities float64 `[vocab]` that sampling should have."""
    scaled = logits.astype(np.float64) / sampling.temperature
    weights = np.exp(scaled - scaled.max())
    order = np.lexsort((np.arange(len(weights)), -weights))
    share = np.cumsum(weights[order]) / weights.sum()
    inside = order[: int((share < sampling.top_p).sum()) + 1]
    kept = np.zeros_like(weights)
    kept[inside] = weights[inside]
    return kept / kept.sum()


def frequencies(logits: np.ndarray, sampling: Sampling, grid: int) -> np.ndarray:
    """How often each token comes when the draws are spread evenly over [0, 1)."""
    draws = (np.arange(grid) + 0.5) / grid
    tokens = draw_tokens(np.tile(logits, (grid, 1)), draws, sampling)
    return np.bincount(tokens, minlength=len(logits)) / grid


def borderline(logits: np.ndarray, sampling: Sampling) -> bool:
    """Whether rounding decides how far the nucleus reaches, or which of two equals is in it."""
    scaled = logits.astype(np.float64) / sampling.temperature
    weights = np.sort(np.exp(scaled - scaled.max()))[::-1]
    share = np.cumsum(weights) / weights.sum()
    return bool((np.abs(share - sampling.top_p) < 1e-5).any()) and sampling.top_p < 1


ROWS = hnp.arrays(
    np.float32, st.integers(1, 12), elements=st.floats(-30, 30, width=32, allow_subnormal=False)
)
TEMPERATURES = st.sampled_from([0.05, 0.5, 0.8, 1.0, 3.0, 1e6, 1e300])
TOP_PS = st.one_of(st.just(1.0), st.floats(0.01, 1.0))


@settings(max_examples=200)
@given(logits=ROWS, temperature=TEMPERATURES, top_p=TOP_PS)
@example(np.array([50, 0, 0], np.float32), 1.0, 1.0)
@example(np.array([50, 0, 0], np.float32), 1.0, 0.5)
@example(np.array([1, 1, 1, 1], np.float32), 1.0, 0.6)
@example(np.array([3, -np.inf, 2], np.float32), 0.8, 1.0)
def test_tokens_come_as_often_as_the_nucleus_says(
    logits: np.ndarray, temperature: float, top_p: float
) -> None:
    sampling = Sampling(temperature, top_p)
    if borderline(logits, sampling):
        return
    grid = 400
    wanted = nucleus(logits, sampling)
    seen = frequencies(logits, sampling, grid)
    assert np.abs(seen - wanted).max() <= 1.01 / grid + 1e-4
    assert not seen[wanted == 0].any()


def test_a_flat_row_wider_than_the_short_cut_is_sampled_whole() -> None:
    logits = np.zeros(2000, np.float32)
    seen = frequencies(logits, Sampling(1.0, 1.0), 2000)
    assert (seen > 0).all()
    rising, narrow = np.arange(2000, dtype=np.float32) / 1000, Sampling(1.0, 0.9)
    tops, wanted = frequencies(rising, narrow, 4000), nucleus(rising, narrow)
    assert 512 < (wanted > 0).sum() < 2000
    assert np.abs(tops - wanted).max() <= 1.01 / 4000
    assert not tops[np.flatnonzero(wanted)[0] - 1 :: -1].any()


def test_a_draw_belongs_to_the_share_that_begins_at_it() -> None:
    even = np.zeros((5, 4), np.float32)
    draws = np.array([0.0, 0.25, 0.5, 0.75, np.nextafter(0.75, 0)])
    assert draw_tokens(even, draws, Sampling(1.0, 1.0)).tolist() == [0, 1, 2, 3, 2]


def test_a_peak_takes_every_draw() -> None:
    sharp = np.array([0, 0, 40, 0], np.float32)
    draws = np.array([0.0, 0.5, np.nextafter(1.0, 0.0)])
    for sampling in (Sampling(0.8, 0.95), Sampling(1e-300, 1.0), Sampling(1e-12, 0.5)):
        assert draw_tokens(np.tile(sharp, (3, 1)), draws, sampling).tolist() == [2, 2, 2]


def test_the_coldest_and_the_hottest_temperature() -> None:
    logits = np.array([1, 2, 2, -3e38], np.float32)
    assert frequencies(logits, Sampling(1e-300, 1.0), 100).tolist() == [0, 0.5, 0.5, 0]
    assert frequencies(logits[:3], Sampling(1e300, 1.0), 99) == pytest.approx([1 / 3] * 3)


def test_a_row_draws_for_itself() -> None:
    rows = np.stack([PEAK, np.zeros(11, np.float32), PEAK[::-1]])
    draws = np.array([0.9, 0.31, 0.2])
    together = draw_tokens(rows, draws, Sampling(1.0, 1.0))
    alone = [
        int(draw_tokens(rows[n : n + 1], draws[n : n + 1], Sampling(1.0, 1.0))[0]) for n in range(3)
    ]
    assert together.tolist() == alone


def test_drawing_leaves_the_engines_logits_alone() -> None:
    rows = np.stack([PEAK, PEAK[::-1]])
    before = rows.copy()
    draw_tokens(rows, np.array([0.1, 0.9]), Sampling(0.5, 0.9))
    assert (rows == before).all()
