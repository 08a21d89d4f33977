"""The one way a prompt is computed: longest stored prefix, check, restore, compute the rest,
capture.

A grafted run makes the calls of the same plan as a cold one, minus those whose chunks are in the
store; so its logits have the same bits (invariant I1). Anything that cannot be proven is a miss
with a named reason, and is computed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from kvgraft.blob.payload import PayloadCheck, as_buffer, check_views, payload_head
from kvgraft.breakeven import Load, Rates
from kvgraft.engines.base import Context, Engine
from kvgraft.errors import ContextTooLong, EngineError, KvgraftError, StoreError, UsageError
from kvgraft.lookup import Found, Planned, find, reasons, resumable, wanted_objects
from kvgraft.plan import (
    PUBLIC_SALT,
    Call,
    as_token_ids,
    chunk_keys,
    plan_calls,
    plan_root,
    settled_calls,
)
from kvgraft.points import kept_roles
from kvgraft.state import Role
from kvgraft.store.chunks import Capture, ChunkStore, ObjectRead


class Keep(Enum):
    """What of a computed prompt is captured: nothing, its full blocks and what ends at a cut, or
    the tail and the end point too (a deposit resumes exactly there). `kvgraft.points` says which
    objects those are."""

    NOTHING = "nothing"
    BLOCKS = "blocks"
    ALL = "all"


@dataclass
class ReuseReport:
    """What was reused, computed and captured; times in seconds, sizes in bytes and tokens.

    `misses` names why not more was reused; empty when everything was. `captured_by_kind` has the
    tensor bytes of what was newly stored by layer kind (`ids` and `end` are of no layer); the rest
    of `captured_bytes` is headers and padding.
    """

    tokens: int = 0
    reused_tokens: int = 0
    computed_tokens: int = 0
    calls_planned: int = 0
    calls_made: int = 0
    loaded_bytes: int = 0
    captured_bytes: int = 0
    captured_by_kind: dict[str, int] = field(default_factory=dict)
    lookup_seconds: float = 0.0
    restore_seconds: float = 0.0
    compute_seconds: float = 0.0
    capture_seconds: float = 0.0
    misses: list[str] = field(default_factory=list)
    drifted: list[str] = field(default_factory=list)
    capture_error: str | None = None


@dataclass
class Computed:
    """A context that holds the whole prompt, and how it came to. `key` is its end chunk's."""

    context: Context
    report: ReuseReport
    key: bytes


