"""Real models: the same bits from disk in another process, windows included."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if importlib.util.find_spec("llama_cpp") is None:
    pytest.skip("llama.cpp engine not installed", allow_module_level=True)

from kvgraft.engines.llamacpp.engine import load
from kvgraft.engines.modelcache import cache_root
from kvgraft.state import Role
from kvgraft.testing.grafting import computed, expect_equal

THREADS = 2
STEPS = 8
BLOCK = 512
# Of each prompt, how many tokens are stored: all of a short one, all of one a token past a block
# (and past Gemma's window), and a block of a long one.
PROMPTS = ((5, 5), (513, 513), (800, 600))

# Runs in a process of its own. `cold` computes every prompt without a store, then stores a part of
# each; `graft` computes them from what is stored.
CHILD = """
import json, sys
from pathlib import Path
from kvgraft.engines.llamacpp.engine import load
from kvgraft.reuse import Keep
from kvgraft.store.check import open_local
from kvgraft.testing.grafting import prompt, run_digest

job = json.loads(sys.argv[1])
engine = load(
    Path(job["model"]), source="real", threads=job["threads"], cache=Path(job["cache"])
)
store = open_local(Path(job["store"]))
seen = []
for number, (tokens, stored) in enumerate(job["prompts"]):
    ids = prompt(engine, tokens, seed=number)
    if job["part"] == "cold":
        digest, _ = run_digest(engine, None, ids, steps=job["steps"])
        run_digest(engine, store, ids[:stored], keep=Keep.ALL, steps=0)
        seen.append([digest, 0, None])
    else:
        digest, report = run_digest(
            engine, store, ids, keep=Keep.NOTHING, steps=job["steps"]
        )
        seen.append([digest, report.reused_tokens, report.calls_made])
store.close()
print(json.dumps(seen))
"""


def in_another_process(part: str, model: Path, store: Path) -> list[list[Any]]:
    job = {
        "part": part,
        "model": str(model),
        "store": str(store),
        "cache": str(cache_root()),
        "threads": THREADS,
        "prompts": PROMPTS,
        "steps": STEPS,
    }
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(job)],
        env={**os.environ, "OMP_WAIT_POLICY": "passive"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # llama.cpp says nothing there
    return list(json.loads(done.stdout))


@pytest.mark.parametrize("name", ["demo:smollm2", "demo:gemma3"])
def test_grafted_in_another_process(name: str, model_cache: Any, tmp_path: Path) -> None:
    model, store = model_cache.get(name), tmp_path / "store"
    cold = in_another_process("cold", model, store)
    grafted = in_another_process("graft", model, store)
    seen = []
    for (tokens, stored), before, after in zip(PROMPTS, cold, grafted, strict=True):
        reused = stored if stored == tokens else stored // BLOCK * BLOCK
        calls = -(-tokens // BLOCK) - -(-reused // BLOCK)
        seen += [
            ((tokens, stored, "digest"), after[0], before[0]),
            ((tokens, stored, "reused and made"), tuple(after[1:]), (reused, calls)),
        ]
    expect_equal(seen)


@pytest.mark.model("demo:gemma3")
def test_gemma3_windows_and_lanes(model_path: Path) -> None:
    engine = load(model_path, source="real", threads=THREADS, cache=cache_root())
    assert engine.spec.roles == (Role.KEEP, Role.NEAR)
    # llama.cpp keeps one position more than the next token can see.
    assert sorted({layer.window for layer in engine.spec.layers}) == [0, 513]
    assert engine.spec.bytes_per_token(Role.KEEP) == 3 * 1024
    bos = engine.tokenizer.bos_id
    assert bos is not None
    ids = [bos, *engine.tokenizer.encode("One, two, three, four, five, six,")]
    with computed(engine, None, ids, room=2) as result:
        first = int(result.context.logits().argmax())
        assert engine.tokenizer.decode([first]) == " seven"
        lanes = result.context.fork(3, 2)
        lanes.step(np.array([first, 5, first]))
        result.context.decode(first)
        alone = result.context.logits()
        for row in (0, 2):
            assert int(lanes.logits()[row].argmax()) == int(alone.argmax())
        lanes.close()
    engine.close()
