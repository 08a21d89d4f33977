"""Statistics against published or hand-made values; what is random is seeded and checked too."""

from __future__ import annotations

import itertools
import math

import pytest

from kvgraft.errors import InputError
from kvgraft.study.statistics import (
    beta_quantile,
    break_even_reuses,
    clopper_pearson,
    mcnemar,
    mcnemar_counts,
    paired_bootstrap,
    permutation_test,
    risk_coverage,
    upper_bound,
    wilson,
)

near = pytest.approx


def tail(events: int, trials: int, share: float) -> float:
    """P(at most `events` of `trials`), term by term."""
    return math.fsum(
        math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(events + 1)
    )


# Newcombe, "Two-sided confidence intervals for the single proportion" (1998), table I: methods 3
# (score) and 5 (exact).
@pytest.mark.parametrize(
    ("counts", "score", "exact"),
    [
        ((81, 263), (0.2553, 0.3662), (0.2527, 0.3676)),
        ((15, 148), (0.0624, 0.1605), (0.0578, 0.1617)),
        ((0, 20), (0.0, 0.1611), (0.0, 0.1684)),
        ((1, 29), (0.0061, 0.1718), (0.0009, 0.1776)),
    ],
)
def test_intervals_of_a_proportion_are_the_published_ones(
    counts: tuple[int, int], score: tuple[float, float], exact: tuple[float, float]
) -> None:
    for made, published in ((wilson(*counts), score), (clopper_pearson(*counts), exact)):
        assert made.estimate == counts[0] / counts[1]
        assert (made.low, made.high) == near(published, abs=5e-5)