def compute_prompt(
    engine: Engine,
    store: ChunkStore | None,
    ids: Sequence[int] | np.ndarray,
    *,
    salt: bytes = PUBLIC_SALT,
    keep: Keep = Keep.BLOCKS,
    cuts: Sequence[int] = (),
    points: Sequence[int] = (),
    load: Load = Load.ALWAYS,
    room: int = 0,
    on_call: Callable[[Call, Context], None] = lambda call, context: None,
) -> Computed:
    """Compute the state after `ids`, reusing what the store has of it.

    `cuts`: lengths in tokens at which a call ends early (`kvgraft.plan`). They are part of the
    request, as the ids are: with others the logits have other bits. Each is a point as well, and
    what is stored up to there is reused to the last token.
    `points`: lengths in tokens at which other prompts will go on, a shared preamble's end for one;
    what is captured can be resumed at the last full block or cut before each (`kvgraft.points`).
    `load`: when what is stored is loaded (`kvgraft.breakeven`).
    `room` more tokens will fit into the context. `on_call` sees the context after every call that
    is made. A store that cannot be read or written is not an error here: the prompt is computed,
    and the report says so. Close the context when done.

    Raises:
        InputError: no tokens, or not token ids.
        ContextTooLong: prompt and room do not fit the model's context.
        UsageError: points or cuts that are no lengths, or a cut beyond the prompt.
    """
    ids = as_token_ids(ids)
    cuts, points = _lengths("cuts", cuts), _lengths("points", points)
    calls = plan_calls(len(ids), engine.form, engine.context_tokens, cuts)
    if len(ids) + room > engine.context_tokens:
        raise ContextTooLong(
            f"{len(ids)} prompt tokens and {room} new ones do not fit {engine.context_tokens}",
            hint="shorten the prompt or ask for fewer new tokens",
        )
    root = plan_root(engine.fingerprint.digest, salt)
    planned = Planned(ids, calls, chunk_keys(root, ids, calls))
    report = ReuseReport(tokens=len(ids), calls_planned=len(calls))
    context = engine.open_context(len(ids) + room)
    try:
        done = branch = 0
        rates = store.rates(engine.fingerprint.digest) if store is not None else Rates()
        if store is not None and load is not Load.NEVER:
            measured = rates if load is Load.MEASURED else None
            try:
                done, branch = _restore(engine, store, planned, context, report, measured)
            except StoreError as error:
                report.misses.append(f"{error.code}: {error}")
            except EngineError as error:
                # The engine would not take the state. What it did to the context is its own
                # secret, so the prompt gets another one.
                report.misses.append(f"{error.code}: {error}")
                context.close()
                context = engine.open_context(len(ids) + room)
        capture = None
        if store is not None and keep is not Keep.NOTHING:
            tail = keep is Keep.ALL
            wanted = (*points, *cuts, planned.end(branch))
            settled = settled_calls(calls, engine.form, cuts)
            roles = kept_roles(engine.spec, calls, settled, tail=tail, wanted=wanted)
            capture = _Captures(engine, store, planned, report, roles)
        _compute_rest(planned, context, report, done, capture, rates, on_call)
    except BaseException:
        context.close()
        raise
    return Computed(context, report, planned.keys[-1])


def _lengths(name: str, given: Sequence[int]) -> list[int]:
    lengths = np.asarray(given)
    if lengths.size and (lengths.ndim != 1 or lengths.dtype.kind not in "iu" or lengths.min() < 0):
        raise UsageError(f"{name} are lengths in tokens, not {list(given)}")
    return [int(length) for length in lengths]


def _restore(
    engine: Engine,
    store: ChunkStore,
    planned: Planned,
    context: Context,
    report: ReuseReport,
    measured: Rates | None,
) -> tuple[int, int]:
    """Restore the longest prefix that is stored and sound; how many calls it covers, and how many
    would have been covered could a run resume there. Where `measured` says that computing it is
    faster, nothing is restored."""
    limit = len(planned.calls)
    branch = 0
    while True:
        began = time.perf_counter()
        found = find(engine, store, planned, limit)
        done = resumable(engine, planned, found)
        branch = branch or len(found)
        report.misses += reasons(engine, store, planned, found, done, limit)
        report.lookup_seconds += time.perf_counter() - began
        if done == 0 or (
            measured and _cheaper_computed(engine, planned, found, done, measured, report)
        ):
            return 0, branch
        began = time.perf_counter()
        reads: list[ObjectRead] = []
        sound = store.read(_reads(engine, planned, context, found, done, reads))
        if sound:
            context.commit(planned.end(done))
            report.reused_tokens = planned.end(done)
            report.loaded_bytes = sum(read.size_bytes for read in reads)
        seconds = time.perf_counter() - began
        report.restore_seconds += seconds
        if sound:
            store.rates(engine.fingerprint.digest).note_load(report.loaded_bytes, seconds)
            return done, branch
        errors = [read.error for read in reads if read.error is not None]
        report.misses += [f"{error.code}: {error}" for error in errors]
        # What was read is not committed, so the context is as if nothing had been tried. The next
        # try is shorter whatever the index says by then, so this ends.
        limit = done - 1


