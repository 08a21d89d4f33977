"""The engine suite (`kvgraft.testing.engines`) on a real model: as many forward calls as a day has.

    python benchmarks/real_suite.py llamacpp demo:smollm2 [--block 32] [--json FILE]

Other arguments go to pytest.

In the tests the suite runs on tiny models, and real ones in two processes. Here every case of it
runs on a model that people use, with a small block, so that several blocks are soon computed. A
model with windows of 512 takes some minutes a case.
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

_VARIABLE = "KVGRAFT_REAL_SUITE"  # engine, model and block: pytest imports this file anew


@cache
def opened(engine: str, model: str, block: int) -> Any:
    """The engine, with a block of its own choosing."""
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

    @pytest.fixture
    def engine(self) -> Engine:
        engine, model, block = os.environ[_VARIABLE].split()
        return opened(engine, model, int(block))  # type: ignore[no-any-return]

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
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen, rest = parser.parse_known_args()
    os.environ[_VARIABLE] = f"{chosen.engine} {chosen.model} {chosen.block}"
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
        {"engine": chosen.engine, "model": chosen.model, "block": chosen.block},
        chosen.json,
        f"python benchmarks/real_suite.py {chosen.engine} {chosen.model} --block {chosen.block}",
    )
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
