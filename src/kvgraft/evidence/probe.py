"""What it costs to use a state at another place than its own, measured against computing it there.

For each offset the same block of text is computed at its own place, from position 0 on (*here*),
and at the offset, with nothing before it (*there*); and the block from here is moved there by
turning its keys (*relocated*). The same text then follows in all three. Under a rotary embedding
all three are equal in exact arithmetic, so there against here is what positions alone change, the
model's own sensitivity to rounding; relocated against there is what moving changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from kvgraft.blob.payload import ChunkPlace
from kvgraft.engines.base import Context, Engine
from kvgraft.errors import EngineError, InputError, UnsupportedModel, UsageError
from kvgraft.evidence.prove import kl_divergence
from kvgraft.evidence.samples import corpus
from kvgraft.identity import Fingerprint
from kvgraft.plan import Call, plan_calls
from kvgraft.prompt import encode
from kvgraft.relocation import Measured, OffsetContext, Relocating, relocating
from kvgraft.state import LayerKind, Role

OFFSETS = (8, 128, 1024, 4096)
BLOCK_TOKENS, SUFFIX_TOKENS = 256, 32
_CHARS_PER_TOKEN = 12  # more than any tokenizer here needs; texts are cut to tokens
_Progress = Callable[[str, int, int], None]
_STAGE = "moving states"


@dataclass(frozen=True)
class Difference:
    """Between next-token logits of two runs, over `rows` positions; KL(reference || other)."""

    rows: int
    kl_mean_nats: float
    kl_max_nats: float
    max_abs_logit: float
    argmax_flips: int


@dataclass(frozen=True)
class KeyDifference:
    """Between the keys themselves: the largest difference, and the largest key beside it."""

    max_abs: float
    largest_key: float


@dataclass(frozen=True)
class AtOffset:
    """`relocated`: computed there against moved there. `position`: computed there against computed
    here. `by_kind`: as `relocated`, with the layers of one kind moved and all others computed
    there. `keys` by layer kind, as in `relocated`."""

    offset: int
    relocated: Difference
    position: Difference
    by_kind: dict[str, Difference]
    keys: dict[str, KeyDifference]


@dataclass
class Probe:
    """`control_equal`: a state that was computed there and only copied gave the same bits as the
    run that computed it, so what is measured comes from moving alone."""

    model: str
    samples: int
    block_tokens: int
    suffix_tokens: int
    control_equal: bool
    fingerprint: dict[str, str]
    offsets: list[AtOffset] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def measured(self, offset: int) -> Measured:
        """The figures that a relocated answer carries.

        Raises:
            InputError: this offset was not measured.
        """
        for row in self.offsets:
            if row.offset == offset:
                found = row.relocated
                return Measured(
                    Fingerprint.of(self.fingerprint),
                    offset,
                    self.block_tokens,
                    found.rows,
                    found.kl_mean_nats,
                    found.kl_max_nats,
                )
        raise InputError(f"offset {offset} was not measured")


def probe(
    engine: Engine,
    offsets: Sequence[int] | None = None,
    samples: int = 8,
    *,
    seed: int = 0,
    block_tokens: int = BLOCK_TOKENS,
    suffix_tokens: int = SUFFIX_TOKENS,
    progress: _Progress = lambda stage, done, total: None,
) -> Probe:
    """Measure on `samples` English texts of `block_tokens` tokens, each followed by
    `suffix_tokens` more. Without `offsets`: those of `OFFSETS` that the context holds.

    Raises:
        UsageError: offsets or sizes that are none, or that pass the model's context.
        UnsupportedModel: the engine cannot move this model's states.
    """
    mover = relocating(engine)
    if not engine.capabilities.row_logits:
        raise UnsupportedModel("the engine does not give the logits of every row")
    if min(samples, block_tokens, suffix_tokens) < 1:
        raise UsageError("a probe takes 1 sample, block token and suffix token or more")
    room = engine.context_tokens - block_tokens - suffix_tokens - engine.form.block
    if offsets is None:
        offsets = [offset for offset in OFFSETS if offset <= room]
    if not offsets or not all(1 <= offset <= room for offset in offsets):
        raise UsageError(
            f"offsets must be within 1..{room}: {engine.model} has a context of"
            f" {engine.context_tokens} tokens",
            hint="give other --offsets",
        )
    offsets = sorted(set(offsets))
    texts = _texts(engine, samples, block_tokens + suffix_tokens, seed)
    sums = [_Sums(offset) for offset in offsets]
    control = True
    total = len(texts) * len(offsets)
    for number, ids in enumerate(texts):
        run = _Run(engine, mover, ids, block_tokens)
        for place, one in enumerate(sums):
            equal = run.measure(one, control=number == 0)
            control = control and equal
            progress(_STAGE, number * len(offsets) + place + 1, total)
    return Probe(
        model=engine.model,
        samples=samples,
        block_tokens=block_tokens,
        suffix_tokens=suffix_tokens,
        control_equal=control,
        fingerprint=dict(engine.fingerprint.fields),
        offsets=[one.result() for one in sums],
    )


def _texts(engine: Engine, count: int, tokens: int, seed: int) -> list[np.ndarray]:
    """Token ids uint32 `[tokens]` of `count` pieces of prose."""
    text, rng = corpus(), np.random.default_rng(seed)
    length = tokens * _CHARS_PER_TOKEN
    out = []
    for _ in range(count):
        start = int(rng.integers(0, max(1, len(text) - length)))
        ids = encode(engine.tokenizer, text[start : start + length])[:tokens]
        if len(ids) < tokens:
            raise UsageError(f"there is no text of {tokens} tokens to measure on")
        out.append(np.array(ids, np.uint32))
    return out


class _Run:
    """One text: computed here once, then measured at any offset."""

    def __init__(
        self, engine: Engine, mover: Relocating, ids: np.ndarray, block_tokens: int
    ) -> None:
        self._engine, self._mover, self._ids = engine, mover, ids
        form, context_tokens = engine.form, engine.context_tokens
        self._block = plan_calls(block_tokens, form, context_tokens)
        rest = plan_calls(len(ids) - block_tokens, form, context_tokens)
        self._suffix = [Call(block_tokens + c.start, c.count, c.rows) for c in rest]
        self._capacity = len(ids) + form.block
        # What a store would hold of the block: per call and role, copies of its tensors.
        self._stored: list[tuple[Role, ChunkPlace, list[np.ndarray]]] = []
        context = engine.open_context(self._capacity)
        try:
            self._run_block(context, keep=True)
            self._here = self._follow(context)
        finally:
            context.close()

    @property
    def _kinds(self) -> list[LayerKind]:
        """Kinds of layers whose keys are moved."""
        return sorted({la.kind for la in self._engine.spec.layers if la.parts}, key=str)

    def measure(self, sums: _Sums, *, control: bool) -> bool:
        """Add this text's figures at one offset; whether the control, if any, was equal."""
        offset, kinds = sums.offset, self._kinds
        there = self._mover.open_context_at(self._capacity, offset)
        opened = [there]
        try:
            self._run_block(there)
            moved = self._moved(opened, offset, kinds)
            for kind in kinds:
                for number, layer in enumerate(self._engine.spec.layers):
                    if layer.kind is kind:
                        sums.add_keys(kind, there.keys(number), moved.keys(number))
            others: dict[LayerKind, OffsetContext] = {}
            for kind in kinds if len(kinds) > 1 else []:
                others[kind] = self._moved(opened, offset, [kind])
                others[kind].take_layers(there, [k for k in LayerKind if k is not kind])
            copied = self._moved(opened, offset, []) if control else None
            if copied is not None:
                copied.take_layers(there, list(LayerKind))
            fresh = self._follow(there)  # the last use of the block there: rows may move now
            sums.add("relocated", fresh, self._follow(moved))
            sums.add("position", fresh, self._here)
            for kind, context in others.items():
                sums.add(kind.value, fresh, self._follow(context))
            # The first row comes from the imported end point, which is not a layer's.
            return copied is None or np.array_equal(fresh[1:], self._follow(copied)[1:])
        finally:
            for context in opened:
                context.close()

    def _moved(
        self, opened: list[OffsetContext], offset: int, kinds: Collection[LayerKind]
    ) -> OffsetContext:
        """The block from here, moved there in layers of `kinds`; noted in `opened` to be closed."""
        context = self._mover.open_context_at(self._capacity, offset, kinds)
        opened.append(context)
        length = self._block[-1].end
        for role, place, tensors in self._stored:
            if role is Role.END and place.start + place.count != length:
                continue
            views = context.import_views(role, place, length)
            for view, tensor in zip(views, tensors, strict=True):
                view[...] = tensor
        context.commit(length)
        return context

    def _run_block(self, context: Context, *, keep: bool = False) -> None:
        for call in self._block:
            context.run(self._ids[call.start : call.end], call.rows)
            if keep:
                place = ChunkPlace(call.start, call.count, call.rows)
                for role in (*self._engine.spec.roles, Role.END):
                    views = [view.copy() for view in context.export_views(role, place)]
                    self._stored.append((role, place, views))

    def _follow(self, context: Context) -> np.ndarray:
        """Logits float32 `[1 + suffix, vocab]`: behind the block, and of every suffix token."""
        rows = [context.logits()[None]]
        for call in self._suffix:
            context.run(self._ids[call.start : call.end], call.rows)
            rows.append(context.call_logits())
        found: np.ndarray = np.concatenate(rows).astype(np.float32)
        if not np.isfinite(found.max(axis=1)).all():
            raise EngineError("the engine gave logits that are not finite numbers")
        return found


