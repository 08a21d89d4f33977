"""What may change around a row without changing its bits: the cases of `invariance.py`.

Each case computes the same tokens in two ways. Rows are compared by their final hidden states (of
an engine that does not show them, by what it stores of them): a head over other rows is another
shape by itself. The last token is compared by its logits too, from a head of one row. A case that
an engine cannot be asked is None.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from kvgraft.blob.payload import ChunkPlace
from kvgraft.engines.base import Context, Engine
from kvgraft.evidence.prove import kl_divergence
from kvgraft.reuse import Keep, compute_prompt
from kvgraft.state import Role
from kvgraft.store.chunks import ChunkStore
from kvgraft.store.index import Index
from kvgraft.store.memory import MemoryStore

TOKENS, TAIL_TOKENS = 300, 44  # a prompt has a block and a tail, and no less than that
LAST_ROWS = 12  # of a prompt, that are compared
ROUNDS = 3
LANES, STEPS = 4, 4
# Where a prompt is resumed inside a block.
MULTIPLES, ELSEWHERE = (32, 64, 128), (17, 100)

Found = dict[str, Any]


def prompt_tokens(block: int) -> int:
    """How long a prompt is, of an engine with this block."""
    return max(TOKENS, block + TAIL_TOKENS)


class Subject:
    """An engine, a prompt for it, and whether to take times."""

    def __init__(self, engine: Engine, ids: Sequence[int], *, times: bool) -> None:
        self.engine = engine
        self.ids = np.asarray(ids, np.uint32)
        self.block = min(engine.form.block, len(ids))
        self.padded = bool(engine.form.rungs)
        self._times = times

    def open(self) -> Context:
        """An empty context with room for more than the prompt."""
        return self.engine.open_context(len(self.ids) + 8 * STEPS)

    def rows(self, ids: np.ndarray, rows: int, count: int) -> np.ndarray:
        """The first `count` rows of one call from position 0, in a shape of `rows` rows: float32
        `[count, values]`."""
        context = self.open()
        try:
            context.run(ids, rows)
            if (hidden := _hidden(context)) is not None:
                return hidden[:count]
            views = context.export_views(Role.KEEP, ChunkPlace(0, len(ids), rows))
            parts = [view[:count].astype(np.float32).reshape(count, -1) for view in views]
            return np.concatenate(parts, axis=1)
        finally:
            context.close()

    def run_all(self, context: Context, tokens: int, cut: int = 0) -> np.ndarray | None:
        """The first `tokens` of the prompt in calls of the block, anew from `cut` on; the hidden
        states float32 of the last rows, where the engine shows them."""
        out = []
        starts = [*range(0, cut, self.block), *range(cut, tokens, self.block)]
        for start, end in zip(starts, [*starts[1:], tokens], strict=True):
            count = end - start
            context.run(self.ids[start:end], self.block if self.padded else count)
            out.append(_hidden(context))
        shown = [rows for rows in out if rows is not None]
        return np.concatenate(shown)[-LAST_ROWS:] if shown else None

    def prompt(self, cut: int = 0) -> tuple[np.ndarray, np.ndarray | None]:
        """Next-token logits float32 `[vocab]` of the prompt, and hidden states of its last rows."""
        context = self.open()
        try:
            rows = self.run_all(context, len(self.ids), cut)
            return context.logits().copy(), rows
        finally:
            context.close()

    def ratio(self, one: Callable[[], object], other: Callable[[], object]) -> float | None:
        """The time of one over that of the other, medians of interleaved rounds; None where no
        times are taken."""
        if not self._times:
            return None
        taken: tuple[list[float], list[float]] = ([], [])
        for _ in range(ROUNDS):
            for work, seconds in zip((one, other), taken, strict=True):
                began = time.perf_counter()
                work()
                seconds.append(time.perf_counter() - began)
        return median(taken[0]) / median(taken[1])


def _hidden(context: Any) -> np.ndarray | None:
    """Final hidden states float32 `[rows, hidden]` of the last call, where a context keeps them."""
    hidden = getattr(context, "_hidden", None)
    if hidden is None or isinstance(hidden, np.ndarray):
        return hidden
    rows: np.ndarray = hidden.float().cpu().numpy()  # torch's
    return rows


def compared(one: np.ndarray, other: np.ndarray, ratio: float | None = None) -> Found:
    """Whether two arrays are equal in every bit, how far apart they are, and at which price."""
    return {
        "equal": one.shape == other.shape and one.tobytes() == other.tobytes(),
        "max_abs": float(np.abs(one.astype(np.float64) - other).max()),
        "time_ratio": ratio,
    }


def _prompts(one: tuple[Any, Any], other: tuple[Any, Any]) -> Found:
    """Two `Subject.prompt`, compared."""
    found = compared(one[0], other[0])
    if one[1] is not None:
        found["equal"] = found["equal"] and one[1].tobytes() == other[1].tobytes()
    return found


def repeated(subject: Subject) -> Found:
    """The same calls again, in the same process."""
    return _prompts(subject.prompt(), subject.prompt())


def followers(subject: Subject) -> Found:
    """Rows of a call of one shape, with other tokens behind them."""
    rows, ids = subject.block, subject.ids[: subject.block]
    worst: Found | None = None
    for count in (1, rows // 2 - 3, rows - 1):
        other = ids.copy()
        other[count:] = ids[: rows - count][::-1]
        found = compared(subject.rows(ids, rows, count), subject.rows(other, rows, count))
        if worst is None or found["max_abs"] > worst["max_abs"] or not found["equal"]:
            worst = found
    assert worst is not None
    return worst


def padding(subject: Subject) -> Found | None:
    """Rows of a call of one shape, with padding behind them instead of tokens. The price is that
    of a short call in the block's shape, over its own."""
    if not subject.padded:
        return None
    rows, count = subject.block, subject.block // 8 + 1
    ids = subject.ids[:rows]
    price = subject.ratio(
        lambda: subject.rows(ids[:count], rows, 1), lambda: subject.rows(ids[:count], count, 1)
    )
    return compared(subject.rows(ids, rows, count), subject.rows(ids[:count], rows, count), price)


