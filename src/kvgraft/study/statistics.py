"""The few statistics that studies report: small, exact where an exact form is, seeded elsewhere.

Intervals are two-sided at `confidence`; bounds called `upper` are one-sided. Nothing here needs
more than numpy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist

import numpy as np

from kvgraft.errors import InputError

CONFIDENCE = 0.95
RESAMPLES = 10_000
_EXACT_SIGNS = 16  # up to so many pairs all 2 to the n sign changes are tried
_SLICE_VALUES = 4_000_000  # of resamples drawn at a time: 32 MB


@dataclass(frozen=True)
class Interval:
    """From `low` to `high`; `estimate` is what was observed."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class RiskPoint:
    """What accepting from `threshold` upwards does, of `total` attempts or problems.

    `risk` is the wrong share of what is accepted; `risk_upper` its exact one-sided upper bound.
    """

    threshold: float
    accepted: int
    wrong: int
    total: int
    risk: float
    risk_upper: float

    @property
    def coverage(self) -> float:
        """The share of all that is accepted."""
        return self.accepted / self.total


# --- proportions --------------------------------------------------------------------------------


def wilson(successes: int, trials: int, confidence: float = CONFIDENCE) -> Interval:
    """The score interval of a proportion (Wilson, 1927), without continuity correction.

    Raises:
        InputError: no trials, or successes outside 0 to `trials`.
    """
    _check_counts(successes, trials, confidence)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, z2 = successes / trials, z * z
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = z * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2)) / (1 + z2 / trials)
    low = 0.0 if successes == 0 else max(0.0, middle - half)  # exactly, not to within rounding
    high = 1.0 if successes == trials else min(1.0, middle + half)
    return Interval(share, low, high)


def clopper_pearson(successes: int, trials: int, confidence: float = CONFIDENCE) -> Interval:
    """The exact interval of a proportion (Clopper and Pearson, 1934).

    Raises:
        InputError: as `wilson`.
    """
    _check_counts(successes, trials, confidence)
    tail = (1 - confidence) / 2
    low = 0.0 if successes == 0 else beta_quantile(tail, successes, trials - successes + 1)
    return Interval(successes / trials, low, _upper(successes, trials, tail))


