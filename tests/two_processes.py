"""A real model in two processes: one computes and stores, the other grafts what is stored."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from kvgraft.engines.modelcache import cache_root
from kvgraft.reuse import Keep
from kvgraft.store.check import open_local
from kvgraft.testing.grafting import expect_equal, prompt, run_digest


@dataclass(frozen=True)
class Trial:
    """`loader`: the module whose `load` opens `model`. `prompts`: of each, its tokens, and how many
    of them are stored. `steps` tokens are decoded behind it."""

    loader: str
    model: str
    prompts: tuple[tuple[int, int], ...]
    block: int
    steps: int
    threads: int = 2

    def check(self, store: Path, *, silent: bool = False) -> None:
        """Both processes see the same logits; the second one makes just the calls that are left.
        `silent`: neither writes anything to standard error."""
        cold, grafted = (self._run(part, store, silent) for part in ("cold", "graft"))
        seen = []
        for (tokens, stored), before, after in zip(self.prompts, cold, grafted, strict=True):
            reused = stored if stored == tokens else stored // self.block * self.block
            calls = -(-tokens // self.block) - -(-reused // self.block)
            seen += [
                ((tokens, stored, "digest"), after[0], before[0]),
                ((tokens, stored, "reused and made"), tuple(after[1:]), (reused, calls)),
            ]
        expect_equal(seen)

    def _run(self, part: str, store: Path, silent: bool) -> list[list[Any]]:
        job = {**asdict(self), "part": part, "store": str(store)}
        done = subprocess.run(
            [sys.executable, __file__, json.dumps(job)],
            # Waiting threads sleep: spinning ones starve each other where other work runs too.
            env={**os.environ, "OMP_WAIT_POLICY": "passive"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert not silent or done.stderr == ""
        return list(json.loads(done.stdout.splitlines()[-1]))


def child(job: dict[str, Any]) -> list[list[Any]]:
    """`cold` computes every prompt without a store, then stores a part of each; `graft` computes
    them from what is stored."""
    engine = import_module(job["loader"]).load(
        Path(job["model"]), source="real", threads=job["threads"], cache=cache_root()
    )
    store = open_local(Path(job["store"]))
    seen: list[list[Any]] = []
    for number, (tokens, stored) in enumerate(job["prompts"]):
        ids = prompt(engine, tokens, seed=number)
        if job["part"] == "cold":
            digest, _ = run_digest(engine, None, ids, steps=job["steps"])
            run_digest(engine, store, ids[:stored], keep=Keep.ALL, steps=0)
            seen.append([digest, 0, None])
        else:
            digest, report = run_digest(engine, store, ids, keep=Keep.NOTHING, steps=job["steps"])
            seen.append([digest, report.reused_tokens, report.calls_made])
    store.close()
    return seen


if __name__ == "__main__":
    print(json.dumps(child(json.loads(sys.argv[1]))))
