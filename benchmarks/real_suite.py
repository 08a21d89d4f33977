"""The engine suite (`kvgraft.testing.engines`) on a real model: as many forward calls as a day has.

    python benchmarks/real_suite.py llamacpp demo:smollm2 [--block 32] [--context 1536]

Other arguments go to pytest.

In the tests the suite runs on tiny models, and real ones in two processes. Here every case of it
runs on a model that people use, with a small block, so that several blocks are soon computed, and
a short context, so that the cases that fill one end. Both are declared, and used by every case.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvgraft.engines.base import Engine
from kvgraft.engines.modelcache import cache_root, converted_root
from kvgraft.engines.resolve import resolve
from kvgraft.plan import PlanForm
from kvgraft.store.chunks import ChunkStore
from kvgraft.store.index import Index
from kvgraft.store.memory import MemoryStore
from kvgraft.testing.engines import EngineConformance
from kvgraft.testing.grafting import StoreFactory

_VARIABLE = "KVGRAFT_REAL_SUITE"  # engine, model, block, context: pytest imports this file anew


@cache
def opened(engine: str, model: str, block: int, context: int) -> Any:
    """The engine, with a block and a context of its own choosing."""
    loaded = _load(engine, model, block)
    loaded.context_tokens = min(loaded.context_tokens, context)
    return loaded


def _load(engine: str, model: str, block: int) -> Any:
    gguf = resolve(model, progress=lambda *done: None, say=print).gguf
    assert gguf is not None
    if engine == "llamacpp":
        from kvgraft.engines.llamacpp.engine import load as load_gguf

        return load_gguf(
            gguf, source=model, threads=2, cache=cache_root(), form=PlanForm(block, ())
        )
    from kvgraft.engines.gguf_convert import convert
    from kvgraft.engines.transformers.engine import load

    form = PlanForm(block, (block // 4, block // 2, block))
    folder = convert(gguf, converted_root())
    return load(folder, source=model, threads=2, cache=cache_root(), form=form)


class TestReal(EngineConformance):
    """See the module."""

    # llama.cpp quantises activations: on prompts of random ids, another shape moves a logit of
    # Gemma 3 by up to 8 % of their spread, while reading the last 1,328 of 1,528 tokens alone
    # moves it by 22 %, the last 100 of 300 by 57 %.
    near = 0.15 if "llamacpp" in os.environ.get(_VARIABLE, "") else EngineConformance.near

    @pytest.fixture
    def engine(self) -> Engine:
        engine, model, block, context = os.environ[_VARIABLE].split()
        return opened(engine, model, int(block), int(context))  # type: ignore[no-any-return]

    @pytest.fixture
    def store_factory(self) -> StoreFactory:
        return lambda: ChunkStore(MemoryStore(), Index(None))

    @pytest.fixture
    def set_threads(self, engine: Any) -> Callable[[int], None]:
        if engine.name == "transformers":
            import torch

            return torch.set_num_threads
        import llama_cpp

        def change(threads: int) -> None:
            for session in engine._sessions:
                llama_cpp.llama_set_n_threads(session.pointer, threads, threads)

        return change


class Counted:
    """Counts what pytest saw."""

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] = self.outcomes.get(report.outcome, 0) + 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=("llamacpp", "transformers"))
    parser.add_argument("model", help="demo:NAME or a GGUF file")
    parser.add_argument("--block", type=int, default=32, help="rows of a plan call")
    parser.add_argument("--context", type=int, default=1536, help="tokens, at most the model's")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen, rest = parser.parse_known_args()
    os.environ[_VARIABLE] = f"{chosen.engine} {chosen.model} {chosen.block} {chosen.context}"
    counted = Counted()
    status = pytest.main([__file__, "-q", "--timeout=0", *rest], plugins=[counted])
    sys.path.insert(0, str(Path(__file__).parent))
    import harness

    passed = counted.outcomes.get("passed", 0)
    other = sum(counted.outcomes.values()) - passed
    harness.report(
        "real_suite",
        {"cases_passed": float(passed), "cases_otherwise": float(other)},
        {"cases_passed": (">=", 1), "cases_otherwise": ("<=", 0)},
        {name: getattr(chosen, name) for name in ("engine", "model", "block", "context")},
        chosen.json,
        f"python benchmarks/real_suite.py {chosen.engine} {chosen.model} --block {chosen.block} "
        f"--context {chosen.context}",
    )
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
