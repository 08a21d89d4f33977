"""What a stored state costs and saves, over the length of the prompt: seconds, bytes, reuses.

Everything is timed in this process with one engine and a store of its own in a temporary folder.
To compute and to restore both end where the next token's logits are there. What was not measured
is None, and `reasons` says why.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from kvgraft.blob.payload import ChunkPlace, payload_head
from kvgraft.engines.base import Engine
from kvgraft.errors import InputError, UsageError
from kvgraft.evidence.process import Progress
from kvgraft.evidence.samples import corpus
from kvgraft.limits import OBJECT_HEADER_BYTES
from kvgraft.plan import as_token_ids
from kvgraft.prompt import encode
from kvgraft.reuse import Computed, Keep, ReuseReport, compute_prompt
from kvgraft.state import DTYPE_BYTES
from kvgraft.store.check import open_local
from kvgraft.store.chunks import ChunkStore
from kvgraft.store.index import IndexEntry

SHORTEST, LONGEST = 64, 4096
COMPUTE_RUNS, RESTORE_RUNS = 3, 7
# A length whose runs take longer than this gets no more of them; how many it had is told.
ENOUGH_SECONDS = 20.0
_CHARS_PER_TOKEN = 12  # more than any tokenizer here needs; texts are cut to tokens
_ROOM = 2  # tokens decoded behind a restored state
_STAGE = "measuring lengths"


@dataclass
class AtLength:
    """One length in tokens; seconds of every run, sizes in bytes.

    `after_restore_seconds`: what the first call after a restore takes more than the next one; it
    is counted as part of the restore. `bytes_by_kind`: the captured tensors by layer kind (`ids`
    and `end` are of no layer); `compressed_by_kind`: the same, each tensor compressed alone.
    """

    tokens: int
    compute_runs: list[float] = field(default_factory=list)
    capture_runs: list[float] = field(default_factory=list)
    restore_runs: list[float] = field(default_factory=list)
    first_restore_seconds: float | None = None
    after_restore_seconds: float | None = None
    restored_bytes: int | None = None
    stored_bytes: int | None = None
    bytes_by_kind: dict[str, int] | None = None
    compressed_by_kind: dict[str, int] | None = None
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def compute_seconds(self) -> float | None:
        """To compute the prompt by the plan; the median."""
        return median(self.compute_runs) if self.compute_runs else None

    @property
    def capture_seconds(self) -> float | None:
        """To store it on the way, durably; the median."""
        return median(self.capture_runs) if self.capture_runs else None

    @property
    def restore_seconds(self) -> float | None:
        """To restore it from a file the system has in memory, every byte verified; the median."""
        if not self.restore_runs:
            return None
        return median(self.restore_runs) + (self.after_restore_seconds or 0.0)

    @property
    def break_even_reuses(self) -> int | None:
        """The fewest reuses after which storing and restoring took less than computing each."""
        return break_even(self.compute_seconds, self.capture_seconds, self.restore_seconds)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, medians included, with a reason for everything that is None."""
        figures = {
            "compute_seconds": self.compute_seconds,
            "capture_seconds": self.capture_seconds,
            "restore_seconds": self.restore_seconds,
            "break_even_reuses": self.break_even_reuses,
        }
        reasons = dict(self.reasons)
        if self.break_even_reuses is None:
            known = None not in (self.compute_seconds, self.capture_seconds, self.restore_seconds)
            slower = "restoring takes as long as computing, or longer: reuse never pays"
            reasons["break_even_reuses"] = slower if known else "a figure it needs is missing"
        return {**asdict(self), **figures, "reasons": reasons}


def break_even(compute: float | None, capture: float | None, restore: float | None) -> int | None:
    """The smallest `n` with capture + n restore < n compute, in seconds; None where there is none
    or a figure is missing."""
    if compute is None or capture is None or restore is None or not restore < compute:
        return None
    return math.floor(capture / (compute - restore)) + 1


