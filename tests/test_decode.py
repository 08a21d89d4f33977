"""Tokens out of a context: where decoding stops, what its digest covers, and how lanes go on.

Which token a lane draws is in `test_decode_nucleus.py`.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from kvgraft.decode import Decoded, Sampling, draw_tokens, greedy, sample_lanes
from kvgraft.engines.base import Context, Lanes
from kvgraft.engines.toy import ToyEngine
from kvgraft.errors import EngineError
from kvgraft.reuse import compute_prompt
from toys import prompt

WORDS = 11
STOP = 9
Rule = Callable[[Sequence[int]], np.ndarray]  # what was said -> logits


class Told(Context):
    """A context at batch 1 whose logits follow from what was decoded."""

    def __init__(self, rule: Rule, length: int = 5, capacity: int = 100) -> None:
        self.rule = rule
        self.said: list[int] = []
        self.start, self.room = length, capacity

    @property
    def length(self) -> int:
        return self.start + len(self.said)

    @property
    def capacity(self) -> int:
        return self.room

    def logits(self) -> np.ndarray:
        return self.rule(self.said)

    def decode(self, token: int) -> None:
        assert self.length < self.capacity
        self.said.append(token)


def peak(token: int, height: float = 5.0) -> np.ndarray:
    logits = np.linspace(-1, 0, WORDS, dtype=np.float32)
    logits[token] = height
    return logits


def counting(said: Sequence[int]) -> np.ndarray:
    """Says 0, 1, 2, ... and would go on past the stop token."""
    return peak(len(said) % WORDS)


def sha256(rows: Sequence[np.ndarray]) -> str:
    return hashlib.sha256(b"".join(row.astype(np.float32).tobytes() for row in rows)).hexdigest()


# --- greedy -----------------------------------------------------------------------------------


def test_greedy_stops_at_a_stop_token_and_leaves_it_out() -> None:
    context = Told(counting)
    out = greedy(context, 50, frozenset({STOP, 77}))
    assert out.ids == list(range(STOP))
    assert out.finished
    assert out.steps == STOP + 1
    assert context.said == list(range(STOP))


def test_greedy_stops_when_told_and_keeps_the_token_that_did_it() -> None:
    seen: list[list[int]] = []
    out = greedy(
        Told(counting), 50, frozenset({STOP}), lambda i: bool(seen.append(list(i))) or 3 in i
    )
    assert out.ids == [0, 1, 2, 3]
    assert out.finished
    assert seen == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]


def test_greedy_stops_at_its_budget_unfinished() -> None:
    context = Told(counting)
    out = greedy(context, 4, frozenset({STOP}))
    assert (out.ids, out.finished, out.steps) == ([0, 1, 2, 3], False, 4)
    assert context.said == [0, 1, 2]  # the last token was not worth a forward call


def test_a_generation_that_fills_the_context_is_unfinished() -> None:
    out = greedy(Told(counting, length=5, capacity=8), 50, frozenset({STOP}))
    assert (out.ids, out.finished) == ([0, 1, 2], False)


def test_a_stop_token_at_once_is_an_empty_finished_generation() -> None:
    out = greedy(Told(lambda said: peak(STOP)), 4, frozenset({STOP}))
    assert (out.ids, out.finished, out.steps) == ([], True, 1)


def test_ties_go_to_the_lowest_id() -> None:
    flat = np.zeros(WORDS, np.float32)
    flat[[4, 7]] = 2
    assert greedy(Told(lambda said: flat), 2, frozenset()).ids == [4, 4]


def test_the_digest_covers_every_step_and_the_one_that_stopped() -> None:
    out = greedy(Told(counting), 50, frozenset({3}))
    rows = [peak(token) for token in range(4)]
    assert out.logits_sha256 == sha256(rows)
    other = greedy(Told(lambda said: counting(said) * (1 + (len(said) == 3))), 50, frozenset({3}))
    assert other.ids == out.ids
    assert other.logits_sha256 != out.logits_sha256  # only the stop step differs
    cut = greedy(Told(counting), 2, frozenset({3}))
    assert cut.logits_sha256 == sha256(rows[:2])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("step", [0, 2])
def test_logits_that_are_no_numbers_are_the_engines_fault(bad: float, step: int) -> None:
    def rule(said: Sequence[int]) -> np.ndarray:
        logits = counting(said)
        logits[WORDS - 1] = bad if len(said) == step else -np.inf  # -inf is a token ruled out
        return logits

    with pytest.raises(EngineError, match="not finite"):
        greedy(Told(rule), 9, frozenset())


def test_nothing_but_ruled_out_tokens_is_the_engines_fault() -> None:
    with pytest.raises(EngineError, match="not finite"):
        greedy(Told(lambda said: np.full(WORDS, -np.inf, np.float32)), 9, frozenset())


def test_greedy_is_a_function_of_the_state() -> None:
    engine = ToyEngine()
    outs = []
    for store_seed in (0, 0, 1):
        done = compute_prompt(engine, None, prompt(40, store_seed), room=12)
        outs.append(greedy(done.context, 12, frozenset()))
        done.context.close()
    assert outs[0] == outs[1]
    assert outs[0].logits_sha256 != outs[2].logits_sha256
    assert len(outs[0].ids) == 12


# --- lanes ------------------------------------------------------------------------------------


class Crowd(Lanes):
    """Lanes whose logits follow from who they are and what they said. `moves` is what the engine
    was told, `said` what each original lane was given."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = rules
        self.rows = list(range(len(rules)))
        self.said: list[list[int]] = [[] for _ in rules]
        self.kept: list[list[int]] = []

    @property
    def count(self) -> int:
        return len(self.rows)

    def logits(self) -> np.ndarray:
        return np.stack([self.rules[lane](self.said[lane]) for lane in self.rows])

    def step(self, tokens: np.ndarray) -> None:
        assert len(tokens) == len(self.rows)
        for lane, token in zip(self.rows, tokens, strict=True):
            self.said[lane].append(int(token))

    def keep(self, lanes: Sequence[int]) -> None:
        self.kept.append(list(lanes))
        self.rows = [self.rows[row] for row in lanes]