def another_shape(subject: Subject) -> Found:
    """Rows of a call, in a call that has fewer."""
    rows, count = subject.block, subject.block // 8 + 1
    ids = subject.ids[:rows]
    return compared(subject.rows(ids, rows, count), subject.rows(ids[:count], count, count))


def resumed_at_multiples(subject: Subject) -> Found:
    """The prompt cut at multiples of 32, calls of the block's shape from there on."""
    return _resumed(subject, MULTIPLES)


def resumed_elsewhere(subject: Subject) -> Found:
    """The prompt cut at 17 and at 100."""
    return _resumed(subject, ELSEWHERE)


def _resumed(subject: Subject, cuts: Sequence[int]) -> Found:
    whole = subject.prompt()
    found = {cut: _prompts(whole, subject.prompt(cut=cut)) for cut in cuts}
    price = subject.ratio(lambda: subject.prompt(cut=cuts[0]), subject.prompt)
    return {
        "equal": all(one["equal"] for one in found.values()),
        "max_abs": max(one["max_abs"] for one in found.values()),
        "equal_at": [cut for cut, one in found.items() if one["equal"]],
        "time_ratio": price,
    }


def grafted(subject: Subject) -> Found:
    """The prompt on the plan: its stored block restored, the rest computed. The price is that of
    the whole prompt, over the rest alone."""
    store = ChunkStore(MemoryStore(), Index(None))
    try:
        cold = _planned(subject, None, Keep.NOTHING)
        _planned(subject, store, Keep.BLOCKS)
        warm = _planned(subject, store, Keep.NOTHING)
        price = subject.ratio(
            lambda: _planned(subject, None, Keep.NOTHING),
            lambda: _planned(subject, store, Keep.NOTHING),
        )
    finally:
        store.close()
    return {**compared(cold[0], warm[0], price), "reused_tokens": warm[1]}


