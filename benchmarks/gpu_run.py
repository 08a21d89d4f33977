"""What the steps of `gpu_exactness.py` have in hand, and what they are going to write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from device_meter import Meter
from kvgraft.blob.payload import ChunkPlace, payload_length
from kvgraft.engines.base import Engine
from kvgraft.evidence.samples import DECODE_STEPS, Sample, make_samples
from kvgraft.limits import OBJECT_HEADER_BYTES
from kvgraft.plan import plan_calls, settled_calls
from kvgraft.points import kept_roles
from kvgraft.state import Role
from kvgraft.store.check import open_local
from kvgraft.store.chunks import ChunkStore

LENGTHS = {"16k": 16_000, "2k": 2_000, "4k": 4_000, "8k": 8_000, "32k": 32_000}
TINY_DIVISOR = 400  # of the lengths, for the tiny form
LONGEST_SAMPLE, LONGEST_TINY_SAMPLE = 1536, 120  # beyond the window of either form
_PACK_SLACK = 1.02  # headers, padding, the table at a pack's end


@dataclass
class Run:
    """One subject in one process. `alter`: samples that are served a wrong state, to show that it
    is seen. `left` tells the seconds that remain."""

    engine: Any
    folder: Path
    meter: Meter
    samples: int
    seed: int
    tiny: bool
    left: Callable[[], float]
    weights_bytes: int
    alter: tuple[int, ...] = ()

    def tokens(self, label: str) -> int:
        return LENGTHS[label] // TINY_DIVISOR if self.tiny else LENGTHS[label]

    def document(self, label: str) -> np.ndarray:
        """Random ids; a shorter document begins a longer one."""
        ids = np.random.default_rng(self.seed).integers(
            1, self.engine.vocabulary, max(LENGTHS.values())
        )
        return ids[: self.tokens(label)].astype(np.uint32)

    def make_samples(self) -> list[Sample]:
        longest = LONGEST_TINY_SAMPLE if self.tiny else LONGEST_SAMPLE
        return make_samples(self.engine, self.samples, self.seed, longest)

    def store(self, name: str) -> ChunkStore:
        """`samples` or `documents`."""
        return open_local(self.folder / name)


# --- what is written ----------------------------------------------------------------------------


def artifact_bytes(
    engine: Engine, tokens: int, *, tail: bool = True, roles: Sequence[Role] = tuple(Role)
) -> int:
    """Bytes of the objects that a prompt of so many tokens leaves behind, by its layers alone."""
    calls = plan_calls(tokens, engine.form, engine.context_tokens)
    kept = kept_roles(engine.spec, calls, settled_calls(calls, engine.form), tail=tail)
    return sum(
        OBJECT_HEADER_BYTES
        + payload_length(engine.spec, role, ChunkPlace(call.start, call.count, call.rows))
        for call, its in zip(calls, kept, strict=True)
        for role in its
        if role in roles
    )


def samples_bytes(run: Run) -> int:
    """What `cold` writes: states, and the logits of every decode step."""
    sizes = [
        artifact_bytes(run.engine, sample.stored, tail=sample.stored == len(sample.ids))
        for sample in run.make_samples()
    ]
    vectors = len(sizes) * (DECODE_STEPS + 1) * run.engine.vocabulary * 4
    return round(sum(sizes) * _PACK_SLACK) + int(vectors)


def document_bytes(run: Run, label: str) -> int:
    """What capturing a document writes, at most."""
    return int(artifact_bytes(run.engine, run.tokens(label)) * _PACK_SLACK)
