"""The llama.cpp engine passes the engine suite on tiny models of real architectures."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

if importlib.util.find_spec("llama_cpp") is None:
    pytest.skip("llama.cpp engine not installed", allow_module_level=True)

import llama_cpp

from kvgraft.engines.base import Engine
from kvgraft.store.chunks import ChunkStore
from kvgraft.store.index import Index
from kvgraft.store.memory import MemoryStore
from kvgraft.testing.engines import EngineConformance
from kvgraft.testing.grafting import StoreFactory, expect_equal, prompt, run_digest


class TestTiny(EngineConformance):
    @pytest.fixture(params=["llama", "gemma3"])
    def engine(self, request: pytest.FixtureRequest, tiny_engine: Callable[[str], Any]) -> Engine:
        return tiny_engine(request.param)

    @pytest.fixture
    def store_factory(self) -> StoreFactory:
        return lambda: ChunkStore(MemoryStore(), Index(None))

    @pytest.fixture
    def set_threads(self, engine: Any) -> Callable[[int], None]:
        """The thread count belongs to llama.cpp's contexts, so all open ones are changed."""

        def change(threads: int) -> None:
            for session in engine._sessions:
                llama_cpp.llama_set_n_threads(session.pointer, threads, threads)

        return change


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "gemma2", "gemma3"])
def test_every_family_is_exact(arch: str, tiny_engine: Callable[[str], Any]) -> None:
    engine = tiny_engine(arch)
    seen = []
    for tokens in (1, 16, 40, 77, 261, 300):
        ids, store = prompt(engine, tokens), ChunkStore(MemoryStore(), Index(None))
        cold, _ = run_digest(engine, None, ids)
        for case in ("captured", "restored"):
            digest, report = run_digest(engine, store, ids)
            seen.append(((tokens, case), digest, cold))
        seen.append(((tokens, "made"), report.calls_made, 0))
        store.close()
    expect_equal(seen)