def ends_after(count: int) -> Rule:
    """Draws freely, and then the stop token."""

    def rule(said: Sequence[int]) -> np.ndarray:
        if len(said) == count:
            return peak(STOP, 90)
        logits = np.zeros(WORDS, np.float32)
        logits[STOP] = -np.inf
        return logits

    return rule


def sampled(rules: Sequence[Rule], budget: int = 8, seed: int = 0) -> tuple[Crowd, list[Decoded]]:
    crowd = Crowd(rules)
    return crowd, sample_lanes(crowd, budget, frozenset({STOP}), Sampling(1.0, 1.0, seed))


def test_seeds_are_reproducible_and_lanes_differ() -> None:
    rules = [ends_after(99)] * 4
    first, again, other = (sampled(rules, 20, seed)[1] for seed in (7, 7, 8))
    assert first == again
    assert first != other
    ids = [tuple(lane.ids) for lane in first]
    assert len(set(ids)) == 4
    assert not set(ids) & {tuple(lane.ids) for lane in other}
    large, larger = (sampled(rules, 20, 2**64 - n)[1] for n in (2, 1))
    assert large != larger


def test_a_lanes_draws_do_not_depend_on_the_others() -> None:
    alone = sampled([ends_after(99)] * 4, 12)[1]
    for ends in itertools.product((0, 3, 99), repeat=3):
        mixed = sampled([*map(ends_after, ends), ends_after(99)], 12)[1]
        assert mixed[3].ids == alone[3].ids
        for lane, end in enumerate(ends):
            assert mixed[lane].ids == alone[lane].ids[:end]