def _planned(subject: Subject, store: ChunkStore | None, keep: Keep) -> tuple[np.ndarray, int]:
    done = compute_prompt(subject.engine, store, subject.ids, keep=keep, room=STEPS)
    try:
        return done.context.logits().copy(), done.report.reused_tokens
    finally:
        done.context.close()


def decoded(subject: Subject) -> Found:
    """The last token decoded at batch 1 against the same token's row in a call. The price is that
    of decoding one token, over a call of one."""
    tokens = len(subject.ids) - 1
    called, stepped = subject.open(), subject.open()
    try:
        subject.run_all(called, len(subject.ids))
        subject.run_all(stepped, tokens)
        stepped.decode(int(subject.ids[tokens]))
        return compared(called.logits(), stepped.logits())
    finally:
        called.close()
        stepped.close()


def lanes(subject: Subject) -> Found | None:
    """A lane in a batch of 4 against batch 1, a few steps on. The price is that of a batched step,
    over as many single ones."""
    if not subject.engine.capabilities.lanes:
        return None
    context = subject.open()
    try:
        subject.run_all(context, len(subject.ids))
        batch = context.fork(LANES, 4 * STEPS)
        single = []
        tokens = [int(token) for token in subject.ids[:STEPS]]
        together = []
        for token in tokens:
            batch.step(np.full(LANES, token, np.int64))
            together.append(batch.logits()[0].copy())
        for token in tokens:
            context.decode(token)
            single.append(context.logits().copy())
        price = subject.ratio(
            lambda: batch.step(np.full(LANES, tokens[0], np.int64)),
            lambda: [context.decode(tokens[0]) for _ in range(LANES)],
        )
        batch.close()
        return compared(np.stack(single), np.stack(together), price)
    finally:
        context.close()


def monolithic(subject: Subject) -> Found | None:
    """The prompt on the plan against one stock call. The price is that of the plan."""
    engine = subject.engine
    if not engine.capabilities.monolithic:
        return None
    planned = _planned(subject, None, Keep.NOTHING)[0]
    stock = engine.monolithic_logits(subject.ids)
    price = subject.ratio(
        lambda: _planned(subject, None, Keep.NOTHING), lambda: engine.monolithic_logits(subject.ids)
    )
    kl = float(kl_divergence(stock[None], planned[None]).max())
    return {**compared(stock, planned, price), "kl_nats": kl}


CASES: dict[str, Callable[[Subject], Found | None]] = {
    "repeated": repeated,
    "other followers": followers,
    "padding": padding,
    "another shape": another_shape,
    "cut at multiples of 32": resumed_at_multiples,
    "cut at 17 and 100": resumed_elsewhere,
    "grafted at the block": grafted,
    "decoded, not prefilled": decoded,
    "lanes": lanes,
    "one stock call": monolithic,
}


def seen_of(engine: Engine, store: ChunkStore | None, ids: Sequence[int]) -> Found:
    """What one process sees of a prompt: digests of its next-token logits, and of those of a few
    decoded tokens; and what it reused, or why not. Captures into the store what is not there."""
    keep = Keep.NOTHING if store is None else Keep.BLOCKS
    done = compute_prompt(engine, store, ids, keep=keep, room=STEPS)
    began = time.perf_counter()
    try:
        first = hashlib.sha256(done.context.logits().tobytes()).hexdigest()
        later = hashlib.sha256()
        for token in ids[:STEPS]:
            done.context.decode(int(token))
            later.update(done.context.logits().tobytes())
    finally:
        done.context.close()
    return {
        "prefill": first,
        "decode": later.hexdigest(),
        "reused_tokens": done.report.reused_tokens,
        "misses": done.report.misses,
        "seconds": done.report.compute_seconds + time.perf_counter() - began,
        "fingerprint": dict(engine.fingerprint.fields),
    }