@pytest.mark.parametrize("trials", [1, 2, 7, 30, 400])
def test_the_exact_bounds_cut_off_the_tails_that_they_say(trials: int) -> None:
    for events in {0, 1, trials // 2, trials - 1, trials} & set(range(trials + 1)):
        made = clopper_pearson(events, trials, 0.9)
        if events < trials:
            assert tail(events, trials, made.high) == near(0.05, rel=1e-9)
            assert tail(events, trials, upper_bound(events, trials)) == near(0.05, rel=1e-9)
        else:
            assert made.high == upper_bound(events, trials) == 1
        if events:
            assert 1 - tail(events - 1, trials, made.low) == near(0.05, rel=1e-9)
        else:
            assert made.low == 0


def test_no_event_in_n_is_the_rule_of_three() -> None:
    assert upper_bound(0, 30) == near(1 - 0.05 ** (1 / 30), rel=1e-14)
    assert upper_bound(0, 500) == near(3 / 500, rel=5e-3)
    assert upper_bound(0, 10**12) == near(-math.log(0.05) / 10**12, rel=1e-9)  # not 0


def test_many_trials_are_no_trouble() -> None:
    made = clopper_pearson(50_000, 1_000_000)
    assert (made.low, made.high) == near((0.0495737, 0.0504288), abs=2e-7)
    both = wilson(0, 5), wilson(5, 5)
    assert (both[0].low, both[1].high) == (0.0, 1.0)


def test_quantiles_of_beta() -> None:
    assert beta_quantile(0.3, 1, 1) == near(0.3, abs=1e-15)  # the uniform distribution
    assert beta_quantile(0.25, 2, 1) == near(0.5, abs=1e-15)  # x squared
    assert beta_quantile(0.5, 8.5, 8.5) == near(0.5, abs=1e-14)


@pytest.mark.parametrize("counts", [(1, 0), (-1, 5), (6, 5)])
def test_what_is_no_proportion_is_refused(counts: tuple[int, int]) -> None:
    for function in (wilson, clopper_pearson, upper_bound):
        with pytest.raises(InputError):
            function(*counts)
        with pytest.raises(InputError):
            function(1, 2, 1.0)


def test_mcnemar_is_the_binomial_test_of_the_discordant_pairs() -> None:
    assert mcnemar_counts(1, 9) == 22 / 1024
    assert mcnemar_counts(9, 1) == 22 / 1024
    assert mcnemar_counts(0, 6) == 2 / 64
    assert mcnemar_counts(0, 0) == mcnemar_counts(3, 3) == mcnemar_counts(4, 5) == 1.0
    assert mcnemar_counts(0, 3000) == 0.0  # smaller than a float, and no overflow
    first = [True, True, False, False, False, True]
    second = [True, False, True, True, True, True]
    assert mcnemar(first, second) == mcnemar_counts(1, 3) == 10 / 16
    with pytest.raises(InputError):
        mcnemar([True], [True, False])


def test_a_paired_bootstrap_of_a_difference() -> None:
    first = [3.0 + n / 100 for n in range(100)]
    second = [1.0 + n % 2 + n / 100 for n in range(100)]
    made = paired_bootstrap(first, second, seed=1)
    assert made is not None
    # Differences are 2 and 1 by turns: 1.5 +- 1.96 * 0.05.
    assert made.estimate == near(1.5)
    assert (made.low, made.high) == near((1.402, 1.598), abs=0.015)
    assert paired_bootstrap(first, second, seed=1) == made
    assert paired_bootstrap(first, second, seed=2, resamples=101) != made


def test_a_paired_bootstrap_of_a_ratio_draws_pairs_whole() -> None:
    second = [float(n) for n in range(1, 60)]
    made = paired_bootstrap([3 * value for value in second], second, of="ratio")
    assert made is not None
    # Whatever pairs are drawn, the ratio is 3; drawn apart, it would vary.
    assert (made.estimate, made.low, made.high) == near((3.0, 3.0, 3.0))
    assert paired_bootstrap([1.0, 2.0], [0.0, 0.0], of="ratio") is None
    assert paired_bootstrap([1.0, 2.0], [0.0, 1.0], of="ratio") is None  # in a quarter of the draws
    for bad in ([1.0, math.nan], [1.0], []):
        with pytest.raises(InputError):
            paired_bootstrap(bad, [1.0, 2.0])
    with pytest.raises(InputError):
        paired_bootstrap([1.0], [1.0], of="median")


def test_a_permutation_test_tries_all_signs_of_few_pairs() -> None:
    differences = [1.0, 2.0, 3.0, 4.0, -0.5]
    sums = [
        abs(sum(sign * one for sign, one in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=5)
    ]
    expected = sum(value >= 9.5 for value in sums) / 32
    assert permutation_test(differences, [0.0] * 5) == expected == 4 / 32
    assert permutation_test([1.0] * 6, [0.0] * 6) == 2 / 64
    assert permutation_test([1.0, 0.0], [0.0, 1.0]) == 1.0
    assert permutation_test([0.3, 0.1], [0.1, 0.3]) == 1.0  # equal on paper


def test_a_permutation_test_of_many_pairs_is_never_nought() -> None:
    apart = permutation_test([1.0] * 40, [0.0] * 40, resamples=999, seed=3)
    assert apart == 1 / 1000
    alike = permutation_test([0.0, 1.0] * 20, [1.0, 0.0] * 20, resamples=999, seed=3)
    assert alike == 1.0
    # 25 of 40 against 15 of 40 among discordant pairs is McNemar's question: p = 0.154 exactly.
    first = [1.0] * 25 + [0.0] * 15
    made = permutation_test(first, [1 - value for value in first], resamples=20_000)
    assert made == near(mcnemar_counts(25, 15), abs=0.01)


def test_the_curve_of_risk_over_coverage() -> None:
    scores = [0.25, 0.5, 0.5, 1.0, 1.0, -math.inf]
    wrong = [True, True, False, False, False, True]
    points = risk_coverage(scores, wrong)
    assert [(p.threshold, p.accepted, p.wrong, p.total) for p in points] == [
        (0.25, 5, 2, 6),
        (0.5, 4, 1, 6),
        (1.0, 2, 0, 6),
    ]
    assert [p.coverage for p in points] == [5 / 6, 4 / 6, 2 / 6]
    assert [p.risk for p in points] == [0.4, 0.25, 0.0]
    assert points[2].risk_upper == upper_bound(0, 2) == near(1 - 0.05**0.5)
    assert points[1].risk_upper == upper_bound(1, 4)
    assert risk_coverage([-math.inf], [True]) == []
    for bad in (([], []), ([1.0], []), ([math.nan], [True])):
        with pytest.raises(InputError):
            risk_coverage(*bad)


def test_break_even() -> None:
    assert break_even_reuses(10, 1, 3) == 5  # 10 + 5 * 1 == 5 * 3
    assert break_even_reuses(10.5, 1, 3) == 6
    assert break_even_reuses(0, 1, 3) == 0
    assert break_even_reuses(1, 0, 1e-300) is not None
    assert break_even_reuses(10, 3, 3) is None
    assert break_even_reuses(10, 4, 3) is None
    for bad in ((-1, 0, 1), (math.nan, 0, 1), (1, 0, math.inf)):
        with pytest.raises(InputError):
            break_even_reuses(*bad)
