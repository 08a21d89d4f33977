"""Real models: the same bits from disk in another process, windows included."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if importlib.util.find_spec("llama_cpp") is None:
    pytest.skip("llama.cpp engine not installed", allow_module_level=True)

from kvgraft.engines.llamacpp.engine import load
from kvgraft.engines.modelcache import cache_root
from kvgraft.state import Role
from kvgraft.testing.grafting import computed
from two_processes import Trial

THREADS = 2
STEPS = 8
BLOCK = 512
# Of each prompt, how many tokens are stored: all of a short one, all of one a token past a block
# (and past Gemma's window), and a block of a long one.
PROMPTS = ((5, 5), (513, 513), (800, 600))


@pytest.mark.parametrize("name", ["demo:smollm2", "demo:gemma3"])
def test_grafted_in_another_process(name: str, model_cache: Any, tmp_path: Path) -> None:
    model = str(model_cache.get(name))
    trial = Trial("kvgraft.engines.llamacpp.engine", model, PROMPTS, BLOCK, STEPS, THREADS)
    trial.check(tmp_path / "store", silent=True)  # llama.cpp says nothing on standard error


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
