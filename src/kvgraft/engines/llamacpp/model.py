"""A GGUF file as llama.cpp loads it, and the kinds of model that are refused by name."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import llama_cpp

from kvgraft.engines.gguf_check import check_gguf
from kvgraft.engines.llamacpp.library import complaint, start
from kvgraft.errors import EngineError, UnreadableModel, UnsupportedModel
from kvgraft.flops import ModelSize

_HINT = "models of full and sliding-window attention layers are supported"
_MROPE = (
    llama_cpp.LLAMA_ROPE_TYPE_MROPE,
    llama_cpp.LLAMA_ROPE_TYPE_IMROPE,
    llama_cpp.LLAMA_ROPE_TYPE_VISION,
)
# Architectures whose windows are no sliding ones, which llama.cpp's API does not tell.
_OTHER_WINDOWS = {
    "llama4": "chunked-local attention",
    "gemma-embedding": "symmetric windows",
    "modern-bert": "symmetric windows",
}


class Model:
    """A loaded model. One that was closed refuses every use: its pointers lead nowhere."""

    def __init__(self, path: Path) -> None:
        """Load and check.

        Raises:
            UnreadableModel: not a whole GGUF file, or llama.cpp cannot load it.
            UnsupportedModel: a kind that this engine does not carry.
        """
        self._summary = check_gguf(path)
        self.architecture = self._summary.architecture
        if kind := _OTHER_WINDOWS.get(self.architecture):
            raise UnsupportedModel(f"{self.architecture} has {kind}", where=str(path), hint=_HINT)
        start()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        # Repacked weights crash the process at the first batch on machines with AMX.
        params.use_extra_bufts = False
        complaint()  # whatever came before this
        self._pointer = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self._pointer:
            raise UnreadableModel(
                f"llama.cpp cannot load the model: {complaint()}",
                where=str(path),
                hint="it may be damaged, or of an architecture that this llama.cpp does not know",
            )
        try:
            self._refuse_other_kinds(path)
        except BaseException:
            self.close()
            raise

    def _refuse_other_kinds(self, path: Path) -> None:
        model = self._pointer
        kinds = {
            "recurrent layers": llama_cpp.llama_model_is_recurrent(model),
            "recurrent layers beside attention": llama_cpp.llama_model_is_hybrid(model),
            "an encoder": llama_cpp.llama_model_has_encoder(model),
            "no decoder": not llama_cpp.llama_model_has_decoder(model),
            "diffusion decoding": llama_cpp.llama_model_is_diffusion(model),
            "positions of several dimensions": llama_cpp.llama_model_rope_type(model) in _MROPE,
        }
        for kind, found in kinds.items():
            if found:
                raise UnsupportedModel(
                    f"{self.architecture} has {kind}, which this engine does not carry",
                    where=str(path),
                    hint=_HINT,
                )

    @property
    def pointer(self) -> Any:
        """The llama_model.

        Raises:
            EngineError: the model was closed.
        """
        if not self._pointer:
            raise EngineError("the model is closed")
        return self._pointer

    @property
    def words(self) -> Any:
        """The llama_vocab.

        Raises:
            EngineError: the model was closed.
        """
        return llama_cpp.llama_model_get_vocab(self.pointer)

    @property
    def vocabulary(self) -> int:
        """How many token ids it has."""
        return int(llama_cpp.llama_vocab_n_tokens(self.words))

    @property
    def context_tokens(self) -> int:
        """The context it was trained for."""
        return int(llama_cpp.llama_model_n_ctx_train(self.pointer))

    @property
    def window(self) -> int:
        """Positions that a sliding layer attends to, the query's own included; 0 without one."""
        return int(llama_cpp.llama_model_n_swa(self.pointer))

    @property
    def heads(self) -> int:
        """KV heads of the first layer."""
        return int(llama_cpp.llama_model_n_head_kv(self.pointer))

    @property
    def size(self) -> ModelSize | None:
        """What a token is multiplied with; None for a model with experts or with layers of several
        head counts."""
        heads = self.metadata(f"{self.architecture}.attention.head_count")
        if self._summary.experts or heads is None:
            return None
        return ModelSize(self._summary.body, self._summary.head, int(heads))

    @property
    def file_type(self) -> str:
        """How the weights are quantised, as llama.cpp names it."""
        return str(llama_cpp.llama_ftype_name(llama_cpp.llama_model_ftype(self.pointer)).decode())

    def metadata(self, key: str) -> str | None:
        """A metadata value as text; None where the file has none (or an array)."""
        name = key.encode()
        size = llama_cpp.llama_model_meta_val_str(self.pointer, name, None, 0)
        if size < 0:
            return None
        buffer = ctypes.create_string_buffer(size + 1)
        llama_cpp.llama_model_meta_val_str(self.pointer, name, buffer, size + 1)
        return buffer.value.decode("utf-8", "replace")

    def close(self) -> None:
        """Free it. Idempotent; every context over it must be closed before."""
        if self._pointer:
            llama_cpp.llama_model_free(self._pointer)
            self._pointer = None
