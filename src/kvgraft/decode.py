"""Tokens out of a computed context: greedy at batch 1, or many sampled lanes at once.

Greedy decoding at batch 1 is inside the exact regime: the same context gives the same tokens and
the same logits. Lanes are not; what they say is judged, never stored as state.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvgraft.engines.base import Context, Lanes
from kvgraft.errors import EngineError, UsageError

# Of a large vocabulary only the likeliest tokens can be inside a nucleus; the whole is sorted only
# where these do not fill it.
_NUCLEUS_TOKENS = 512
# Beyond these a temperature changes nothing that float32 can hold.
_COLDEST, _HOTTEST = 1e-30, 1e30


@dataclass
class Decoded:
    """`finished`: a stop token (not among `ids`) or the stop rule ended it, not the budget.

    `logits_sha256` is over the float32 logits that chose each token, the stop token's included.
    """

    ids: list[int] = field(default_factory=list)
    finished: bool = False
    logits_sha256: str = ""
    steps: int = 0


@dataclass(frozen=True)
class Sampling:
    """`temperature` > 0; `top_p` in (0, 1]; lane n of a batch draws from its own stream of
    `seed` (64 bits), so that a lane's draws do not depend on the others."""

    temperature: float = 0.8
    top_p: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 < self.temperature < math.inf and 0 < self.top_p <= 1):
            raise UsageError(f"temperature must be > 0 and top_p in (0, 1]: {self}")
        if not 0 <= self.seed < 2**64:
            raise UsageError(f"a seed is a number from 0 to 2**64 - 1, not {self.seed}")


def greedy(
    context: Context,
    max_new_tokens: int,
    stop_ids: frozenset[int],
    stop_when: Callable[[Sequence[int]], bool] = lambda ids: False,
    on_step: Callable[[int, int], bool | None] = lambda step, running: None,
) -> Decoded:
    """Decode greedily at batch 1 until a stop token, `stop_when(ids)`, or `max_new_tokens`.

    Ties go to the lowest id. `on_step` is as `sample_lanes` has it.

    Raises:
        EngineError: the engine gave logits that are not finite.
    """
    out = Decoded()
    digest = hashlib.sha256()
    while True:
        logits = context.logits()
        digest.update(np.ascontiguousarray(logits, np.float32).data)
        token = int(np.argmax(logits))
        if not np.isfinite(logits[token]):
            raise EngineError("the engine gave logits that are not finite numbers")
        out.steps += 1
        if token in stop_ids:
            out.finished = True
            break
        out.ids.append(token)
        if stop_when(out.ids):
            out.finished = True
            break
        if len(out.ids) >= max_new_tokens or context.length + 1 >= context.capacity:
            break
        if on_step(out.steps - 1, 1):
            break
        context.decode(token)
    out.logits_sha256 = digest.hexdigest()
    return out


def sample_lanes(
    lanes: Lanes,
    max_new_tokens: int,
    stop_ids: frozenset[int],
    sampling: Sampling,
    on_finish: Callable[[int, Decoded], bool] = lambda lane, decoded: False,
    on_step: Callable[[int, int], bool | None] = lambda step, running: None,
    stop_when: Callable[[Sequence[int]], bool] = lambda ids: False,
) -> list[Decoded]:
    """Sample all lanes together until each stopped or the budget is used.

    A lane ends at a stop token, or where `stop_when(ids)` says so, its last id kept.
    `on_finish(lane, decoded)` is called as a lane ends; when it returns True all others are
    given up (they stay unfinished). `on_step(step, running)` follows progress; when it returns
    True, those still running are given up.

    Raises:
        EngineError: the engine gave logits that are not finite.
    """
    # As uint64, because a list with a large seed would become floats, and seeds alike.
    keys = (np.array([sampling.seed, lane], np.uint64) for lane in range(lanes.count))
    streams = [np.random.Generator(np.random.Philox(key=key)) for key in keys]
    out = [Decoded() for _ in range(lanes.count)]
    running = list(range(lanes.count))  # running[row] is the lane that the engine's row holds
    for step in range(max_new_tokens + 1):
        draws = np.array([streams[lane].random() for lane in running])
        tokens = draw_tokens(lanes.logits(), draws, sampling)
        for lane in running:  # all of them were computed, also where one ends the batch
            out[lane].steps += 1
        still = []
        for row, lane in enumerate(running):
            decoded, token = out[lane], int(tokens[row])
            if token in stop_ids:
                decoded.finished = True
            elif len(decoded.ids) < max_new_tokens:
                decoded.ids.append(token)
                decoded.finished = stop_when(decoded.ids)
                if not decoded.finished:
                    still.append(row)
            if decoded.finished and on_finish(lane, decoded):
                return out
        if on_step(step, len(still)) or not still or step == max_new_tokens:
            break
        if len(still) < len(running):
            lanes.keep(still)
            tokens = tokens[still]
            running = [running[row] for row in still]
        lanes.step(tokens)
    return out


def draw_tokens(logits: np.ndarray, draws: np.ndarray, sampling: Sampling) -> np.ndarray:
    """One token per row by nucleus sampling (Holtzman et al., 2020).

    `logits` float32 `[rows, vocab]`, `draws` uniform in [0, 1) `[rows]`; int64 `[rows]`.

    Raises:
        EngineError: a row holds NaN or +inf, or nothing but -inf.
    """
    peaks = logits.max(axis=1, keepdims=True)  # NaN where the row holds one
    if not np.isfinite(peaks).all():
        raise EngineError("the engine gave logits that are not finite numbers")
    # The peak is taken off first: then the coldest division cannot overflow towards +inf.
    temperature = min(max(sampling.temperature, _COLDEST), _HOTTEST)
    scaled = logits - peaks
    with np.errstate(over="ignore"):
        scaled /= np.float32(temperature)
    weights = np.exp(scaled, out=scaled)
    totals = weights.sum(axis=1, dtype=np.float64)
    out = np.empty(len(logits), np.int64)
    for row, weight in enumerate(weights):
        count = min(_NUCLEUS_TOKENS, weight.size)
        while True:
            order = np.argpartition(weight, weight.size - count)[weight.size - count :]
            order = order[np.lexsort((order, -weight[order]))]
            cumulative = np.cumsum(weight[order], dtype=np.float64)
            enough = sampling.top_p * totals[row]
            if cumulative[-1] >= enough or count == weight.size:
                break
            count = weight.size
        size = min(int(np.searchsorted(cumulative, enough)) + 1, len(order))
        picked = np.searchsorted(cumulative[:size], draws[row] * cumulative[size - 1], "right")
        out[row] = order[min(int(picked), size - 1)]
    return out