def default_lengths(engine: Engine) -> list[int]:
    """64, 128 and so on, as far as 4,096 tokens and the context reach."""
    longest = min(LONGEST, engine.context_tokens - _ROOM)
    return [SHORTEST << n for n in range(longest.bit_length()) if SHORTEST << n <= longest]


def check_lengths(engine: Engine, lengths: Sequence[int]) -> list[int]:
    """The lengths in ascending order, each once.

    Raises:
        UsageError: one is too short or too long for the model's context, or there is none.
    """
    longest = engine.context_tokens - _ROOM
    if not lengths or not all(1 <= length <= longest for length in lengths):
        raise UsageError(
            f"lengths must be within 1..{longest}: {engine.model} has a context of"
            f" {engine.context_tokens} tokens",
            hint="give other --lengths",
        )
    return sorted(set(lengths))


def measure(
    engine: Engine,
    lengths: Sequence[int] | None = None,
    *,
    progress: Progress = lambda stage, done, total: None,
) -> list[AtLength]:
    """Measure prompts of English text at each of `lengths`, in tokens.

    Raises:
        UsageError: a length that the model's context does not hold.
        InputError: there is not so much text.
        StoreError: the temporary store cannot be written.
    """
    wanted = check_lengths(engine, default_lengths(engine) if lengths is None else lengths)
    ids = _text(engine, wanted[-1])
    # What an engine does once, when it is first used, belongs to no length.
    compute_prompt(engine, None, ids[: wanted[0]]).context.close()
    found = []
    with tempfile.TemporaryDirectory(prefix="kvgraft-measure-") as name:
        for number, length in enumerate(wanted):
            progress(_STAGE, number, len(wanted))
            at = AtLength(length)
            _measure_one(engine, Path(name), ids[:length], at)
            found.append(at)
        progress(_STAGE, len(wanted), len(wanted))
    return found


def _text(engine: Engine, tokens: int) -> np.ndarray:
    ids = encode(engine.tokenizer, corpus()[: tokens * _CHARS_PER_TOKEN])[:tokens]
    if len(ids) < tokens:
        raise InputError(f"there is no text of {tokens} tokens to measure on")
    return as_token_ids(ids)


def _measure_one(engine: Engine, folder: Path, ids: np.ndarray, at: AtLength) -> None:
    """Compute and store, several times into a store of its own each; restore from the last."""
    began = time.perf_counter()
    for run in range(COMPUTE_RUNS):
        place = folder / f"{at.tokens}-{run}"
        chunks = open_local(place)
        try:
            report = _compute(engine, chunks, ids, at)
            enough = time.perf_counter() - began > ENOUGH_SECONDS
            if run == COMPUTE_RUNS - 1 or enough or report.capture_error:
                _from_store(engine, chunks, ids, at, report)
                break
        finally:
            chunks.close()
            shutil.rmtree(place, ignore_errors=True)


def _compute(engine: Engine, chunks: ChunkStore, ids: np.ndarray, at: AtLength) -> ReuseReport:
    seconds, computed = _timed(engine, chunks, ids, Keep.ALL)
    computed.context.close()
    report = computed.report
    at.compute_runs.append(seconds - report.capture_seconds)
    if report.capture_error:
        at.capture_runs.clear()
        at.reasons["capture_seconds"] = f"the capture failed: {report.capture_error}"
    else:
        at.capture_runs.append(report.capture_seconds)
    return report


def _from_store(
    engine: Engine, chunks: ChunkStore, ids: np.ndarray, at: AtLength, report: ReuseReport
) -> None:
    if reason := at.reasons.get("capture_seconds"):
        for name in ("restore_seconds", "bytes_by_kind", "compressed_by_kind"):
            at.reasons[name] = reason
        return
    at.stored_bytes = report.captured_bytes
    at.bytes_by_kind = dict(report.captured_by_kind)
    at.compressed_by_kind, reason = compressed_by_kind(engine, chunks)
    if reason:
        at.reasons["compressed_by_kind"] = reason
    _restore(engine, chunks, ids, at)