def upper_bound(events: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """The exact one-sided upper bound of a proportion (Clopper and Pearson, 1934).

    For no events it is `1 - (1 - confidence) ** (1 / trials)`, about `3 / trials` at 95 %.

    Raises:
        InputError: as `wilson`.
    """
    _check_counts(events, trials, confidence)
    if events == 0:
        return -math.expm1(math.log1p(-confidence) / trials)
    return _upper(events, trials, 1 - confidence)


def _upper(events: int, trials: int, tail: float) -> float:
    return 1.0 if events == trials else beta_quantile(1 - tail, events + 1, trials - events)


def _check_counts(successes: int, trials: int, confidence: float) -> None:
    if trials < 1 or not 0 <= successes <= trials:
        raise InputError(f"{successes} of {trials} is no proportion")
    if not 0 < confidence < 1:
        raise InputError(f"a confidence lies between 0 and 1, not {confidence}")


def beta_quantile(probability: float, a: float, b: float) -> float:
    """Where the distribution function of Beta(a, b) has the value `probability`, by bisection."""
    low, high = 0.0, 1.0
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        if _beta_cdf(middle, a, b) < probability:
            low = middle
        else:
            high = middle


def _beta_cdf(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function (DLMF 8.17, its continued fraction 8.17.22)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly, the other tail is quick
        return 1 - _beta_cdf(1 - x, b, a)
    log_front = (
        *(math.lgamma(a + b), -math.lgamma(a), -math.lgamma(b)),
        *(a * math.log(x), b * math.log1p(-x)),
    )
    return math.exp(math.fsum(log_front)) / a / _beta_fraction(x, a, b)


def _beta_fraction(x: float, a: float, b: float) -> float:
    """1 + d1/(1 + d2/(1 + ...)) by the modified method of Lentz (1976; Thompson and Barnett,
    1986)."""
    tiny = 1e-300
    value = c = 1.0
    d = 0.0
    for step in range(1, 10_000):
        m = step // 2
        if step % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / ((1 + term * d) or tiny)
        c = (1 + term / c) or tiny
        value *= c * d
        if abs(c * d - 1) < 1e-16:
            break
    return value


# --- pairs --------------------------------------------------------------------------------------


def mcnemar(first: Sequence[bool], second: Sequence[bool]) -> float:
    """The exact two-sided p value of McNemar's test: do two ways differ on the same problems?

    The discordant pairs are a fair coin's throws under the hypothesis that they do not.

    Raises:
        InputError: the two have other lengths.
    """
    pairs = list(_paired(first, second))
    return mcnemar_counts(
        sum(bool(one) and not other for one, other in pairs),
        sum(bool(other) and not one for one, other in pairs),
    )


def mcnemar_counts(only_first: int, only_second: int) -> float:
    """`mcnemar` from its two counts of discordant pairs."""
    if only_first < 0 or only_second < 0:
        raise InputError("counts are not negative")
    total, fewer = only_first + only_second, min(only_first, only_second)
    tail = sum(math.comb(total, k) for k in range(fewer + 1))
    return float(min(Fraction(1), Fraction(2 * tail, 2**total)))


def paired_bootstrap(
    first: Sequence[float],
    second: Sequence[float],
    *,
    of: str = "difference",
    resamples: int = RESAMPLES,
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> Interval | None:
    """The percentile interval (Efron, 1979) of `mean(first) - mean(second)`, or, with
    `of="ratio"`, of `sum(first) / sum(second)`; pairs are drawn whole.

    None for a ratio over nothing: where `second`, or a resample of it, sums to 0.

    Raises:
        InputError: no pairs, other lengths, a value that is not finite, no such `of`.
    """
    values = _as_pairs(first, second)
    if of not in ("difference", "ratio"):
        raise InputError(f"there is no bootstrap of a {of!r}")
    count = len(values)
    generator = np.random.default_rng(seed)
    drawn = np.empty((resamples, 2))
    rows = max(1, _SLICE_VALUES // count)
    for start in range(0, resamples, rows):
        some = min(rows, resamples - start)
        drawn[start : start + some] = values[generator.integers(count, size=(some, count))].sum(1)
    sums = values.sum(0)
    if of == "difference":
        estimate, many = (sums[0] - sums[1]) / count, (drawn[:, 0] - drawn[:, 1]) / count
    elif sums[1] == 0 or (drawn[:, 1] == 0).any():
        return None
    else:
        estimate, many = sums[0] / sums[1], drawn[:, 0] / drawn[:, 1]
    low, high = np.quantile(many, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(estimate), float(low), float(high))


def permutation_test(
    first: Sequence[float],
    second: Sequence[float],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> float:
    """The two-sided p value that paired values differ in their mean, by changing signs.

    Exact up to 16 pairs (Fisher, 1935); above, `(1 + as extreme) / (1 + resamples)`, which is
    never 0 (Phipson and Smyth, 2010).

    Raises:
        InputError: as `paired_bootstrap`.
    """
    values = _as_pairs(first, second)
    differences = values[:, 0] - values[:, 1]
    count = len(differences)
    # Sums that are equal on paper may differ in their last bits.
    observed = abs(differences.sum()) - 1e-9 * (np.abs(differences).sum() + 1e-300)
    if count <= _EXACT_SIGNS:
        bits = np.arange(2**count)[:, None] >> np.arange(count) & 1
        return float((np.abs((1 - 2 * bits) @ differences) >= observed).mean())
    generator = np.random.default_rng(seed)
    extreme = 0
    rows = max(1, _SLICE_VALUES // count)
    for start in range(0, resamples, rows):
        some = min(rows, resamples - start)
        signs = 1 - 2 * generator.integers(2, size=(some, count))
        extreme += int((np.abs(signs @ differences) >= observed).sum())
    return (1 + extreme) / (1 + resamples)


def _paired(first: Sequence[bool], second: Sequence[bool]) -> zip[tuple[bool, bool]]:
    if len(first) != len(second):
        raise InputError(f"{len(first)} and {len(second)} values are not pairs")
    return zip(first, second, strict=True)


def _as_pairs(first: Sequence[float], second: Sequence[float]) -> np.ndarray:
    if len(first) != len(second) or not len(first):
        raise InputError(f"{len(first)} and {len(second)} values are not pairs")
    values = np.stack([np.asarray(first, np.float64), np.asarray(second, np.float64)], axis=1)
    if not np.isfinite(values).all():
        raise InputError("a value is not a finite number")
    return values


# --- curves and counts --------------------------------------------------------------------------


def risk_coverage(
    scores: Sequence[float], wrong: Sequence[bool], confidence: float = CONFIDENCE
) -> list[RiskPoint]:
    """What is accepted, and how much of it is wrong, for each threshold that the scores allow,
    lowest first (El-Yaniv and Wiener, 2010). What is never answered has the score `-inf`, and
    counts in the total alone.

    Each bound holds for its own threshold, not for all at once: choose the threshold before
    looking.

    Raises:
        InputError: no scores, other lengths, a score that is not a number.
    """
    if not len(scores) or len(scores) != len(wrong):
        raise InputError(f"{len(scores)} scores and {len(wrong)} outcomes are not pairs")
    if any(math.isnan(score) for score in scores):
        raise InputError("a score is not a number")
    points = []
    for threshold in sorted({score for score in scores if score > -math.inf}):
        kept = [bad for score, bad in zip(scores, wrong, strict=True) if score >= threshold]
        bad = sum(map(bool, kept))
        risk = bad / len(kept)
        bound = upper_bound(bad, len(kept), confidence)
        points.append(RiskPoint(threshold, len(kept), bad, len(scores), risk, bound))
    return points


def break_even_reuses(deposit: float, reuse: float, without: float) -> int | None:
    """From how many reuses on a deposit has paid: `deposit + n * reuse <= n * without`.

    None where it never does, because a reuse costs as much as doing without.

    Raises:
        InputError: a cost that is negative or not finite.
    """
    if not all(math.isfinite(cost) and cost >= 0 for cost in (deposit, reuse, without)):
        raise InputError("a cost is a finite number from 0")
    if without <= reuse:
        return None
    return math.ceil(Fraction(deposit) / (Fraction(without) - Fraction(reuse)))
