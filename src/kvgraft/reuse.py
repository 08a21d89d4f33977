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

from kvgraft.blob.payload import ChunkPlace, PayloadCheck, as_buffer, check_views, payload_head
from kvgraft.engines.base import Context, Engine
from kvgraft.errors import ContextTooLong, KvgraftError, StoreError, UsageError
from kvgraft.identity import Fingerprint
from kvgraft.plan import (
    PUBLIC_SALT,
    Call,
    TokenIds,
    as_token_ids,
    chunk_keys,
    plan_calls,
    plan_root,
)
from kvgraft.state import Role
from kvgraft.store.chunks import Capture, ChunkStore, ObjectRead
from kvgraft.store.index import IndexEntry


class Keep(Enum):
    """What of a computed prompt is captured: nothing, its full blocks, or the tail and the end
    point too (a deposit resumes exactly there)."""

    NOTHING = "nothing"
    BLOCKS = "blocks"
    ALL = "all"


@dataclass
class ReuseReport:
    """What was reused, computed and captured; times in seconds, sizes in bytes and tokens.

    `misses` names why not more was reused; empty when everything was.
    """

    tokens: int = 0
    reused_tokens: int = 0
    computed_tokens: int = 0
    calls_planned: int = 0
    calls_made: int = 0
    loaded_bytes: int = 0
    captured_bytes: int = 0
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


@dataclass(frozen=True)
class _Planned:
    ids: TokenIds
    calls: tuple[Call, ...]
    keys: tuple[bytes, ...]

    def place(self, number: int) -> ChunkPlace:
        call = self.calls[number]
        return ChunkPlace(call.start, call.count, call.rows)

    def tokens(self, number: int) -> TokenIds:
        return self.ids[self.calls[number].start : self.calls[number].end]


def compute_prompt(
    engine: Engine,
    store: ChunkStore | None,
    ids: Sequence[int] | np.ndarray,
    *,
    salt: bytes = PUBLIC_SALT,
    keep: Keep = Keep.BLOCKS,
    room: int = 0,
    on_call: Callable[[Call, Context], None] = lambda call, context: None,
) -> Computed:
    """Compute the state after `ids`, reusing what the store has of it.

    `room` more tokens will fit into the context. `on_call` sees the context after every call that
    is made. A store that cannot be read or written is not an error here: the prompt is computed,
    and the report says so. Close the context when done.

    Raises:
        InputError: no tokens, or not token ids.
        ContextTooLong: prompt and room do not fit the model's context.
    """
    ids = as_token_ids(ids)
    calls = plan_calls(len(ids), engine.form, engine.context_tokens)
    if len(ids) + room > engine.context_tokens:
        raise ContextTooLong(
            f"{len(ids)} prompt tokens and {room} new ones do not fit {engine.context_tokens}",
            hint="shorten the prompt or ask for fewer new tokens",
        )
    root = plan_root(engine.fingerprint.digest, salt)
    planned = _Planned(ids, calls, chunk_keys(root, ids, calls))
    report = ReuseReport(tokens=len(ids), calls_planned=len(calls))
    context = engine.open_context(len(ids) + room)
    try:
        done = 0
        if store is not None:
            try:
                done = _restore(engine, store, planned, context, report)
            except StoreError as error:
                report.misses.append(f"{error.code}: {error}")
        capture = None
        if store is not None and keep is not Keep.NOTHING:
            capture = _Captures(engine, store, planned, report, keep)
        _compute_rest(planned, context, report, done, capture, on_call)
    except BaseException:
        context.close()
        raise
    return Computed(context, report, planned.keys[-1])


def _restore(
    engine: Engine, store: ChunkStore, planned: _Planned, context: Context, report: ReuseReport
) -> int:
    """Restore the longest prefix that is stored and sound; how many calls it covers."""
    limit = len(planned.calls)
    while True:
        began = time.perf_counter()
        found, done = _find(engine, store, planned, limit, report)
        report.lookup_seconds += time.perf_counter() - began
        if done == 0:
            return 0
        began = time.perf_counter()
        reads: list[ObjectRead] = []
        sound = store.read(_reads(engine, planned, context, found, done, reads))
        if sound:
            context.commit(planned.calls[done - 1].end)
            report.reused_tokens = planned.calls[done - 1].end
            report.loaded_bytes = sum(read.size_bytes for read in reads)
        report.restore_seconds += time.perf_counter() - began
        if sound:
            return done
        errors = [read.error for read in reads if read.error is not None]
        report.misses += [f"{error.code}: {error}" for error in errors]
        # What was read is not committed, so the context is as if nothing had been tried. The next
        # try is shorter whatever the index says by then, so this ends.
        limit = done - 1


