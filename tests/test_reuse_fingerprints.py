"""A hit is of this fingerprint, even where keys collide; a damaged fingerprint explains nothing."""

from __future__ import annotations

import numpy as np
import pytest

from kvgraft import plan, reuse
from kvgraft.engines.toy import ToyEngine
from kvgraft.reuse import Keep, compute_prompt
from kvgraft.store.chunks import ChunkStore
from kvgraft.store.index import Index
from kvgraft.store.memory import MemoryStore

IDS = np.arange(40, dtype=np.uint32)


@pytest.fixture
def chunks() -> ChunkStore:
    return ChunkStore(MemoryStore(), Index(None))


def run(engine: ToyEngine, chunks: ChunkStore | None) -> tuple[bytes, reuse.ReuseReport]:
    computed = compute_prompt(engine, chunks, IDS, keep=Keep.ALL)
    logits = computed.context.logits().tobytes()
    computed.context.close()
    return logits, computed.report


def test_another_model_under_the_same_keys_is_not_a_hit(
    chunks: ChunkStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as if the hash that makes roots no longer saw the fingerprint
    blind = plan.plan_root(bytes(32))
    monkeypatch.setattr(reuse, "plan_root", lambda fingerprint, salt=plan.PUBLIC_SALT: blind)
    run(ToyEngine(seed=1), chunks)
    logits, report = run(ToyEngine(seed=2), chunks)
    assert report.reused_tokens == 0
    assert logits == run(ToyEngine(seed=2), None)[0]


def test_a_damaged_fingerprint_text_does_not_fail_a_prompt(chunks: ChunkStore) -> None:
    run(ToyEngine(seed=1), chunks)
    chunks.index.note_fingerprint(bytes(32), "not json")
    logits, report = run(ToyEngine(seed=2), chunks)
    assert report.reused_tokens == 0
    assert report.misses
    assert logits == run(ToyEngine(seed=2), None)[0]
