"""The transformers engine passes the engine suite on tiny random-weight models of real classes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, DynamicLayer

from kvgraft import limits
from kvgraft.engines.base import Engine
from kvgraft.engines.transformers.engine import TransformersEngine, load
from kvgraft.engines.transformers.probe import Body
from kvgraft.engines.transformers.settings import kernel_packages, kernel_settings
from kvgraft.errors import EngineError, UnsupportedModel
from kvgraft.plan import PlanForm
from kvgraft.reuse import Keep
from kvgraft.state import LayerKind
from kvgraft.store.chunks import ChunkStore
from kvgraft.store.index import Index
from kvgraft.store.memory import MemoryStore
from kvgraft.testing.engines import EngineConformance
from kvgraft.testing.families import build_model
from kvgraft.testing.family_engine import StubTokenizer
from kvgraft.testing.grafting import StoreFactory, computed, expect_equal, prompt, run_digest

FORM = PlanForm(block=16, rungs=(4, 8, 16))
CONTEXT = 153  # not a multiple of the block: the last tail has no room for its padding
WORDS = 97
WINDOW = 11
SIZES: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
GEMMA = {"sliding_window": WINDOW, "query_pre_attn_scalar": 8, "num_hidden_layers": 3}
# More of the spread than random weights give, so that a wrong cap or scale is far off.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "mistral": ("mistral", {"sliding_window": WINDOW}),
    "gemma3": ("gemma3_text", {**GEMMA, "layer_types": MIXED}),
    "qwen2": ("qwen2", {}),
    "gpt2": ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}),
    "gpt_neox": ("gpt_neox", {}),
    "gemma2": ("gemma2", {**GEMMA, "final_logit_softcapping": 0.2}),
    "cohere": ("cohere", {"logit_scale": 0.3}),
    "granite": ("granite", {"logits_scaling": 7.0}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "llama4": (
        "llama4_text",
        {
            "attention_chunk_size": 8,
            "num_local_experts": 2,
            "intermediate_size_mlp": 48,
            "num_hidden_layers": 4,
        },
    ),
    "mamba2": (
        "mamba2",
        {"state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 8},
    ),
    "qwen3_next": (
        "qwen3_next",
        {
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
        },
    ),
    "lfm2": ("lfm2", {"layer_types": ["conv", "full_attention"]}),
    "falcon_h1": (
        "falcon_h1",
        {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8},
    ),
    "deepseek_v3": (
        "deepseek_v3",
        {
            "kv_lora_rank": 16,
            "q_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 32,
            "first_k_dense_replace": 1,
        },
    ),
    "opt": ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "longrope": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10_000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 40,
                "short_factor": [1.0] * 4,
                "long_factor": [2.0, 3.0, 4.0, 5.0],
            }
        },
    ),
    "dynamic": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "dynamic",
                "rope_theta": 10_000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 40,
            }
        },
    ),
}


def config_of(kind: str, **fields: Any) -> Any:
    return transformers.CONFIG_MAPPING[kind](**{**SIZES, **fields})


def model_of(config: Any, dtype: str = "float32") -> Any:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    return model.eval()


@cache
def tiny_model(family: str, dtype: str) -> Any:
    kind, fields = FAMILIES[family]
    return model_of(config_of(kind, **fields), dtype)


def engine_over(model: Any, **options: Any) -> TransformersEngine:
    options = {"source": "tiny", "weights_digest": "of the tiny model", "form": FORM, **options}
    return TransformersEngine(model, StubTokenizer(), **options)


@cache
def tiny_engine(family: str, dtype: str = "float32", mirrored: bool = False) -> TransformersEngine:
    return engine_over(tiny_model(family, dtype), mirrored=mirrored)


def new_store() -> ChunkStore:
    return ChunkStore(MemoryStore(), Index(None))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads gain nothing on models this small, and wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class TestTiny(EngineConformance):
    @pytest.fixture(
        params=[
            ("llama", "float32", False),
            ("llama", "bfloat16", False),
            ("mistral", "float32", False),
            ("mistral", "bfloat16", False),
            ("gemma3", "float32", False),
            ("gemma3", "bfloat16", False),
            ("gemma3", "bfloat16", True),
            ("qwen2", "float32", False),
            ("qwen2", "bfloat16", False),
            ("gpt2", "float32", False),
            ("gpt2", "bfloat16", False),
        ],
        ids=lambda case: "-".join([*case[:2], *["mirrored"] * case[2]]),
    )
    def engine(self, request: pytest.FixtureRequest) -> Engine:
        return tiny_engine(*request.param)

    @pytest.fixture
    def store_factory(self) -> StoreFactory:
        return new_store

    @pytest.fixture
    def set_threads(self) -> Callable[[int], None]:
        return torch.set_num_threads


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_is_exact_mirrored_or_not(family: str, dtype: str) -> None:
    """The mirrored path is the one of other devices: its tensors are copies, not the arena."""
    engines = [tiny_engine(family, dtype, mirrored) for mirrored in (False, True)]
    seen = []
    for tokens in (1, 16, 40, 3 * WINDOW + 5, 77):
        ids = prompt(engines[0], tokens)
        cold, _ = run_digest(engines[0], None, ids)
        for engine in engines:
            store = new_store()
            for case in ("captured", "restored"):
                digest, report = run_digest(engine, store, ids)
                seen.append(((tokens, engine.mirrored, case), digest, cold))
            assert report.calls_made == 0
            store.close()
    expect_equal(seen)


def test_plain_and_mirrored_engines_share_artifacts() -> None:
    plain, mirrored = (tiny_engine("gemma3", "bfloat16", flag) for flag in (False, True))
    ids, store = prompt(plain, 60), new_store()
    for maker, user in ((plain, mirrored), (mirrored, plain)):
        store = new_store()
        cold, _ = run_digest(maker, store, ids)
        warm, report = run_digest(user, store, ids)
        assert (warm, report.calls_made, report.drifted) == (cold, 0, [])
        store.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_head_is_the_models_own(family: str, dtype: str) -> None:
    """Soft caps (Gemma 2), scales (Cohere, Granite) and whatever else a head does."""
    model, engine = tiny_model(family, dtype), tiny_engine(family, dtype)
    ids = torch.from_numpy(prompt(engine, 12).astype(np.int64))[None]
    with torch.inference_mode():
        expected = model(ids)
        hidden = Body(model, torch.device("cpu")).module(ids).last_hidden_state
    assert np.array_equal(engine.head(hidden), expected.logits.float().numpy())


def test_a_soft_cap_and_a_scale_show_in_the_logits() -> None:
    """The heads above would pass unseen if these settings changed nothing."""
    for family, name, other in (
        ("gemma2", "final_logit_softcapping", None),
        ("cohere", "logit_scale", 1.0),
        ("granite", "logits_scaling", 1.0),
    ):
        kind, fields = FAMILIES[family]
        changed = engine_over(model_of(config_of(kind, **{**fields, name: other})))
        ids = prompt(changed, 12)
        assert run_digest(changed, None, ids)[0] != run_digest(tiny_engine(family), None, ids)[0]


def test_layer_kinds_come_from_the_model() -> None:
    layers = tiny_engine("gemma3", "bfloat16").spec.layers
    assert [layer.kind for layer in layers] == [
        LayerKind.SLIDING,
        LayerKind.FULL,
        LayerKind.SLIDING,
    ]
    assert [layer.window for layer in layers] == [WINDOW, 0, WINDOW]
    assert {layer.dtype for layer in layers} == {"BF16"}


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "state outside the cache": (
        "recurrent_gemma",
        {"lru_width": 32, "num_hidden_layers": 3, "attention_window_size": WINDOW},
        "layer 0 puts nothing into the cache",
    ),
    "no cache": ("openai-gpt", {"n_embd": 32, "n_layer": 2, "n_head": 4}, "takes no cache"),
    "own cache": (
        "minimax",
        {"layer_types": ["linear_attention", "full_attention"], "num_local_experts": 2},
        "MiniMax uses cache of its own",
    ),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_what_is_not_carried_is_refused_by_name(case: str) -> None:
    kind, fields, words = REFUSED[case]
    with pytest.raises(UnsupportedModel, match=words):
        engine_over(model_of(config_of(kind, **fields)))


@pytest.mark.parametrize("family", ["jamba", "mamba"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_memory_from_call_to_call_is_refused(family: str, dtype: str) -> None:
    model = build_model(family, dtype=getattr(torch, dtype))
    with pytest.raises(UnsupportedModel, match="does not use the recurrent states"):
        engine_over(model)


def test_a_cache_layer_that_may_keep_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Keeping(DynamicLayer):
        pass

    monkeypatch.setitem(DYNAMIC_LAYER_TYPE_MAPPING, "full_attention", Keeping)
    with pytest.raises(UnsupportedModel, match="layer 0 is a Keeping"):
        engine_over(model_of(config_of("llama")))


def test_a_model_without_positions_is_bounded_by_kvgraft_alone() -> None:
    config = config_of("bloom", n_layer=2, n_head=4)
    del config.max_position_embeddings
    assert engine_over(model_of(config)).context_tokens == limits.MAX_CONTEXT_TOKENS


def test_a_head_that_reads_more_than_the_hidden_state_is_refused() -> None:
    model = model_of(config_of("llama"))
    forward = model.forward

    def reading_ids(input_ids: torch.Tensor, **arguments: Any) -> Any:
        output = forward(input_ids=input_ids, **arguments)
        output.logits = output.logits + input_ids[..., None]
        return output

    model.forward = reading_ids
    with pytest.raises(UnsupportedModel, match="final hidden state alone"):
        engine_over(model)


# --- settings -----------------------------------------------------------------------------------


def _set_precision() -> Callable[[], None]:
    torch.set_float32_matmul_precision("medium")
    return lambda: torch.set_float32_matmul_precision("highest")


def _no_flash() -> Callable[[], None]:
    torch.backends.cuda.enable_flash_sdp(False)
    return lambda: torch.backends.cuda.enable_flash_sdp(True)


def _autocast() -> Callable[[], None]:
    mode = torch.autocast("cpu", dtype=torch.bfloat16)
    mode.__enter__()
    return lambda: mode.__exit__(None, None, None)


@pytest.mark.parametrize("change", [_set_precision, _no_flash, _autocast])
def test_settings_that_choose_kernels_are_part_of_the_fingerprint(
    change: Callable[[], Callable[[], None]],
) -> None:
    engine, store = tiny_engine("llama"), new_store()
    ids = prompt(engine, 20)
    cold, _ = run_digest(engine, store, ids)
    settings = kernel_settings(engine.device)
    with computed(engine, store, ids) as result:
        undo = change()
        try:
            for attempt in (result.context.logits, lambda: result.context.decode(0)):
                with pytest.raises(EngineError, match="settings"):
                    attempt()
            if change is _autocast:  # keys and values would come in different dtypes
                with pytest.raises(UnsupportedModel, match="unlike keys and values"):
                    engine_over(tiny_model("llama", "float32"))
                misses = ["fingerprint: device differ"]
            else:
                other = engine_over(tiny_model("llama", "float32"))
                misses = run_digest(other, store, ids, keep=Keep.NOTHING)[1].misses
        finally:
            undo()
    assert kernel_settings(engine.device) == settings
    assert misses == ["fingerprint: device differ"]
    assert run_digest(engine, store, ids)[0] == cold


def test_another_dtype_reuses_nothing_and_says_why() -> None:
    store = new_store()
    ids = prompt(tiny_engine("llama"), 40)
    run_digest(tiny_engine("llama", "bfloat16"), store, ids)
    for dtype in ("float16", "float32"):
        cold, _ = run_digest(tiny_engine("llama", dtype), None, ids)
        digest, report = run_digest(tiny_engine("llama", dtype), store, ids, keep=Keep.NOTHING)
        assert (digest, report.reused_tokens) == (cold, 0)
        assert report.misses == ["fingerprint: dtype, kv_dtype differ"]


def test_another_thread_of_the_process_gives_the_same_bits() -> None:
    from concurrent.futures import ThreadPoolExecutor

    engine = tiny_engine("gemma3", "bfloat16")
    ids = prompt(engine, 60)
    with ThreadPoolExecutor(1) as pool:
        assert (
            pool.submit(run_digest, engine, None, ids).result()[0]
            == run_digest(engine, None, ids)[0]
        )


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_nothing_runs_past_the_models_context(family: str) -> None:
    engine = tiny_engine(family, "float32")
    with pytest.raises(EngineError, match="context"):
        engine.monolithic_logits(prompt(engine, CONTEXT + 1))
    with computed(engine, None, prompt(engine, CONTEXT - 1), room=1) as result:
        with pytest.raises(EngineError, match="context"):  # one token fits, its padding does not
            result.context.run(prompt(engine, 1), FORM.block)
        result.context.run(prompt(engine, 1), 1)


# --- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("family", ["gemma3", "llama"])
def test_a_call_that_fails_half_way_spoils_only_its_context(
    family: str, kind: type[BaseException]
) -> None:
    model = tiny_model(family, "float32")
    engine = tiny_engine(family)
    ids = prompt(engine, 40)
    cold, _ = run_digest(engine, None, ids)

    def fail(*_: Any) -> None:
        raise kind

    for module in (model.base_model.layers[1].mlp, model.base_model.norm):
        with computed(engine, None, ids) as result:
            hook = module.register_forward_pre_hook(fail)
            try:
                with pytest.raises(kind):
                    result.context.decode(0)
            finally:
                hook.remove()
            for attempt in (result.context.logits, lambda: result.context.decode(0)):
                with pytest.raises(EngineError, match="failed"):
                    attempt()
        assert run_digest(engine, None, ids)[0] == cold


def test_files_that_cannot_be_loaded_are_named(tmp_path: Path) -> None:
    from kvgraft.errors import UnreadableModel, UsageError

    tiny_model("llama", "float32").save_pretrained(tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"

    def attempt(folder: str, **options: str) -> None:
        load(tmp_path / folder, source="x", cache=tmp_path / "cache", **options)

    with pytest.raises(UnreadableModel):  # there is no tokenizer
        attempt("model")
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UnreadableModel):
        attempt("model")
    with pytest.raises(UnreadableModel):
        attempt("absent")
    for options in ({"dtype": "int8"}, {"dtype": "nonsense"}, {"device": "cuda:7"}):
        with pytest.raises(UsageError):
            attempt("model", **options)
    (tmp_path / "model" / "adapter_config.json").write_text("{}")
    with pytest.raises(UnsupportedModel, match="adapter"):
        attempt("model")


def test_closing_frees_the_weights_and_refuses_the_rest() -> None:
    model = model_of(config_of("llama"))
    engine, freed = engine_over(model), weakref.ref(model)
    context = engine.open_context(8)
    context.decode(1)
    del model
    for _ in range(2):
        engine.close()
    gc.collect()
    assert freed() is None
    for attempt in (context.logits, lambda: context.decode(1), lambda: engine.open_context(8)):
        with pytest.raises(EngineError, match="engine is closed"):
            attempt()
    context.close()


def test_optional_kernel_packages_are_part_of_the_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers takes kernels from what can be imported; another build has other bits."""
    model = tiny_model("mamba2", "float32")
    names = [dict(engine_over(model).fingerprint.fields)["engine_version"]]
    folder = tmp_path / "causal_conv1d"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    for content in ("one = 1\n", "one = 2\n"):
        (folder / "__init__.py").write_text(content)
        kernel_packages.cache_clear()
        names.append(dict(engine_over(model).fingerprint.fields)["engine_version"])
    monkeypatch.undo()
    kernel_packages.cache_clear()
    assert len(set(names)) == 3
    assert "causal_conv1d=" in names[1]
    assert names[0].endswith("/kernels-none")


def test_how_attention_and_experts_are_computed_is_part_of_the_fingerprint() -> None:
    config = config_of("mixtral", num_local_experts=4, num_experts_per_tok=2)
    model = model_of(config)
    engine = engine_over(model)
    named = dict(engine.fingerprint.fields)["attention"]
    assert named.startswith("sdpa/experts=")
    context = engine.open_context(8)
    context.decode(1)
    for change, back in (
        (lambda: model.set_experts_implementation("eager"), named.partition("=")[2]),
        (lambda: model.set_attn_implementation("eager"), "sdpa"),
    ):
        change()
        with pytest.raises(EngineError, match="implementations"):
            context.decode(1)
        other = engine_over(model)
        assert engine.fingerprint.differing(other.fingerprint) == ("attention",)
        if back == "sdpa":
            model.set_attn_implementation("sdpa")
        else:
            model.set_experts_implementation(back)
    context.decode(1)
    assert context.length == 2
    context.close()