def test_finished_lanes_leave_the_batch_and_the_others_keep_their_places() -> None:
    lengths = [3, 0, 5, 3, 99]
    crowd, out = sampled([ends_after(length) for length in lengths], 8)
    assert [len(lane.ids) for lane in out] == [3, 0, 5, 3, 8]
    assert [lane.finished for lane in out] == [True, True, True, True, False]
    assert crowd.kept == [[0, 2, 3, 4], [1, 3], [1]]
    for lane, decoded in enumerate(out):
        assert crowd.said[lane] == decoded.ids  # what a lane said is what its own row was given
        assert decoded.steps == len(decoded.ids) + 1


def test_a_lane_that_ends_right_at_its_budget_is_finished() -> None:
    _, out = sampled([ends_after(8), ends_after(9)], 8)
    assert [lane.finished for lane in out] == [True, False]
    assert [len(lane.ids) for lane in out] == [8, 8]


def test_on_finish_hears_of_finished_lanes_alone_and_can_stop_all() -> None:
    heard: list[tuple[int, list[int], bool]] = []

    def hear(lane: int, decoded: Decoded) -> bool:
        heard.append((lane, list(decoded.ids), decoded.finished))
        return len(heard) == 2

    crowd = Crowd([ends_after(n) for n in (4, 2, 99, 4)])
    out = sample_lanes(crowd, 8, frozenset({STOP}), Sampling(1.0, 1.0), hear)
    assert [lane for lane, _, _ in heard] == [1, 0]
    assert all(finished for _, _, finished in heard)
    assert [ids for _, ids, _ in heard] == [out[1].ids, out[0].ids]
    # Lane 3 would have ended in the same step; it and lane 2 are given up as they are.
    assert [lane.finished for lane in out] == [True, True, False, False]
    assert [len(lane.ids) for lane in out] == [4, 2, 4, 4]
    assert [lane.steps for lane in out] == [5, 3, 5, 5]  # every row that was computed counts


def test_a_lane_that_never_finishes_is_never_judged() -> None:
    heard: list[int] = []
    crowd = Crowd([ends_after(99), ends_after(1)])
    sample_lanes(
        crowd, 5, frozenset({STOP}), Sampling(), lambda lane, decoded: bool(heard.append(lane))
    )
    assert heard == [1]


def test_progress_counts_steps_and_lanes_still_going() -> None:
    seen: list[tuple[int, int]] = []
    crowd = Crowd([ends_after(1), ends_after(2)])
    sample_lanes(
        crowd, 8, frozenset({STOP}), Sampling(), on_step=lambda step, n: seen.append((step, n))
    )
    assert seen == [(0, 2), (1, 1), (2, 0)]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_lanes_refuse_logits_that_are_no_numbers(bad: float) -> None:
    def rule(said: Sequence[int]) -> np.ndarray:
        logits = counting(said)
        logits[4] = bad if len(said) == 2 else logits[4]
        return logits

    with pytest.raises(EngineError, match="not finite"):
        sampled([counting, rule])
    with pytest.raises(EngineError, match="not finite"):
        sampled([lambda said: np.full(WORDS, -np.inf, np.float32)])


def test_the_toys_lanes_go_on_as_their_own_contexts_would() -> None:
    engine = ToyEngine()
    done = compute_prompt(engine, None, prompt(30), room=16)
    lanes = done.context.fork(3, 16)
    out = sample_lanes(lanes, 16, frozenset(range(64)), Sampling(1.0, 1.0, seed=3))
    lanes.close()
    assert len({len(lane.ids) for lane in out}) > 1  # some ended earlier, so rows moved
    for number, decoded in enumerate(out):
        stream = np.random.Generator(np.random.Philox(key=np.array([3, number], np.uint64)))
        context = compute_prompt(engine, None, prompt(30), room=16).context
        for token in decoded.ids:
            row = context.logits()[None]
            assert draw_tokens(row, np.array([stream.random()]), Sampling(1.0, 1.0))[0] == token
            context.decode(token)
        context.close()