class _Sums:
    """Figures of one offset, over all texts."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self._kl: dict[str, list[np.ndarray]] = {}
        self._logit: dict[str, float] = {}
        self._flips: dict[str, int] = {}
        self._keys: dict[str, tuple[float, float]] = {}

    def add(self, name: str, reference: np.ndarray, other: np.ndarray) -> None:
        """Logits float32 `[rows, vocab]` of one text."""
        self._kl.setdefault(name, []).append(kl_divergence(reference, other))
        both = np.isfinite(reference) & np.isfinite(other)
        largest = float(np.abs(np.where(both, reference - other, 0)).max())
        self._logit[name] = max(self._logit.get(name, 0.0), largest)
        flips = int((reference.argmax(axis=1) != other.argmax(axis=1)).sum())
        self._flips[name] = self._flips.get(name, 0) + flips

    def add_keys(self, kind: LayerKind, fresh: np.ndarray, moved: np.ndarray) -> None:
        """One layer's keys float32 `[tokens, heads, dim]`."""
        known = self._keys.get(kind.value, (0.0, 0.0))
        seen = (float(np.abs(fresh - moved).max()), float(np.abs(fresh).max()))
        self._keys[kind.value] = (max(known[0], seen[0]), max(known[1], seen[1]))

    def result(self) -> AtOffset:
        """The figures."""
        found = {name: self._difference(name) for name in self._kl}
        relocated, position = found.pop("relocated"), found.pop("position")
        keys = {kind: KeyDifference(*sizes) for kind, sizes in self._keys.items()}
        # Where all layers are of one kind, that is the kind.
        by_kind = found or dict.fromkeys(keys, relocated)
        return AtOffset(self.offset, relocated, position, by_kind, keys)

    def _difference(self, name: str) -> Difference:
        kl = np.concatenate(self._kl[name])
        return Difference(
            rows=len(kl),
            # Of nearly equal distributions rounding can make it a hair less than nothing.
            kl_mean_nats=max(0.0, float(kl.mean())),
            kl_max_nats=max(0.0, float(kl.max())),
            max_abs_logit=self._logit[name],
            argmax_flips=self._flips[name],
        )
