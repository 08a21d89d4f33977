"""The probe: what it compares, by kind of layer, and that it measures moving and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvgraft.engines.gguf_convert import convert
from kvgraft.engines.modelcache import cache_root, converted_root
from kvgraft.engines.toy import RECURRENT, ToyEngine, ToyOffsetContext, ToyRotation, ToyShape
from kvgraft.errors import UnsupportedModel, UsageError
from kvgraft.evidence.probe import OFFSETS, AtOffset, Probe, probe
from kvgraft.state import LayerKind

SHORT: dict[str, Any] = {"block_tokens": 40, "suffix_tokens": 20}


def test_the_toy(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[str, int, int]] = []
    found = probe(ToyEngine(), [8, 300], 2, progress=lambda *step: steps.append(step), **SHORT)
    assert found.control_equal
    assert (found.model, found.samples) == ("toy:0", 2)
    assert (found.block_tokens, found.suffix_tokens) == (40, 20)
    assert found.fingerprint == dict(ToyEngine().fingerprint.fields)
    assert [at.offset for at in found.offsets] == [8, 300]
    for at in found.offsets:
        for difference in (at.relocated, at.position, *at.by_kind.values()):
            assert difference.rows == 2 * 21  # the next token, and 20 behind it
            # In float32 all of it is rounding, and there is always some.
            assert 0 <= difference.kl_mean_nats <= difference.kl_max_nats < 1e-9
            assert 0 < difference.max_abs_logit < 1e-4
            assert difference.argmax_flips == 0
        assert set(at.by_kind) == set(at.keys) == {"full", "sliding"}
        for keys in at.keys.values():
            assert 0 < keys.max_abs < 1e-4 < keys.largest_key
    assert [step[1:] for step in steps] == [(n, 4) for n in (1, 2, 3, 4)]


def test_the_document_is_json() -> None:
    found = probe(ToyEngine(), [8], 1, **SHORT)
    document = json.loads(json.dumps(found.as_dict()))
    assert set(document) == {
        *("model", "samples", "block_tokens", "suffix_tokens", "control_equal"),
        *("fingerprint", "offsets"),
    }
    (at,) = document["offsets"]
    assert set(at) == {"offset", "relocated", "position", "by_kind", "keys"}
    assert set(at["relocated"]) == {
        *("rows", "kl_mean_nats", "kl_max_nats", "max_abs_logit", "argmax_flips"),
    }


def test_a_model_of_one_kind_has_that_kind() -> None:
    (at,) = probe(ToyEngine(shape=ToyShape(windows=(0, 0))), [64], 1, **SHORT).offsets
    assert at.by_kind == {"full": at.relocated}
    assert set(at.keys) == {"full"}


def test_recurrent_layers_beside() -> None:
    engine = ToyEngine(shape=ToyShape(windows=(0, RECURRENT, 24), rungs=()))
    found = probe(engine, [64], 1, **SHORT)
    assert found.control_equal
    assert set(found.offsets[0].by_kind) == {"full", "sliding"}


def test_an_error_shows_in_the_kind_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ToyEngine()
    turn = ToyRotation.turn

    def wrong(self: ToyRotation, layer: int, keys: np.ndarray, offset: int) -> None:
        sliding = engine.spec.layers[layer].kind is LayerKind.SLIDING
        turn(self, layer, keys, offset + sliding)

    monkeypatch.setattr(ToyRotation, "turn", wrong)
    (at,) = probe(engine, [64], 2, **SHORT).offsets
    assert at.by_kind["full"].max_abs_logit < 1e-4
    assert at.by_kind["sliding"].max_abs_logit > 1e-2
    assert at.relocated.kl_max_nats > 1e-6 > at.position.kl_max_nats
    assert at.keys["full"].max_abs < 1e-4 < 0.1 < at.keys["sliding"].max_abs


def test_the_control_notices_what_is_not_moving(monkeypatch: pytest.MonkeyPatch) -> None:
    take = ToyOffsetContext.take_layers

    def lossy(self: ToyOffsetContext, other: ToyOffsetContext, kinds: Any) -> None:
        take(self, other, kinds)
        self.arena.layers[0].parts[1][0, 3] *= np.float32(1.001)

    monkeypatch.setattr(ToyOffsetContext, "take_layers", lossy)
    assert probe(ToyEngine(), [64], 1, **SHORT).control_equal is False


def test_offsets_by_default_are_those_that_fit() -> None:
    found = probe(ToyEngine(), None, 1, **SHORT)
    assert [at.offset for at in found.offsets] == [8, 128, 1024]
    assert OFFSETS == (8, 128, 1024, 4096)


@pytest.mark.parametrize("offsets", [[], [0], [8, -1], [2048], [1980]])
def test_offsets_that_do_not_fit(offsets: list[int]) -> None:
    with pytest.raises(UsageError, match="offsets must be within"):
        probe(ToyEngine(), offsets, 1, **SHORT)


def test_sizes_that_are_none() -> None:
    for sizes in ({"samples": 0}, {"block_tokens": 0}, {"suffix_tokens": 0}):
        with pytest.raises(UsageError):
            probe(ToyEngine(), [8], **{"samples": 1, **SHORT, **sizes})


def test_every_context_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[object] = []
    close = ToyOffsetContext.close
    monkeypatch.setattr(
        ToyOffsetContext, "close", lambda self: (closed.append(self), close(self))[1]
    )
    opened: list[object] = []
    stand_at = ToyOffsetContext.stand_at
    monkeypatch.setattr(
        ToyOffsetContext,
        "stand_at",
        lambda self, *words: (opened.append(self), stand_at(self, *words))[1],
    )
    probe(ToyEngine(), [8, 64], 2, **SHORT)
    assert opened
    assert {id(one) for one in opened} == {id(one) for one in closed}


def check_real(found: Probe) -> AtOffset:
    """What holds for any real model in bfloat16: rounding alone, and some of it always."""
    assert found.control_equal
    (at,) = found.offsets
    for difference in (at.relocated, at.position, *at.by_kind.values()):
        assert 0 < difference.max_abs_logit < 5
        assert 0 < difference.kl_mean_nats < 0.05
    assert all(0 < keys.max_abs < 0.1 * keys.largest_key for keys in at.keys.values())
    return at


def probed(model_path: Path, offset: int, **sizes: int) -> Probe:
    from kvgraft.engines.transformers.engine import load

    folder = convert(model_path, converted_root(), report=lambda *step: None)
    engine = load(folder, source="real", threads=2, cache=cache_root())
    return probe(engine, [offset], 1, **sizes)


@pytest.mark.model("demo:smollm2")
def test_smollm2(model_path: Path) -> None:
    at = check_real(probed(model_path, 1000, block_tokens=64, suffix_tokens=16))
    assert at.by_kind == {"full": at.relocated}


@pytest.mark.model("demo:gemma3")
def test_gemma3_by_kind(model_path: Path) -> None:
    at = check_real(probed(model_path, 500, block_tokens=64, suffix_tokens=16))
    assert set(at.by_kind) == {"full", "sliding"}
    assert at.by_kind["full"] != at.by_kind["sliding"]


def test_an_engine_without_the_logits_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    engine = ToyEngine()
    monkeypatch.setattr(
        engine, "capabilities", replace(engine.capabilities, row_logits=False), raising=False
    )
    with pytest.raises(UnsupportedModel, match="logits of every row"):
        probe(engine, [8], 1, **SHORT)