def _restore(engine: Engine, chunks: ChunkStore, ids: np.ndarray, at: AtLength) -> None:
    """Restore several times; the first one, which also finds the memory for it, stands apart."""
    runs: list[float] = []
    firsts: list[float] = []
    nexts: list[float] = []
    token = int(ids[0])
    for _ in range(1 + RESTORE_RUNS):
        seconds, computed = _timed(engine, chunks, ids, Keep.NOTHING)
        try:
            if computed.report.calls_made:
                misses = "; ".join(computed.report.misses) or "the store has not all of it"
                at.reasons["restore_seconds"] = f"not all could be restored: {misses}"
                return
            runs.append(seconds)
            at.restored_bytes = computed.report.loaded_bytes
            for calls in (firsts, nexts):
                began = time.perf_counter()
                computed.context.decode(token)
                calls.append(time.perf_counter() - began)
        finally:
            computed.context.close()
    at.first_restore_seconds, at.restore_runs = runs[0], runs[1:]
    # The smallest of several: what is left for the first call to do is always there, while the
    # rest of the difference is the machine's.
    at.after_restore_seconds = max(0.0, min(firsts[1:]) - min(nexts[1:]))


def _timed(
    engine: Engine, chunks: ChunkStore, ids: np.ndarray, keep: Keep
) -> tuple[float, Computed]:
    """Seconds until the next token's logits are there, and the context that has them."""
    began = time.perf_counter()
    computed = compute_prompt(engine, chunks, ids, keep=keep, room=_ROOM)
    computed.context.logits()
    return time.perf_counter() - began, computed


def compressed_by_kind(engine: Engine, chunks: ChunkStore) -> tuple[dict[str, int] | None, str]:
    """Bytes of everything in a store by layer kind, each tensor compressed alone: bytes of equal
    weight put side by side, then zstd at level 1 (blosc2). None, and why, without blosc2."""
    compress = _compressor()
    if compress is None:
        return None, "the package blosc2 is not installed (pip install 'kvgraft[report]')"
    sizes: dict[str, int] = {}
    for entry in chunks.index.all_entries():
        for kind, item_bytes, data in _tensors(engine, chunks, entry):
            sizes[kind] = sizes.get(kind, 0) + compress(data, item_bytes)
    return sizes, ""


def _compressor() -> Callable[[memoryview, int], int] | None:
    """Bytes and the size of their items, in bytes -> the compressed size."""
    try:
        import blosc2
    except ImportError:
        return None
    options = {
        "codec": blosc2.Codec.ZSTD,
        "clevel": 1,
        "filters": [blosc2.Filter.SHUFFLE],
        "nthreads": 1,
    }
    return lambda data, item: len(blosc2.compress2(bytes(data), typesize=item, **options))


def _tensors(
    engine: Engine, chunks: ChunkStore, entry: IndexEntry
) -> list[tuple[str, int, memoryview]]:
    """Layer kind, bytes per item, and the bytes of every tensor of a stored object."""
    stored = entry.object
    payload = memoryview(bytearray(stored.stored_length))
    reader = chunks.blobs.open(entry.pack)
    try:
        reader.read_into(stored.offset + OBJECT_HEADER_BYTES, [payload])
    finally:
        reader.close()
    place = ChunkPlace(stored.start, stored.count, stored.rows)
    start = len(payload_head(engine.spec, stored.role, place))
    out = []
    for tensor in engine.spec.tensors(stored.role, stored.count):
        end = start + tensor.size_bytes
        kind = engine.spec.kind_of(stored.role, tensor)
        out.append((kind, DTYPE_BYTES[tensor.dtype], payload[start:end]))
        start = end
    return out