def _find(
    engine: Engine, store: ChunkStore, planned: _Planned, limit: int, report: ReuseReport
) -> tuple[list[dict[Role, IndexEntry]], int]:
    """The longest resumable prefix of at most `limit` calls, by the index alone."""
    spec = engine.spec
    roles = spec.roles()
    base = Role.KEEP if Role.KEEP in roles else Role.NEAR
    found: list[dict[Role, IndexEntry]] = []
    for key in planned.keys[:limit]:
        # The key stands for the fingerprint already; a broken hash must not make that a guess.
        objects = {
            role: entry
            for role, entry in store.find(key).items()
            if entry.object.fingerprint == engine.fingerprint.digest
        }
        if base not in objects:
            break
        found.append(objects)
    reasons = []
    if len(found) < limit:
        reasons.append(_why_absent(store, engine.fingerprint, len(found)))
    done = len(found)
    while done and (reason := _not_resumable(engine, planned, found, done)):
        reasons.append(reason)
        done -= 1
    report.misses += [reason for reason in reasons if reason not in report.misses]
    return found[:done], done


def _why_absent(store: ChunkStore, fingerprint: Fingerprint, found: int) -> str:
    if found or store.index.has_fingerprint(fingerprint.digest):
        return f"not_stored: no chunk after {found} calls"
    stored = []
    for text in store.index.fingerprints().values():
        with contextlib.suppress(UsageError):  # a damaged text explains nothing
            stored.append(Fingerprint.from_json(text))
    closest = min((fingerprint.differing(other) for other in stored), key=len, default=())
    # Other weights alone are the same model trained on; with more beside them, another model.
    if closest and ("weights" not in closest or len(closest) == 1):
        return "fingerprint: " + ", ".join(closest) + " differ"
    return "not_stored: nothing from this model"


def _not_resumable(
    engine: Engine, planned: _Planned, found: list[dict[Role, IndexEntry]], done: int
) -> str | None:
    """Why a run cannot go on after `done` calls, or None."""
    if done == len(planned.calls) and Role.END not in found[done - 1]:
        # The next-token logits need the end point, so the last call is made again.
        return "no_end_point: the last call is computed for its logits"
    if Role.NEAR in engine.spec.roles():
        length = planned.calls[done - 1].end
        for number in _near_numbers(engine, planned, done):
            if Role.NEAR not in found[number]:
                return f"no_window: windows at {length} tokens are not stored"
    return None


def _near_numbers(engine: Engine, planned: _Planned, done: int) -> list[int]:
    """The calls whose tokens sliding layers can still see after `done` calls."""
    first = engine.spec.near_start(planned.calls[done - 1].end)
    return [number for number in range(done) if planned.calls[number].end > first]


def _reads(
    engine: Engine,
    planned: _Planned,
    context: Context,
    found: list[dict[Role, IndexEntry]],
    done: int,
    reads: list[ObjectRead],
) -> Iterator[ObjectRead]:
    """What to read, and where to: straight into the context's buffers. Noted in `reads` too."""
    length = planned.calls[done - 1].end
    roles = engine.spec.roles()
    wanted: list[tuple[int, Role]] = []
    if Role.KEEP in roles:
        wanted += [(number, Role.KEEP) for number in range(done)]
    if Role.NEAR in roles:
        wanted += [(number, Role.NEAR) for number in _near_numbers(engine, planned, done)]
    if done == len(planned.calls):
        wanted.append((done - 1, Role.END))
    for number, role in wanted:
        place = planned.place(number)
        tensors = engine.spec.tensors(role, place.count)
        check = PayloadCheck(engine.spec, role, place, planned.tokens(number))
        views = context.import_views(role, place, length)
        buffers = [*check.buffers(), *check_views(tensors, views)]
        reads.append(ObjectRead(found[number][role], buffers, check.verify))
        yield reads[-1]


def _compute_rest(
    planned: _Planned,
    context: Context,
    report: ReuseReport,
    done: int,
    capture: _Captures | None,
    on_call: Callable[[Call, Context], None],
) -> None:
    try:
        for number in range(done, len(planned.calls)):
            call = planned.calls[number]
            began = time.perf_counter()
            context.run(planned.tokens(number), call.rows)
            report.compute_seconds += time.perf_counter() - began
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
        self, engine: Engine, store: ChunkStore, planned: _Planned, report: ReuseReport, keep: Keep
    ) -> None:
        self._engine = engine
        self._planned = planned
        self._report = report
        self._keep = keep
        self._capture: Capture | None = store.capture(engine.fingerprint)

    def take(self, number: int, context: Context) -> None:
        """Store what the call that just ran added."""
        call = self._planned.calls[number]
        last = number == len(self._planned.calls) - 1
        block = call.count == self._engine.form.block
        if self._capture is None or (self._keep is Keep.BLOCKS and not block):
            return
        roles = list(self._engine.spec.roles())
        if last and self._keep is Keep.ALL:
            roles.append(Role.END)
        began = time.perf_counter()
        place = self._planned.place(number)
        ids = self._planned.tokens(number).tobytes()
        try:
            for role in roles:
                views = context.export_views(role, place)
                head = payload_head(self._engine.spec, role, place)
                parts: list[bytes | memoryview] = [head, ids, *map(as_buffer, views)]
                key = self._planned.keys[number]
                self._capture.add(role, key, (place.start, place.count, place.rows), parts)
        except StoreError as error:
            self._failed(error)
        self._report.capture_seconds += time.perf_counter() - began

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
        self.abort()
        self._capture = None

    def abort(self) -> None:
        if self._capture is not None:
            with contextlib.suppress(StoreError):
                self._capture.abort()
