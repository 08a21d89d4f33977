"""A frozen GGUF model under llama.cpp: loading, fingerprint, and its pool of contexts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import llama_cpp
import numpy as np

from kvgraft.engines.arena import check_vocabulary
from kvgraft.engines.base import Capabilities
from kvgraft.engines.gguf_check import check_gguf, tokenizer_digest
from kvgraft.engines.llamacpp.context import SEQUENCES, LlamaContext
from kvgraft.engines.llamacpp.layout import CacheLayout, Frame, StateLayout, learn_caches
from kvgraft.engines.llamacpp.library import KERNEL_VARIABLES, build_name
from kvgraft.engines.llamacpp.model import Model
from kvgraft.engines.llamacpp.session import Session
from kvgraft.engines.llamacpp.tokenizer import LlamaTokenizer
from kvgraft.engines.llamacpp.trial import survive
from kvgraft.errors import EngineError, FormatError, UnsupportedModel
from kvgraft.identity import Fingerprint, WeightsDigests, cpu_class
from kvgraft.plan import PlanForm
from kvgraft.state import LayerKind, LayerSpec, Role, StateSpec

# llama.cpp's own physical batch: splits at its multiples change no bit, and the tail may be bare
# because an engine without constant shapes gains nothing from padding.
PLAN = PlanForm(block=512, rungs=())
MAX_MONOLITHIC_TOKENS = 8192  # a mask of rows by cells in float32: 256 MiB
_POOLED = 2


class LlamaEngine:
    """See `kvgraft.engines.base.Engine`. One call at a time; not thread-safe."""

    name = "llamacpp"
    capabilities = Capabilities(monolithic=True, lanes=True, row_logits=False)

    def __init__(
        self,
        model: Model,
        tokenizer: LlamaTokenizer,
        *,
        source: str,
        weights_digest: str,
        threads: int,
        form: PlanForm = PLAN,
    ) -> None:
        self._model = model
        self.model = source
        self.tokenizer = tokenizer
        self.threads = threads
        self.form = form
        self.context_tokens = model.context_tokens
        self.vocabulary = model.vocabulary
        self._sessions: set[Session] = set()
        self._free: list[Session] = []
        self.layout = self._learn_layout()
        self.cache_roles = (Role.KEEP, Role.NEAR)[: len(self.layout.caches)]
        self.spec = self._state_spec()
        # Several KV head counts are shown as one head: sizes per head are then not known.
        plain = all(layer.heads == model.heads for layer in self.spec.layers)
        self.model_size = model.size if plain else None
        self.fingerprint = self._fingerprint(weights_digest)

    def _learn_layout(self) -> StateLayout:
        """From the state after one token."""
        session = self._session(1, self.form.block)
        try:
            if not session.has_memory:
                raise UnsupportedModel(
                    f"{self._model.architecture} keeps no state that could be stored"
                )
            session.decode(np.zeros(1, np.int64), 0)
            data = session.state().tobytes()
        finally:
            self.forget(session)
        caches = _learn(data, self._model.architecture)
        return StateLayout(caches, self._model.window if len(caches) > 1 else 0)

    def _state_spec(self) -> StateSpec:
        """Layers in the order of llama.cpp's caches: full attention, then sliding windows."""
        layers = []
        for role, cache in zip(self.cache_roles, self.layout.caches, strict=True):
            # A state holds the last `near` positions; a layer of window w keeps the last w - 1.
            window = self.layout.near + 1 if role is Role.NEAR else 0
            kind = LayerKind.SLIDING if window else LayerKind.FULL
            for key, value in zip(cache.keys, cache.values, strict=True):
                key, value = key // 2, value // 2  # bytes to elements
                heads = self._model.heads
                if key % heads or value % heads:
                    heads = 1  # layers of several head counts: only the first one's is told
                layers.append(LayerSpec(kind, heads, key // heads, value // heads, "F16", window))
        return StateSpec(tuple(layers), self.vocabulary, "F32", "logits")

    def _fingerprint(self, weights_digest: str) -> Fingerprint:
        return Fingerprint.of(
            {
                "engine": self.name,
                "engine_version": build_name(),
                "weights": weights_digest,
                "config": "gguf",  # the weights' digest is over the whole file, its config included
                "adapters": "none",
                "dtype": self._model.file_type,
                "kv_dtype": "F16",
                "attention": "flash",
                "device": cpu_class(KERNEL_VARIABLES),
                "threads": str(self.threads),
                "plan": self.form.name,
            }
        )

    # --- what contexts ask for -----------------------------------------------------------------

    def by_role(self, frame: Frame, data: np.ndarray) -> dict[Role, list[np.ndarray]]:
        """The tensors of a state by role, float16 `[rows, heads, dim]` views, key and value of
        each layer."""
        out = {}
        for number, role in enumerate(self.cache_roles):
            layers = [layer for layer in self.spec.layers if layer.role is role]
            shapes = [
                (-1, layer.heads, dim)
                for layer in layers
                for dim in (layer.key_dim, layer.value_dim)
            ]
            tensors = frame.tensors(data, number)
            out[role] = [
                tensor.reshape(shape) for tensor, shape in zip(tensors, shapes, strict=True)
            ]
        return out

    def check_positions(self, session: Session, length: int) -> None:
        """Whether llama.cpp holds the positions that a state of `length` tokens has.

        Raises:
            EngineError: others.
        """
        expected = (self.layout.rows(0, length)[-1].first, length - 1)
        if (found := session.positions()) != expected:
            raise EngineError(f"llama.cpp holds positions {found}, expected {expected}")

    def lanes_session(self, tokens: int, lanes: int) -> Session:
        """A session in which `lanes` sequences share a beginning.

        Raises:
            EngineError: more lanes than llama.cpp has sequences.
        """
        most = llama_cpp.llama_max_parallel_sequences()
        if lanes > most:
            raise EngineError(f"{lanes} lanes; llama.cpp has {most} sequences")
        return self._session(tokens, lanes, sequences=lanes, outputs=lanes, wide=True)

    def give_back(self, session: Session, sound: bool) -> None:
        """Keep a context's session for the next one, or free it where it is not sound."""
        if session not in self._sessions:  # the engine was closed
            return
        if not sound:
            self.forget(session)
            return
        self._free.append(session)
        while len(self._free) > _POOLED:
            self.forget(self._free.pop(0))

    def forget(self, session: Session) -> None:
        """Free a session."""
        self._sessions.discard(session)
        session.close()

    def _session(
        self,
        tokens: int,
        rows: int,
        *,
        sequences: int = SEQUENCES,
        outputs: int = 1,
        wide: bool = False,
    ) -> Session:
        session = Session(
            self._model.pointer,
            tokens=tokens,
            rows=rows,
            threads=self.threads,
            sequences=sequences,
            outputs=outputs,
            wide=wide,
        )
        self._sessions.add(session)
        return session

    # --- the protocol --------------------------------------------------------------------------

    def open_context(self, capacity: int) -> LlamaContext:
        if not 0 < capacity <= self.context_tokens:
            raise EngineError(f"capacity {capacity} is not within 1..{self.context_tokens}")
        for session in self._free:
            if capacity <= session.cells <= 2 * max(capacity, self.form.block):
                self._free.remove(session)
                session.clear()
                return LlamaContext(self, session, capacity)
        return LlamaContext(self, self._session(capacity, self.form.block), capacity)

    def monolithic_logits(self, ids: np.ndarray) -> np.ndarray:
        """Next-token logits float32 `[vocab]` of a prompt run in one stock call, without the
        plan: what `prove` reports beside exactness.

        Raises:
            EngineError: more than `MAX_MONOLITHIC_TOKENS`, or past the model's context.
        """
        most = min(self.context_tokens, MAX_MONOLITHIC_TOKENS)
        if not 1 <= len(ids) <= most:
            raise EngineError(f"{len(ids)} tokens in one call, at most {most}")
        check_vocabulary(np.asarray(ids), self.vocabulary)
        session = self._session(len(ids), len(ids), sequences=1)
        try:
            session.decode(np.asarray(ids, np.int64), 0)
            out = np.empty(self.vocabulary, np.float32)
            session.logits(-1, out)
        finally:
            self.forget(session)
        return out

    def close(self) -> None:
        for session in list(self._sessions):
            self.forget(session)
        self._free.clear()
        self._model.close()


def _learn(data: bytes, architecture: str) -> tuple[CacheLayout, ...]:
    for count in (1, 2):
        try:
            return learn_caches(data, count)
        except FormatError as error:
            reason = error
    raise UnsupportedModel(
        f"the state of {architecture} is not laid out as full and sliding attention: {reason}",
        hint="latent attention, sparse indexes and quantised caches are not carried",
    )


def _usable_cpus() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load(
    path: Path,
    *,
    source: str,
    threads: int | None = None,
    paranoid: bool = False,
    cache: Path,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
    form: PlanForm = PLAN,
) -> LlamaEngine:
    """Load a GGUF file. `threads` None takes one per CPU that this process may use.

    `cache` is the folder for what is remembered of files: their digests, and that llama.cpp
    survived them. `progress(stage, done_bytes,
    total_bytes)` follows the digest.

    Raises:
        UnreadableModel: not a whole GGUF file, or one that llama.cpp cannot load or survive.
        UnsupportedModel: a layer kind that is not carried.
    """
    check_gguf(path)
    digests = WeightsDigests(cache / "weights.sqlite3", paranoid=paranoid)
    digest = digests.of_files([path], lambda done, total: progress("weights digest", done, total))
    survive(path, digest, cache)
    model = Model(path)
    try:
        return LlamaEngine(
            model,
            LlamaTokenizer(model, tokenizer_digest(path)),
            source=source,
            weights_digest=digest,
            threads=threads or _usable_cpus(),
            form=form,
        )
    except BaseException:
        model.close()
        raise
