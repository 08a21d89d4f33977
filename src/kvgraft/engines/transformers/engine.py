"""A frozen transformers model: loading, fingerprint, the forward call and the one-row head."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from kvgraft import limits
from kvgraft.engines.arena import ArenaPool, pageable
from kvgraft.engines.base import Capabilities, Tokenizer
from kvgraft.engines.transformers.context import TransformersContext
from kvgraft.engines.transformers.layers import DTYPE_NAMES, pinned
from kvgraft.engines.transformers.probe import Body, error_line, probe
from kvgraft.engines.transformers.settings import (
    implementations,
    kernel_packages,
    kernel_settings,
    thread_count,
)
from kvgraft.engines.transformers.size import model_size
from kvgraft.engines.transformers.tokenizer import TransformersTokenizer
from kvgraft.errors import (
    EngineError,
    UnreadableModel,
    UnsupportedModel,
    UsageError,
)
from kvgraft.identity import Fingerprint, WeightsDigests, cpu_class, digest_json
from kvgraft.plan import PlanForm

# Chosen by measurement: docs/decisions/0001-plan-form.md.
PLAN = PlanForm(block=256, rungs=(32, 64, 128, 256))
# Read by the kernel libraries themselves; torch's own settings are in `kernel_settings`.
_KERNEL_VARIABLES = (
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_DEFAULT_FPMATH_MODE",
    "ATEN_CPU_CAPABILITY",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_CBWR",
)
# Where the model came from, not what it computes.
_CONFIG_NAMES = ("_name_or_path", "transformers_version", "architectures", "torch_dtype", "dtype")


class TransformersEngine:
    """See `kvgraft.engines.base.Engine`. One call at a time; not thread-safe."""

    name = "transformers"
    capabilities = Capabilities(monolithic=True, lanes=True, row_logits=True)

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        *,
        source: str,
        weights_digest: str,
        form: PlanForm = PLAN,
        mirrored: bool | None = None,
    ) -> None:
        self._model = model.eval().requires_grad_(False)
        self.model = source
        self.tokenizer = tokenizer
        self.device = next(model.parameters()).device
        self.mirrored = self.device.type != "cpu" if mirrored is None else mirrored
        self.context_tokens = _context_tokens(model)
        self.vocabulary = int(model.get_input_embeddings().weight.shape[0])
        self._body = Body(model, self.device)
        self.threads = thread_count()
        self._settings = kernel_settings(self.device)
        self._implementations = implementations(model.config)
        self.spec, self._head = probe(model, self._body)
        self.model_size = model_size(model, self._body.module, len(self.spec.layers))
        # Padding would enter recurrent states, so there tails run in their own length.
        recurrent = any(layer.states for layer in self.spec.layers)
        self.form = PlanForm(form.block, ()) if recurrent else form
        self.fingerprint = self._fingerprint(weights_digest)
        allocate = pinned if self.device.type == "cuda" else pageable
        self._pool = ArenaPool(self.spec, self.form.block, allocate=allocate)

    def _fingerprint(self, weights_digest: str) -> Fingerprint:
        config = self._model.config.to_dict()
        for name in _CONFIG_NAMES:
            config.pop(name, None)
        dtype = DTYPE_NAMES[next(self._model.parameters()).dtype]
        device = cpu_class(_KERNEL_VARIABLES)
        if self.device.type == "cuda":
            properties = torch.cuda.get_device_properties(self.device)
            device = f"cuda/{properties.name}/sm_{properties.major}{properties.minor}"
        return Fingerprint.of(
            {
                "engine": self.name,
                "engine_version": f"transformers-{transformers.__version__}"
                f"/torch-{torch.__version__}/{digest_json(torch.__config__.show())[:16]}"
                f"/kernels-{kernel_packages()}",
                "weights": weights_digest,
                "config": digest_json(config),
                "adapters": "none",
                "dtype": dtype,
                "kv_dtype": "/".join(self.spec.dtypes),
                "attention": self._implementations,
                "device": f"{device}/{self._settings}",
                "threads": str(self.threads),
                "plan": self.form.name,
            }
        )

    def open_context(self, capacity: int) -> TransformersContext:
        if not 0 < capacity <= self.context_tokens:
            raise EngineError(f"capacity {capacity} is not within 1..{self.context_tokens}")
        return TransformersContext(self, self._pool.take(capacity), self._pool, capacity)

    def _check_unchanged(self) -> None:
        """Refuse to compute under settings that the fingerprint does not tell.

        Raises:
            EngineError: the process has changed them since the engine was opened.
        """
        if thread_count() != self.threads:
            raise EngineError(
                f"torch runs {thread_count()} threads, the fingerprint says {self.threads}:"
                " other thread counts give other bits",
                hint="leave torch.set_num_threads alone after opening an engine",
            )
        if (chosen := implementations(self._model.config)) != self._implementations:
            raise EngineError(
                f"the model's implementations are {chosen}, the fingerprint says"
                f" {self._implementations}: other ones give other bits",
                hint="choose attention and experts before an engine is made",
            )
        if (settings := kernel_settings(self.device)) != self._settings:
            raise EngineError(
                f"torch's settings are {settings}, the fingerprint says {self._settings}:"
                " other kernels give other bits",
                hint="leave autocast, precision and kernel settings alone around an engine",
            )

    def forward(self, ids: np.ndarray, cache: Any, start: int) -> torch.Tensor:
        """Final hidden states `[lanes, rows, hidden]` of `ids` int64 `[lanes, rows]`, which
        stand at positions `start` and on; the cache takes their states.

        Raises:
            EngineError: past the model's context, or torch's threads or settings were changed.
        """
        self._check_unchanged()
        if start + ids.shape[1] > self.context_tokens:
            raise EngineError(
                f"{ids.shape[1]} rows from position {start} on pass the model's context of"
                f" {self.context_tokens}"
            )
        hidden: torch.Tensor = self._body.run(ids, cache, start).last_hidden_state
        return hidden

    def head(self, hidden: torch.Tensor) -> np.ndarray:
        """Logits float32 `[lanes, rows, vocab]` of hidden states `[lanes, rows, hidden]`.

        Raises:
            EngineError: torch's threads or settings were changed.
        """
        self._check_unchanged()  # a context that was restored whole runs nothing but its head
        array: np.ndarray = self._head.logits(hidden).float().cpu().numpy()
        return array

    @torch.inference_mode()
    def monolithic_logits(self, ids: np.ndarray) -> np.ndarray:
        """Next-token logits float32 `[vocab]` of a prompt run in one stock call, without the
        plan: what `prove` reports beside exactness.

        Raises:
            EngineError: past the model's context, or torch's threads or settings were changed.
        """
        cache = DynamicCache(config=self._model.config.get_text_config())
        hidden = self.forward(np.asarray(ids, np.int64)[None], cache, 0)
        return self.head(hidden[:, -1:])[0, 0]

    def close(self) -> None:
        # The weights are gone with this, unless the caller keeps the model: an open context of the
        # engine refuses everything but `close`.
        for name in ("_model", "_body", "_head", "_pool"):
            self.__dict__.pop(name, None)

    def __getattr__(self, name: str) -> Any:
        if name in ("_model", "_body", "_head", "_pool"):
            raise EngineError("the engine is closed")
        raise AttributeError(name)


def _context_tokens(model: nn.Module) -> int:
    config = model.config.get_text_config()
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        tokens = getattr(config, name, None)
        if isinstance(tokens, int):
            return tokens
    return limits.MAX_CONTEXT_TOKENS  # recurrent models and ALiBi have no position to run out of


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
    form: PlanForm = PLAN,
) -> TransformersEngine:
    """Load a model folder (config.json, *.safetensors, tokenizer files).

    `threads` sets torch's thread count for the whole process. `cache` is the folder for the
    memory of weight digests. `progress(stage, done_bytes, total_bytes)` follows the digest.

    Raises:
        UnreadableModel: files are missing, cut short or of an unknown kind.
        UnsupportedModel: a layer kind that is not carried, or an adapter.
        UsageError: unknown dtype or device.
    """
    torch_dtype = getattr(torch, dtype, None)
    if torch_dtype not in DTYPE_NAMES:
        raise UsageError(f"unknown dtype {dtype!r}", hint="bfloat16, float16 or float32")
    if device != "cpu" and not torch.cuda.is_available():
        raise UsageError(f"no device {device!r} here", hint="use cpu")
    if (folder / "adapter_config.json").exists():
        # transformers would load the adapter and, by its name, a base model from elsewhere
        raise UnsupportedModel(
            "the folder holds an adapter, which this version does not carry",
            where=str(folder),
            hint="merge the adapter into its base model and save that",
        )
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
            f"transformers cannot load the model: {error_line(error)}",
            where=str(folder),
            hint="check that config.json, *.safetensors and tokenizer.json are whole",
        ) from error
    return TransformersEngine(
        model,
        _tokenizer_of(model, tokenizer),
        source=source,
        weights_digest=digest,
        form=form,
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
