"""A frozen transformers model: loading, fingerprint, the forward call and the one-row head."""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.modeling_outputs import BaseModelOutputWithPast

from kvgraft.engines.arena import ArenaPool
from kvgraft.engines.base import Capabilities
from kvgraft.engines.transformers.context import TORCH_DTYPES, TransformersContext
from kvgraft.engines.transformers.tokenizer import TransformersTokenizer
from kvgraft.errors import EngineError, UnreadableModel, UnsupportedModel, UsageError
from kvgraft.identity import Fingerprint, WeightsDigests, cpu_class, digest_json
from kvgraft.plan import PlanForm
from kvgraft.state import LayerKind, LayerSpec, StateSpec

# Chosen by measurement: docs/decisions/0001-plan-form.md.
PLAN = PlanForm(block=256, rungs=(32, 64, 128, 256))
_DTYPE_NAMES = {torch_dtype: name for name, torch_dtype in TORCH_DTYPES.items()}
_ISA_VARIABLES = (
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "ATEN_CPU_CAPABILITY",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_CBWR",
)
# Where the model came from, not what it computes.
_CONFIG_NAMES = ("_name_or_path", "transformers_version", "architectures", "torch_dtype", "dtype")


class TransformersEngine:
    """See `kvgraft.engines.base.Engine`. One call at a time; not thread-safe."""

    name = "transformers"
    capabilities = Capabilities(monolithic=True, lanes=True)

    def __init__(
        self,
        model: nn.Module,
        tokenizer: TransformersTokenizer,
        *,
        source: str,
        weights_digest: str,
        form: PlanForm = PLAN,
        mirrored: bool | None = None,
    ) -> None:
        self._model = model.eval().requires_grad_(False)
        self.model = source
        self.tokenizer = tokenizer
        self.form = form
        self.device = next(model.parameters()).device
        self.mirrored = self.device.type != "cpu" if mirrored is None else mirrored
        config = model.config.get_text_config()
        self.context_tokens = int(config.max_position_embeddings)
        self._base = model.base_model
        parameters = inspect.signature(self._base.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._head, self._fixed = _head_of(model)
        self.spec = self._measure_spec(config)
        self.threads = torch.get_num_threads()
        self.fingerprint = self._fingerprint(weights_digest)
        self._pool = ArenaPool(self.spec, form.block)

    def _measure_spec(self, config: Any) -> StateSpec:
        """Layer kinds from the cache that transformers itself would use, sizes from one token."""
        if getattr(config, "attention_chunk_size", None):
            raise UnsupportedModel("chunked-local attention is not carried by this version")
        cache = DynamicCache(config=config)
        with torch.inference_mode():
            arguments = {self._cache_name: cache}
            output = self._base(
                torch.tensor([[1]], device=self.device), use_cache=True, **arguments
            )
        layers = tuple(_layer_spec(number, layer) for number, layer in enumerate(cache.layers))
        hidden = output.last_hidden_state
        return StateSpec(layers, hidden.shape[-1], _DTYPE_NAMES[hidden.dtype])

    def _fingerprint(self, weights_digest: str) -> Fingerprint:
        config = self._model.config.to_dict()
        for name in _CONFIG_NAMES:
            config.pop(name, None)
        dtype = _DTYPE_NAMES[next(self._model.parameters()).dtype]
        device = cpu_class(_ISA_VARIABLES)
        if self.device.type == "cuda":
            properties = torch.cuda.get_device_properties(self.device)
            device = f"cuda/{properties.name}/sm_{properties.major}{properties.minor}"
        return Fingerprint.of(
            {
                "engine": self.name,
                "engine_version": f"transformers-{transformers.__version__}"
                f"/torch-{torch.__version__}/{digest_json(torch.__config__.show())[:16]}",
                "weights": weights_digest,
                "config": digest_json(config),
                "adapters": "none",
                "dtype": dtype,
                "kv_dtype": "/".join(sorted({layer.dtype for layer in self.spec.layers})),
                "attention": str(self._model.config._attn_implementation),
                "device": device,
                "threads": str(self.threads),
                "plan": self.form.name,
            }
        )

    def open_context(self, capacity: int) -> TransformersContext:
        if not 0 < capacity <= self.context_tokens:
            raise EngineError(f"capacity {capacity} is not within 1..{self.context_tokens}")
        return TransformersContext(self, self._pool.take(capacity), self._pool)

    def forward(self, ids: np.ndarray, cache: Any, start: int) -> torch.Tensor:
        """Final hidden states `[lanes, rows, hidden]` of `ids` int64 `[lanes, rows]`, which
        stand at positions `start` and on; the cache takes their states.

        Raises:
            EngineError: the thread count is not the fingerprint's any more.
        """
        if torch.get_num_threads() != self.threads:
            raise EngineError(
                f"torch runs {torch.get_num_threads()} threads, the fingerprint says"
                f" {self.threads}: other thread counts give other bits",
                hint="leave torch.set_num_threads alone after opening an engine",
            )
        positions = torch.arange(start, start + ids.shape[1], device=self.device)
        arguments = {self._cache_name: cache}
        output = self._base(
            input_ids=torch.from_numpy(np.ascontiguousarray(ids)).to(self.device),
            position_ids=positions[None].expand(ids.shape[0], -1),
            use_cache=True,
            **arguments,
        )
        hidden: torch.Tensor = output.last_hidden_state
        return hidden

    def head(self, hidden: torch.Tensor) -> np.ndarray:
        """Logits float32 `[lanes, rows, vocab]` of hidden states `[lanes, rows, hidden]`.

        It is the model's own code behind its body, whatever that does (scaling, soft caps).
        """
        self._fixed.hidden = hidden
        try:
            logits = self._head(input_ids=None, use_cache=False).logits
        finally:
            self._fixed.hidden = None
        array: np.ndarray = logits.float().cpu().numpy()
        return array

    @torch.inference_mode()
    def monolithic_logits(self, ids: np.ndarray) -> np.ndarray:
        """Next-token logits float32 `[vocab]` of a prompt run in one stock call, without the
        plan: what `prove` reports beside exactness."""
        cache = DynamicCache(config=self._model.config.get_text_config())
        tokens = torch.from_numpy(np.asarray(ids, np.int64))[None].to(self.device)
        arguments = {self._cache_name: cache}
        hidden = self._base(tokens, use_cache=True, **arguments).last_hidden_state
        return self.head(hidden[:, -1:])[0, 0]

    def close(self) -> None:
        self._pool = ArenaPool(self.spec, self.form.block)


class _FixedHidden(nn.Module):
    """Stands where the model's body was: returns the hidden states it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: torch.Tensor | None = None

    def forward(self, *args: Any, **kwargs: Any) -> BaseModelOutputWithPast:
        return BaseModelOutputWithPast(last_hidden_state=self.hidden)


def _head_of(model: nn.Module) -> tuple[nn.Module, _FixedHidden]:
    """The model without its body: a shallow copy that shares every weight."""
    fixed = _FixedHidden()
    head = copy.copy(model)
    head.__dict__["_modules"] = {**model._modules, model.base_model_prefix: fixed}
    return head, fixed


def _layer_spec(number: int, layer: Any) -> LayerSpec:
    if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer) or not layer.is_initialized:
        raise UnsupportedModel(
            f"layer {number} is a {type(layer).__name__}, which this version does not carry",
            hint="models of full and sliding-window attention layers are supported",
        )
    key, value = layer.keys, layer.values
    sliding = type(layer) is DynamicSlidingWindowLayer
    return LayerSpec(
        LayerKind.SLIDING if sliding else LayerKind.FULL,
        heads=key.shape[1],
        key_dim=key.shape[3],
        value_dim=value.shape[3],
        dtype=_DTYPE_NAMES[key.dtype],
        window=layer.sliding_window if sliding else 0,
    )


def load(
    folder: Path,
    *,
    source: str,
    dtype: str = "bfloat16",
    device: str = "cpu",
    threads: int | None = None,
    paranoid: bool = False,
    cache: Path,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> TransformersEngine:
    """Load a model folder (config.json, *.safetensors, tokenizer files).

    `threads` sets torch's thread count for the whole process. `cache` is the folder for the
    memory of weight digests. `progress(stage, done_bytes, total_bytes)` follows the digest.

    Raises:
        UnreadableModel: files are missing, cut short or of an unknown kind.
        UnsupportedModel: a layer kind that is not carried.
        UsageError: unknown dtype or device.
    """
    torch_dtype = getattr(torch, dtype, None)
    if torch_dtype not in _DTYPE_NAMES:
        raise UsageError(f"unknown dtype {dtype!r}", hint="bfloat16, float16 or float32")
    if device != "cpu" and not torch.cuda.is_available():
        raise UsageError(f"no device {device!r} here", hint="use cpu")
    if threads is not None:
        torch.set_num_threads(threads)
    digests = WeightsDigests(cache / "weights.sqlite3", paranoid=paranoid)
    digest = digests.of_files(
        folder.glob("*.safetensors"), lambda done, total: progress("weights digest", done, total)
    )
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch_dtype, use_safetensors=True, attn_implementation="sdpa"
        ).to(device)
    except UnsupportedModel:
        raise
    except Exception as error:  # transformers and safetensors raise many kinds for bad files
        raise UnreadableModel(
            f"transformers cannot load the model: {str(error).strip().splitlines()[0]}",
            where=str(folder),
            hint="check that config.json, *.safetensors and tokenizer.json are whole",
        ) from error
    return TransformersEngine(
        model, _tokenizer_of(model, tokenizer), source=source, weights_digest=digest
    )


def _tokenizer_of(model: nn.Module, tokenizer: Any) -> TransformersTokenizer:
    stops: set[int] = set()
    for holder in (model.generation_config, model.config, tokenizer):
        ids = getattr(holder, "eos_token_id", None)
        stops.update(ids if isinstance(ids, list) else [] if ids is None else [ids])
    # Gemma is trained to begin with BOS, and its tokenizer from GGUF does not add it.
    bos = tokenizer.bos_token_id
    adds = bos is not None and tokenizer("a").input_ids[:1] == [bos]
    begins = adds or model.config.model_type.startswith("gemma")
    return TransformersTokenizer(
        tokenizer, frozenset(stops), begins_with_bos=bos is not None and begins
    )