def _cheaper_computed(
    engine: Engine,
    planned: Planned,
    found: Found,
    done: int,
    rates: Rates,
    report: ReuseReport,
) -> bool:
    size_bytes = sum(
        found[number][role].object.stored_length
        for number, role in wanted_objects(engine, planned, done)
    )
    calls = planned.calls[:done]
    if not rates.prefers_computing(size_bytes, calls):
        return False
    load, compute = rates.load_seconds(size_bytes), rates.compute_seconds(calls)
    report.misses.append(
        f"break_even: {planned.end(done)} stored tokens are computed, which is predicted to take"
        f" {compute:.4f} s, loading {size_bytes} bytes {load:.4f} s"
    )
    return True


def _reads(
    engine: Engine,
    planned: Planned,
    context: Context,
    found: Found,
    done: int,
    reads: list[ObjectRead],
) -> Iterator[ObjectRead]:
    """What to read, and where to: straight into the context's buffers. Noted in `reads` too."""
    length = planned.end(done)
    for number, role in wanted_objects(engine, planned, done):
        place = planned.place(number)
        tensors = engine.spec.tensors(role, place.count)
        check = PayloadCheck(engine.spec, role, place, planned.tokens(number))
        views = context.import_views(role, place, length)
        buffers = [*check.buffers(), *check_views(tensors, views)]
        reads.append(ObjectRead(found[number][role], buffers, check.verify))
        yield reads[-1]


def _compute_rest(
    planned: Planned,
    context: Context,
    report: ReuseReport,
    done: int,
    capture: _Captures | None,
    rates: Rates,
    on_call: Callable[[Call, Context], None],
) -> None:
    try:
        for number in range(done, len(planned.calls)):
            call = planned.calls[number]
            began = time.perf_counter()
            context.run(planned.tokens(number), call.rows)
            seconds = time.perf_counter() - began
            rates.note_call(call, seconds)
            report.compute_seconds += seconds
            report.calls_made += 1
            report.computed_tokens += call.count
            on_call(call, context)
            if capture:
                capture.take(number, context)
        if capture:
            capture.finish()
    except BaseException:
        if capture:
            capture.abort()
        raise


class _Captures:
    """The capture that goes along with a computation. Its failure never fails the prompt."""

    def __init__(
        self,
        engine: Engine,
        store: ChunkStore,
        planned: Planned,
        report: ReuseReport,
        roles: list[tuple[Role, ...]],
    ) -> None:
        self._engine = engine
        self._planned = planned
        self._report = report
        self._roles = roles
        self._capture: Capture | None = store.capture(engine.fingerprint)

    def take(self, number: int, context: Context) -> None:
        """Store what the call that just ran added."""
        roles = self._roles[number]
        if self._capture is None or not roles:
            return
        began = time.perf_counter()
        place = self._planned.place(number)
        ids = self._planned.tokens(number).tobytes()
        try:
            for role in roles:
                views = context.export_views(role, place)
                head = payload_head(self._engine.spec, role, place)
                parts: list[bytes | memoryview] = [head, ids, *map(as_buffer, views)]
                key = self._planned.keys[number]
                if self._capture.add(role, key, (place.start, place.count, place.rows), parts):
                    self._note(role, place.count)
        except StoreError as error:
            self._failed(error)
        self._report.capture_seconds += time.perf_counter() - began

    def _note(self, role: Role, count: int) -> None:
        sizes = self._report.captured_by_kind
        for kind, size_bytes in self._engine.spec.bytes_by_kind(role, count).items():
            sizes[kind] = sizes.get(kind, 0) + size_bytes

    def finish(self) -> None:
        """Make the capture visible."""
        if self._capture is None:
            return
        began = time.perf_counter()
        try:
            result = self._capture.commit()
            self._report.captured_bytes = result.pack_bytes
            self._report.drifted = result.drifted
        except StoreError as error:
            self._failed(error)
        self._report.capture_seconds += time.perf_counter() - began

    def _failed(self, error: KvgraftError) -> None:
        self._report.capture_error = str(error)
        self._report.captured_by_kind.clear()
        self.abort()
        self._capture = None

    def abort(self) -> None:
        if self._capture is not None:
            with contextlib.suppress(StoreError):
                self._capture.abort()
