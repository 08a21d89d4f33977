"""The check of a family: exact ones of every layer kind, refused ones, and verdicts that notice.

All families, in pairs of processes: `benchmarks/families.py`, whose table is docs/MODELS.md.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kvgraft.errors import UnsupportedModel
from kvgraft.state import LayerKind, LayerSpec, StateSpec
from kvgraft.testing import family_check
from kvgraft.testing.families import FAMILIES
from kvgraft.testing.family_check import (
    COLD,
    GRAFT,
    FamilyResult,
    capture,
    graft,
    verdict,
)
from kvgraft.testing.family_engine import DTYPES, FORM, TOKENS, engine_of, resume_points

MODELS = Path(__file__).resolve().parents[2] / "docs" / "MODELS.md"

# Family -> its layers as the engine is to find them: every kind, and what needs no state beside.
EXACT = {
    "llama": "2 full",
    "mistral": "2 sliding(24)",
    "gemma3_text": "2 sliding(24), full",
    "gemma3n_text": "sliding(24), full, sliding(24), full, 2 none",
    "llama4_text": "chunked(32), full, chunked(32), full",
    "deepseek_v3": "2 latent",
    "glm_moe_dsa": "latent+index, latent, latent+index, latent",
    "mamba2": "2 conv+recurrent",
    "lfm3": "conv, full, sliding(24), conv",
    "qwen3_next": "2 conv+recurrent, full, conv+recurrent",
    "kimi_linear": "2 conv+recurrent, latent, conv+recurrent",
    "falcon_h1": "2 full+conv+recurrent",
    "zaya": "full+conv+recurrent, sliding(24)+conv+recurrent",
    "nemotron_h": "conv+recurrent, none, full, none",
    "gpt_oss": "sliding(24), full",  # attention sinks
    "bloom": "2 full",  # ALiBi
    "doge_sparse": "2 full",  # chooses among tokens
    "qwen2_vl": "2 full",  # rotations in three axes
}
IGNORED = "does not use the recurrent states|does not go on where the first one ended"
REFUSED = {
    "mamba": IGNORED,
    "falcon_mamba": IGNORED,
    "jamba": IGNORED,
    "zamba": IGNORED,
    "recurrent_gemma": "layer 0 puts nothing into the cache",
    "minimax": "MiniMax uses cache of its own",
    "xlstm": "does not run with a cache as this version gives it",
    "rwkv": "takes no cache",
    "deepseek_v4": "layer 1 is a DeepseekV4CSACache",
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads gain nothing on models this small, and wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def check(name: str, dtype: str, folder: Path) -> FamilyResult:
    """As the benchmark does, with two engines of one process."""
    capture(name, dtype, folder)
    graft(name, dtype, folder)
    return verdict(name, dtype, folder)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", EXACT)
def test_families_of_every_kind_are_exact(name: str, dtype: str, tmp_path: Path) -> None:
    result = check(name, dtype, tmp_path)
    assert (result.status, result.reason) == ("exact", "")
    assert result.layers == EXACT[name]
    assert result.controls >= 5
    assert ("states" in result.point_bytes) == ("bare" in result.plan)


def test_every_kind_of_layer_is_among_them() -> None:
    words = set(re.findall(r"[a-z]+", " ".join(EXACT.values())))
    assert words == {kind.value for kind in LayerKind} | {"conv", "index"}
    kinds = {kind for name in EXACT for kind in FAMILIES[name].layer_kinds}
    assert {"shared", "none", "hybrid", "hybrid_sliding", "conv", "linear"} <= kinds


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_carried_is_refused(name: str, dtype: str, tmp_path: Path) -> None:
    result = check(name, dtype, tmp_path)
    assert result.status == "refused"
    assert re.search(REFUSED[name], result.reason)
    assert result.controls == 0


@pytest.mark.parametrize(
    ("window", "points"),
    [
        (0, [16, 32, 48, 112, TOKENS]),
        (11, [16, 32, 48, 112, TOKENS]),
        (24, [16, 32, 48, 112, TOKENS]),
        (32, [16, 32, 48, 112, TOKENS]),
        (33, [16, 32, 48, 112, TOKENS]),
        (70, [16, 64, 80, 112, TOKENS]),
    ],
)
def test_five_points_lie_around_the_windows_edge(window: int, points: list[int]) -> None:
    kind = LayerKind.SLIDING if window else LayerKind.FULL
    spec = StateSpec((LayerSpec(kind, 1, 8, 8, window=window),), 8, "F32")
    assert resume_points(spec, FORM.block) == points


# --- a verdict notices ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    folder = tmp_path_factory.mktemp("honest")
    assert check("llama", "fp32", folder).status == "exact"
    return folder


def changed(honest: Path, folder: Path, file: str, change: Callable[[Any], Any]) -> FamilyResult:
    """The verdict on the honest files, one of them changed."""
    for name in (COLD, GRAFT):
        shutil.copy(honest / name, folder)
    seen = json.loads((folder / file).read_text())
    change(seen)
    (folder / file).write_text(json.dumps(seen))
    return verdict("llama", "fp32", folder)


def unnoticed(control: dict[str, list[str]], names: list[str]) -> None:
    control["noticed"] = [name for name in control["noticed"] if name not in names]
    control["unnoticed"] += names


KEY = "layer.0001.key"
CHANGES: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "another digest": (
        GRAFT,
        lambda seen: seen["points"]["32"].update(sha256="0" * 64),
        "the logits differ behind 32 tokens",
    ),
    "a recompute": (
        GRAFT,
        lambda seen: seen["points"]["112"].update(reused_tokens=0, calls_made=10, misses=["why"]),
        "at 112 tokens 0 were reused and 10 calls made: why",
    ),
    "a call too many": (
        GRAFT,
        lambda seen: seen["points"]["150"].update(calls_made=1),
        "at 150 tokens 150 were reused and 1 calls made: ",
    ),
    "a point that was left out": (
        GRAFT,
        lambda seen: seen["points"].pop("16"),
        "the logits differ behind 16 tokens",
    ),
    "no control": (
        GRAFT,
        lambda seen: seen.update(controls={}),
        "the control was not noticed",
    ),
    "a control that was not noticed": (
        GRAFT,
        lambda seen: [unnoticed(control, [KEY]) for control in seen["controls"].values()],
        f"the control was not noticed in {KEY}",
    ),
    "a model that does not repeat itself": (
        GRAFT,
        lambda seen: seen["again"].update({"150": "0" * 64}),
        "two runs without a store differ behind 150 tokens",
    ),
    "other weights": (
        GRAFT,
        lambda seen: seen.update(fingerprint="0" * 64),
        "the two processes have different fingerprints",
    ),
    "no numbers": (
        COLD,
        lambda seen: seen.update(finite=False),
        "the logits are not numbers, so that equal bits would say nothing",
    ),
    "nothing stored": (
        COLD,
        lambda seen: seen["capture"].append("16: no room"),
        "not stored at 16: no room",
    ),
    "a failure": (
        GRAFT,
        lambda seen: seen.update(failed="ValueError: why"),
        "grafted: ValueError: why",
    ),
    "one refusal of two": (COLD, lambda seen: seen.update(refused="why"), "cold: why"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_verdict_notices(case: str, honest: Path, tmp_path: Path) -> None:
    file, change, reason = CHANGES[case]
    result = changed(honest, tmp_path, file, change)
    assert (result.status, result.reason) == ("wrong", reason)


def test_a_control_may_show_at_another_point(honest: Path, tmp_path: Path) -> None:
    """Attention that chooses among tokens may not look at the one that was altered."""

    def change(seen: Any) -> None:
        unnoticed(seen["controls"]["112"], [KEY])
        seen["controls"]["150"]["noticed"].append(KEY)

    result = changed(honest, tmp_path, GRAFT, change)
    assert (result.status, result.quiet) == ("exact", (f"{KEY} at 112",))


@pytest.mark.parametrize("file", [COLD, GRAFT])
def test_a_process_that_dies_is_noticed(file: str, honest: Path, tmp_path: Path) -> None:
    for name in (COLD, GRAFT):
        shutil.copy(honest / name, tmp_path)
    (tmp_path / file).write_text('{"poi')
    for _ in range(2):
        result = verdict("llama", "fp32", tmp_path)
        assert (result.status, "left no result" in result.reason) == ("wrong", True)
        (tmp_path / file).unlink(missing_ok=True)


def test_a_graft_that_is_off_by_a_bit_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the files but the engine: it restores a wrong bit in every run."""
    from kvgraft.testing.family_controls import WrongBit

    capture("llama", "fp32", tmp_path)
    monkeypatch.setattr(
        family_check, "engine_of", lambda *case: WrongBit(engine_of(*case), "layer.0000.value", 0)
    )
    graft("llama", "fp32", tmp_path)
    result = verdict("llama", "fp32", tmp_path)
    assert result.status == "wrong"
    assert result.reason.startswith("the logits differ behind 16, 32, 48, 112, 150 tokens")


def test_an_error_while_opening_or_running_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise ValueError("why")

    for name in ("engine_of", "compute_prompt"):
        with monkeypatch.context() as patch:
            patch.setattr(family_check, name, fail)
            result = check("llama", "fp32", tmp_path)
        assert (result.status, result.reason) == (
            "wrong",
            "cold: ValueError: why; grafted: ValueError: why",
        )


def test_a_refusal_has_the_engines_words() -> None:
    with pytest.raises(UnsupportedModel, match="takes no cache"):
        engine_of("rwkv", "fp32")


# --- the table --------------------------------------------------------------------------------


def test_the_table_lists_every_family() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|(.*)$", MODELS.read_text(encoding="utf-8"), re.MULTILINE)
    listed = dict(rows)
    assert len(listed) == len(rows)
    assert set(listed) == set(FAMILIES), "run benchmarks/families.py --write docs/MODELS.md"
    for name, layers in EXACT.items():
        assert listed[name].split(" | ")[0].strip() == layers
        assert listed[name].count("exact") == len(DTYPES)
    for name, words in REFUSED.items():
        assert re.search(words, listed[name])
