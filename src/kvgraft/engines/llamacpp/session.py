"""One llama_context: decode, state bytes, memory. Everything that would end the process, or give
other bits in silence, is checked here before llama.cpp is called."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np

from kvgraft.engines.llamacpp.library import complaint
from kvgraft.errors import EngineError

CELLS = 256  # llama.cpp pads contexts, and what attention looks at, to multiples of it
_PARTIAL = llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY  # the sliding windows alone
_UINT8 = ctypes.POINTER(ctypes.c_uint8)


class Session:
    """`tokens` cells, calls of at most `rows` tokens, `sequences` sequences in one unified cache.

    `outputs` is how many rows of logits a call may give. `wide` keeps every token of sliding
    layers too, for sequences that branch.
    """

    def __init__(
        self,
        model: Any,
        *,
        tokens: int,
        rows: int,
        threads: int,
        sequences: int,
        outputs: int,
        wide: bool = False,
    ) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = self.cells = max(tokens, rows) + -max(tokens, rows) % CELLS
        params.n_batch = params.n_ubatch = self._rows = rows
        params.n_seq_max = self._sequences = sequences
        params.n_outputs_max = self._outputs = max(outputs, sequences)
        params.n_threads = params.n_threads_batch = self._threads = threads
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.type_k = params.type_v = llama_cpp.GGML_TYPE_F16
        params.kv_unified = True
        params.offload_kqv = params.op_offload = params.embeddings = False
        params.no_perf = True
        params.swa_full = wide
        self._pointer = llama_cpp.llama_init_from_model(model, params)
        if not self._pointer:
            raise EngineError(f"llama.cpp made no context of {tokens} tokens: {complaint()}")
        self._memory = llama_cpp.llama_get_memory(self._pointer)
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._batch = llama_cpp.llama_batch_init(rows, 0, 1)

    @property
    def pointer(self) -> Any:
        """The llama_context.

        Raises:
            EngineError: it was freed.
        """
        if not self._pointer:
            raise EngineError("the context is closed")
        return self._pointer

    @property
    def has_memory(self) -> bool:
        """Whether the model keeps anything of what it read."""
        return bool(self._memory)

    def check_threads(self) -> None:
        """Another thread count gives other bits.

        Raises:
            EngineError: somebody changed it.
        """
        counts = (
            llama_cpp.llama_n_threads(self.pointer),
            llama_cpp.llama_n_threads_batch(self.pointer),
        )
        if counts != (self._threads, self._threads):
            raise EngineError(
                f"llama.cpp runs {counts} threads, the fingerprint says {self._threads}:"
                " other thread counts give other bits",
                hint="leave llama_set_n_threads alone after opening an engine",
            )

    def decode(
        self, tokens: np.ndarray, start: int, sequences: Sequence[int] | None = None
    ) -> None:
        """One call. Without `sequences`, `tokens` `[count]` follow each other in sequence 0 from
        position `start` on, and the last one gives logits; with them, each token stands at
        position `start` of its own sequence, and all give logits.

        Raises:
            EngineError: too many rows, no room, or llama.cpp failed; in the last two cases the
                memory may hold a part of the call.
        """
        self.check_threads()
        count = len(tokens)
        if not 1 <= count <= self._rows or not 0 <= start < 2**31 - count:
            raise EngineError(f"a call of {count} tokens, rows for {self._rows}")
        if sequences is not None and not set(sequences) <= set(range(self._sequences)):
            raise EngineError(f"sequences {sequences} of {self._sequences}")
        batch, shape = self._batch, (count,)
        batch.n_tokens = count
        np.ctypeslib.as_array(batch.token, shape)[:] = tokens
        positions = np.arange(start, start + count) if sequences is None else start
        np.ctypeslib.as_array(batch.pos, shape)[:] = positions
        np.ctypeslib.as_array(batch.n_seq_id, shape)[:] = 1
        flags = np.ctypeslib.as_array(batch.logits, shape)
        flags[:] = sequences is not None
        flags[-1] = 1
        for row in range(count):
            batch.seq_id[row][0] = 0 if sequences is None else sequences[row]
        if status := llama_cpp.llama_decode(self.pointer, batch):
            raise EngineError(
                f"llama_decode gave {status} for {count} tokens at {start}: {complaint()}"
            )

    def logits(self, row: int, out: np.ndarray) -> None:
        """Copy the logits of a call's row into `out`, float32 `[vocab]`; -1 is the last row.

        Raises:
            EngineError: llama.cpp has none.
        """
        found = llama_cpp.llama_get_logits_ith(self.pointer, row)
        if not found:
            raise EngineError(f"llama.cpp has no logits for row {row}: {complaint()}")
        out[:] = np.ctypeslib.as_array(found, (self._vocabulary,))

    def state(self, sequence: int = 0, *, windows_only: bool = False) -> np.ndarray:
        """The state bytes of a sequence, uint8 `[size]`.

        Raises:
            EngineError: llama.cpp gave none.
        """
        flags = _PARTIAL if windows_only else 0
        size = llama_cpp.llama_state_seq_get_size_ext(self.pointer, sequence, flags)
        data = np.empty(size, np.uint8)
        got = llama_cpp.llama_state_seq_get_data_ext(
            self.pointer, data.ctypes.data_as(_UINT8), size, sequence, flags
        )
        if not size or got != size:
            raise EngineError(f"llama.cpp gave {got} of {size} state bytes: {complaint()}")
        return data

    def restore(self, data: np.ndarray, *, windows_only: bool = False) -> None:
        """Make state bytes uint8 `[size]` those of sequence 0. They must have been checked:
        llama.cpp itself compares only structure and types.

        Raises:
            EngineError: llama.cpp refused them. The memory is cleared then: after a failure it
                may hold cells that change the next prompt.
        """
        flags = _PARTIAL if windows_only else 0
        got = llama_cpp.llama_state_seq_set_data_ext(
            self.pointer, data.ctypes.data_as(_UINT8), len(data), 0, flags
        )
        if got != len(data):
            self.clear()
            raise EngineError(f"llama.cpp took {got} of {len(data)} state bytes: {complaint()}")

    def positions(self, sequence: int = 0) -> tuple[int, int]:
        """The first and last position that every cache has of a sequence; (-1, -1) if empty."""
        return (
            llama_cpp.llama_memory_seq_pos_min(self._memory, sequence),
            llama_cpp.llama_memory_seq_pos_max(self._memory, sequence),
        )

    def share(self, source: int, target: int, start: int = -1, end: int = -1) -> None:
        """Let sequence `target` hold the cells of `source` at positions `[start, end)` too: all
        of them by default. Nothing is moved."""
        llama_cpp.llama_memory_seq_cp(self._memory, source, target, start, end)

    def drop(self, sequence: int) -> None:
        """Forget a sequence; cells that another one holds stay."""
        llama_cpp.llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def clear(self) -> None:
        """Empty the memory, and zero it: old bytes could be no numbers, which masks do not hide."""
        _ = self.pointer
        llama_cpp.llama_memory_clear(self._memory, True)

    def close(self) -> None:
        """Free the context. Idempotent."""
        if self._pointer:
            llama_cpp.llama_batch_free(self._batch)
            llama_cpp.llama_free(self._pointer)
            self._pointer = None
