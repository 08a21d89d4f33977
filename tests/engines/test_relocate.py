"""Keys of transformers models turned to another place: right where the model's form allows it, and
refused by name everywhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from kvgraft.blob.payload import ChunkPlace
from kvgraft.engines.base import Context
from kvgraft.engines.transformers import relocate
from kvgraft.engines.transformers.engine import TransformersEngine
from kvgraft.engines.transformers.relocate import Relocator, TorchRotation
from kvgraft.errors import EngineError, UnsupportedModel
from kvgraft.plan import PlanForm, plan_calls
from kvgraft.state import LayerKind, Role
from kvgraft.testing.families import build_model
from kvgraft.testing.family_engine import StubTokenizer

FORM = PlanForm(block=16, rungs=(4, 8, 16))
TOKENS, OFFSET = 40, 37  # two blocks and a tail; past the window of 24
EPS = {"float32": 1e-5, "bfloat16": 2e-2}


@cache
def engine_of(family: str, dtype: str = "float32", mirrored: bool = False) -> TransformersEngine:
    return TransformersEngine(
        build_model(family, dtype=getattr(torch, dtype)),
        StubTokenizer(),
        source=family,
        weights_digest="of the tiny model",
        form=FORM,
        mirrored=mirrored,
    )


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def ids_of(engine: TransformersEngine) -> np.ndarray:
    return np.random.default_rng(3).integers(3, engine.vocabulary, TOKENS).astype(np.uint32)


def run_all(context: Context, engine: TransformersEngine) -> list[tuple[Role, ChunkPlace, Any]]:
    """Run the prompt; what a store would hold of it, where the context gives it."""
    ids, chunks = ids_of(engine), []
    for call in plan_calls(TOKENS, FORM, engine.context_tokens):
        context.run(ids[call.start : call.end], call.rows)
        place = ChunkPlace(call.start, call.count, call.rows)
        if not isinstance(context, relocate.TransformersOffsetContext):
            for role in (*engine.spec.roles, Role.END):
                views = [view.copy() for view in context.export_views(role, place)]
                chunks.append((role, place, views))
    return chunks


def moved(engine: TransformersEngine, kinds: Any = None) -> relocate.TransformersOffsetContext:
    here = engine.open_context(TOKENS)
    chunks = run_all(here, engine)
    here.close()
    context = Relocator(engine).open_context_at(TOKENS + 8, OFFSET, kinds)
    for role, place, views in chunks:
        if role is Role.END and place.start + place.count != TOKENS:
            continue
        for target, view in zip(context.import_views(role, place, TOKENS), views, strict=True):
            target[...] = view
    context.commit(TOKENS)
    return context


@pytest.mark.parametrize("mirrored", [False, True], ids=["live", "mirrored"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "family",
    ["llama", "gemma3_text", "qwen2", "qwen3", "gpt_neox", "ministral3", "falcon_h1"],
)
def test_moved_keys_are_those_computed_there(family: str, dtype: str, mirrored: bool) -> None:
    """Gemma 3 has two thetas, GPT-NeoX turns a part of each key, Ministral 3 scales its cosines."""
    engine = engine_of(family, dtype, mirrored)
    there = Relocator(engine).open_context_at(TOKENS + 8, OFFSET)
    run_all(there, engine)
    context = moved(engine)
    assert context.length == there.length == TOKENS
    with_keys = [number for number, layer in enumerate(engine.spec.layers) if layer.parts]
    for number in with_keys:
        fresh, turned = there.keys(number), context.keys(number)
        assert fresh.shape == turned.shape
        largest = np.abs(fresh).max()
        if number == with_keys[0] or family != "ministral3":  # its queries know where they are
            assert np.abs(fresh - turned).max() <= EPS[dtype] * largest * (1 + 2 * number)
        assert np.abs(moved(engine, []).keys(number) - fresh).max() > 0.1 * largest
    step = 5
    for one in (there, context):
        one.decode(step)
    assert np.abs(there.logits() - context.logits()).max() < 0.2
    assert np.argmax(there.logits()) == np.argmax(context.logits())


def test_a_turn_and_its_opposite_are_nothing() -> None:
    engine = engine_of("gemma3_text")
    rotation = TorchRotation(engine)
    keys = np.random.default_rng(0).standard_normal((5, 2, 16)).astype(np.float32)
    for layer in range(len(engine.spec.layers)):
        turned = keys.copy()
        rotation.turn(layer, turned, 40)
        assert np.abs(turned - keys).max() > 0.5
        rotation.turn(layer, turned, 30)
        whole = keys.copy()
        rotation.turn(layer, whole, 70)
        np.testing.assert_allclose(turned, whole, atol=1e-5)
        # A rotation leaves lengths as they are.
        np.testing.assert_allclose(
            np.linalg.norm(turned, axis=-1), np.linalg.norm(keys, axis=-1), rtol=1e-5
        )


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "falcon_h1"])
def test_copied_layers_continue_with_the_bits_of_the_run_they_come_from(family: str) -> None:
    engine = engine_of(family)
    there = Relocator(engine).open_context_at(TOKENS + 8, OFFSET)
    run_all(there, engine)
    copied = moved(engine, [])
    copied.take_layers(there, list(LayerKind))
    turned = moved(engine)
    for context in (there, copied, turned):
        context.decode(7)
    assert there.logits().tobytes() == copied.logits().tobytes()
    assert there.logits().tobytes() != turned.logits().tobytes()


def test_layers_of_one_kind_alone_are_moved() -> None:
    engine = engine_of("gemma3_text")
    there = Relocator(engine).open_context_at(TOKENS + 8, OFFSET)
    run_all(there, engine)
    context = moved(engine, [LayerKind.FULL])
    context.take_layers(there, [LayerKind.SLIDING])
    kinds = [layer.kind for layer in engine.spec.layers]
    for number, kind in enumerate(kinds):
        same = np.array_equal(context.keys(number), there.keys(number))
        assert same is (kind is LayerKind.SLIDING)


def test_nothing_at_an_offset_can_be_stored_or_forked() -> None:
    engine = engine_of("llama")
    for context in (moved(engine), Relocator(engine).open_context_at(TOKENS, OFFSET)):
        if not context.length:
            run_all(context, engine)
        for role in (Role.KEEP, Role.END):
            with pytest.raises(EngineError, match="never stored"):
                context.export_views(role, ChunkPlace(32, 8, 8))
        with pytest.raises(EngineError, match="no lanes"):
            context.fork(2, 1)


def test_an_offset_has_bounds() -> None:
    engine = engine_of("llama")
    mover = Relocator(engine)
    for capacity, offset in ((8, 0), (8, -1), (0, 8), (8, 505), (513, 1)):
        with pytest.raises(EngineError, match="not within"):
            mover.open_context_at(capacity, offset)
    mover.open_context_at(8, 504).close()


def test_layers_are_taken_from_the_same_place_only() -> None:
    engine = engine_of("llama")
    mover = Relocator(engine)
    mine = moved(engine)
    for other in (mover.open_context_at(TOKENS, OFFSET + 1), mover.open_context_at(8, OFFSET)):
        with pytest.raises(EngineError, match="same place"):
            mine.take_layers(other, [LayerKind.FULL])


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("gpt2", "GPT2Model has no rotary embedding"),
        ("bloom", "takes no positions"),
        ("cohere", "CohereRotaryEmbedding is not the standard rotary embedding"),
        ("glm", "keys of layer 0"),  # turns neighbours in pairs, with the same cosines
        ("hunyuan_v1_dense", "keys of layer 0"),  # normalises behind the rotation
        ("smollm3", "keys of layer 1"),  # has layers without any
        ("llama4_text", "layer 0 has chunked attention"),
        ("deepseek_v3", "layer 0 has latent attention"),
        ("glm_moe_dsa", "layer 0 has an index"),
        ("gptj", "does not say of which kind"),
    ],
)
def test_models_of_another_form_are_refused_by_name(family: str, words: str) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        Relocator(engine_of(family))


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_angles_that_change_with_the_length_are_refused(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of("mistral")
    monkeypatch.setattr(engine._body.module.rotary_emb, "rope_type", kind)
    with pytest.raises(UnsupportedModel, match=f"of kind {kind}"):
        TorchRotation(engine)


def test_the_self_check_finds_a_wrong_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gemma's two thetas, mistaken for each other."""
    engine = engine_of("gemma3_text", "bfloat16")
    rotation = TorchRotation(engine)
    relocate._check(engine, rotation)
    other = {"full_attention": "sliding_attention", "sliding_attention": "full_attention"}
    monkeypatch.setattr(rotation, "_types", [other[kind] for kind in rotation._types])
    with pytest.raises(UnsupportedModel, match="keys of layer 0"):
        relocate._check(engine, rotation)


def test_the_self_check_runs_once_for_each_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of("olmo2")
    seen: list[object] = []
    check = relocate._check
    monkeypatch.setattr(relocate, "_check", lambda *words: seen.append(words) or check(*words))
    for _ in range(2):
        Relocator(engine)
    assert len(seen) == 1
