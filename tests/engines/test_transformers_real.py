"""Real models in bfloat16: the same bits from disk in another process, and honest misses.

That a converted tokenizer gives the ids of the GGUF's own is in `test_gguf_convert.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvgraft.engines.gguf_convert import convert
from kvgraft.engines.modelcache import cache_root, converted_root
from kvgraft.engines.transformers.engine import TransformersEngine, load
from kvgraft.reuse import Keep
from kvgraft.state import Role
from kvgraft.store.check import open_local
from kvgraft.testing.grafting import expect_equal, prompt, run_digest

THREADS = 2
STEPS = 3
# Of each prompt, how many tokens are stored: all of a short one, all of a whole block, and two
# blocks of one past Gemma's window of 512.
PROMPTS = ((5, 5), (256, 256), (700, 600))

# Runs in a process of its own. `cold` computes every prompt without a store, then stores a part of
# each; `graft` computes them from what is stored.
CHILD = """
import json, sys
from pathlib import Path
from kvgraft.engines.transformers.engine import load
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


def quiet(stage: str, done: int, total: int) -> None:
    """A report that nobody reads."""


def folder_of(model_path: Path) -> Path:
    return convert(model_path, converted_root(), report=quiet)


@cache
def loaded(folder: Path, dtype: str) -> TransformersEngine:
    return load(folder, source="real", dtype=dtype, threads=THREADS, cache=cache_root())


def in_another_process(part: str, folder: Path, store: Path) -> list[list[Any]]:
    job = {
        "part": part,
        "model": str(folder),
        "store": str(store),
        "cache": str(cache_root()),
        "threads": THREADS,
        "prompts": PROMPTS,
        "steps": STEPS,
    }
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(job)],
        # Waiting threads sleep: spinning ones starve each other where other work runs too.
        env={**os.environ, "OMP_WAIT_POLICY": "passive"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


def check_processes(model_path: Path, store: Path) -> None:
    folder = folder_of(model_path)
    cold = in_another_process("cold", folder, store)
    grafted = in_another_process("graft", folder, store)
    block = 256
    seen = []
    for (tokens, stored), before, after in zip(PROMPTS, cold, grafted, strict=True):
        reused = stored if stored == tokens else stored // block * block
        calls = -(-tokens // block) - -(-reused // block)
        seen += [
            ((tokens, stored, "digest"), after[0], before[0]),
            ((tokens, stored, "reused and made"), tuple(after[1:]), (reused, calls)),
        ]
    expect_equal(seen)


@pytest.mark.model("demo:smollm2")
def test_smollm2_grafted_in_another_process(model_path: Path, tmp_path: Path) -> None:
    check_processes(model_path, tmp_path / "store")


@pytest.mark.model("demo:gemma3")
def test_gemma3_grafted_in_another_process(model_path: Path, tmp_path: Path) -> None:
    check_processes(model_path, tmp_path / "store")


@pytest.mark.model("demo:gemma3")
def test_gemma3_keeps_windows_and_full_layers_apart(model_path: Path) -> None:
    engine = loaded(folder_of(model_path), "bfloat16")
    assert engine.spec.roles == (Role.KEEP, Role.NEAR)
    assert sorted({layer.window for layer in engine.spec.layers}) == [0, 512]
    assert engine.spec.bytes_per_token(Role.KEEP) == 3 * 1024


@pytest.mark.model("demo:smollm2")
def test_after_an_unusual_split_only_the_common_ids_are_reused(
    model_path: Path, tmp_path: Path
) -> None:
    engine = loaded(folder_of(model_path), "bfloat16")
    tokenizer = engine.tokenizer
    text = "It was an unbelievable story of counting: " + " ".join(map(str, range(90)))
    text += " and then an unbelievable story again, " * 20
    cut = text.rindex("believable", 0, len(text) // 2) + 3
    usual = tokenizer.encode(text)
    unusual = tokenizer.encode(text[:cut]) + tokenizer.encode(text[cut:])
    assert tokenizer.decode(unusual) == tokenizer.decode(usual) == text
    common = int(np.argmin(np.array(usual[: len(unusual)]) == np.array(unusual[: len(usual)])))
    block = engine.form.block
    assert block < common < min(len(usual), len(unusual))

    store = open_local(tmp_path / "store")
    run_digest(engine, store, unusual, keep=Keep.ALL, steps=0)
    cold, _ = run_digest(engine, None, usual, steps=STEPS)
    warm, report = run_digest(engine, store, usual, keep=Keep.NOTHING, steps=STEPS)
    store.close()
    assert (warm, report.reused_tokens) == (cold, common // block * block)


@pytest.mark.model("demo:smollm2")
def test_a_bfloat16_artifact_is_nothing_to_a_float32_engine(
    model_path: Path, tmp_path: Path
) -> None:
    folder = folder_of(model_path)
    store = open_local(tmp_path / "store")
    ids = prompt(loaded(folder, "bfloat16"), 300)
    run_digest(loaded(folder, "bfloat16"), store, ids, keep=Keep.ALL, steps=0)
    _, report = run_digest(loaded(folder, "float32"), store, ids, keep=Keep.NOTHING, steps=0)
    store.close()
    assert (report.reused_tokens, report.loaded_bytes) == (0, 0)
    assert report.misses == ["fingerprint: dtype, kv_dtype differ"]
