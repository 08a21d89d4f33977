"""Real models in bfloat16: the same bits from disk in another process, and honest misses.

That a converted tokenizer gives the ids of the GGUF's own is in `test_gguf_convert.py`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kvgraft.engines.gguf_convert import convert
from kvgraft.engines.modelcache import cache_root, converted_root
from kvgraft.engines.transformers.engine import TransformersEngine, load
from kvgraft.reuse import Keep
from kvgraft.state import Role
from kvgraft.store.check import open_local
from kvgraft.testing.grafting import prompt, run_digest
from two_processes import Trial

THREADS = 2
STEPS = 3
# Of each prompt, how many tokens are stored: all of a short one, all of a whole block, and two
# blocks of one past Gemma's window of 512.
PROMPTS = ((5, 5), (256, 256), (700, 600))


def quiet(stage: str, done: int, total: int) -> None:
    """A report that nobody reads."""


def folder_of(model_path: Path) -> Path:
    return convert(model_path, converted_root(), report=quiet)


@cache
def loaded(folder: Path, dtype: str) -> TransformersEngine:
    return load(folder, source="real", dtype=dtype, threads=THREADS, cache=cache_root())


def check_processes(model_path: Path, store: Path) -> None:
    folder = str(folder_of(model_path))
    Trial("kvgraft.engines.transformers.engine", folder, PROMPTS, 256, STEPS, THREADS).check(store)


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
