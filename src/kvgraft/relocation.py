"""A stored text used at another place than its own: approximate, refused unless asked for.

A page that was captured at position 0 can be put at another offset by turning its keys. What comes
out is close to what the model would have computed there, never equal in bits, so it is outside the
exact regime: the caller has to ask for it by name and to show what it costs on this model at this
offset, as `kvgraft probe` measured it. Both stay with the result. Nothing of it is ever stored.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from kvgraft.engines.base import Capabilities, Context, Engine, Tokenizer
from kvgraft.errors import (
    ContextTooLong,
    EngineError,
    InputError,
    RelocationRefused,
    UnsupportedModel,
    UsageError,
)
from kvgraft.identity import Fingerprint
from kvgraft.plan import PUBLIC_SALT
from kvgraft.reuse import Keep, ReuseReport, compute_prompt
from kvgraft.state import LayerKind
from kvgraft.store.chunks import ChunkStore


class OffsetContext(Context, Protocol):
    """A context whose first token stands at position `offset`.

    `commit` takes what was imported to be computed at position 0, and turns its keys.
    """

    @property
    def offset(self) -> int:
        """Where the first token stands."""

    def keys(self, layer: int) -> np.ndarray:
        """A layer's keys that a next token can attend to, float32 `[tokens, heads, dim]`."""

    def take_layers(self, other: Any, kinds: Collection[LayerKind]) -> None:
        """Take the layers of these kinds from another context at the same place."""


@runtime_checkable
class Relocating(Protocol):
    """What an engine that can move states has beside `Engine`."""

    def open_context_at(
        self, capacity: int, offset: int, moved: Collection[LayerKind] | None = None
    ) -> OffsetContext:
        """An empty context for `capacity` tokens whose first one stands at position `offset`.
        States that are imported into it are moved there, in layers of the kinds `moved`."""


def relocating(engine: Engine) -> Relocating:
    """The side of an engine that moves states.

    Raises:
        UnsupportedModel: the engine has none, or the model's keys cannot be moved.
    """
    if isinstance(engine, Relocating):
        return engine
    if engine.name == "transformers":
        from kvgraft.engines.transformers.engine import TransformersEngine
        from kvgraft.engines.transformers.relocate import Relocator

        if isinstance(engine, TransformersEngine):
            return Relocator(engine)
    raise UnsupportedModel(
        f"the {engine.name} engine does not move states",
        where=engine.model,
        hint="the transformers engine does, for models with a standard rotary embedding",
    )


@dataclass(frozen=True)
class Measured:
    """What moving costs a model at one offset: KL(computed there || moved there) in nats over
    `rows` next-token distributions behind texts of `block_tokens` tokens."""

    fingerprint: Fingerprint
    offset: int
    block_tokens: int
    rows: int
    kl_mean_nats: float
    kl_max_nats: float


def measured_in(document: Mapping[str, Any], offset: int) -> Measured:
    """The figures of one offset in what `kvgraft probe --json` printed.

    Raises:
        InputError: it is no such document.
        RelocationRefused: this offset was not measured.
    """
    try:
        fields = document["fingerprint"]
        fingerprint = Fingerprint.of({str(name): str(value) for name, value in fields.items()})
        found = [row for row in document["offsets"] if row["offset"] == offset]
        if not found:
            raise _not_measured(offset)
        figures = found[0]["relocated"]
        mean, largest = (float(figures[name]) for name in ("kl_mean_nats", "kl_max_nats"))
        if not (0 <= mean < math.inf and 0 <= largest < math.inf and int(figures["rows"]) > 0):
            raise ValueError("its figures are no measurement")
        return Measured(
            fingerprint=fingerprint,
            offset=offset,
            block_tokens=int(document["block_tokens"]),
            rows=int(figures["rows"]),
            kl_mean_nats=mean,
            kl_max_nats=largest,
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"not the document of a probe: {type(error).__name__}: {error}",
            hint="make one with 'kvgraft probe MODEL --json'",
        ) from error


@dataclass
class Relocated:
    """A context at an offset that holds a stored text, and what is known about its error.

    Close the context when done. `report.reused_tokens` were moved; the rest was computed there.
    """

    context: OffsetContext
    report: ReuseReport
    measured: Measured
    approximate: bool = True  # always: there is no exact way to move a state

    def as_dict(self) -> dict[str, Any]:
        """What every answer out of this context has to carry."""
        return {
            "approximate": True,
            "exact": False,
            "offset": self.measured.offset,
            "kl_mean_nats": self.measured.kl_mean_nats,
            "kl_max_nats": self.measured.kl_max_nats,
            "kl_rows": self.measured.rows,
            "kl_block_tokens": self.measured.block_tokens,
        }


def relocate(
    engine: Engine,
    store: ChunkStore,
    ids: Sequence[int] | np.ndarray,
    offset: int,
    *,
    approximate: bool = False,
    measured: Measured | None = None,
    salt: bytes = PUBLIC_SALT,
    room: int = 0,
) -> Relocated:
    """The state of `ids`, captured at position 0, at positions `offset` and on; nothing stands
    before it. `room` more tokens will fit. Blocks that are not stored are computed at the offset.
    Nothing is stored.

    Raises:
        UsageError: no offset.
        RelocationRefused: not `approximate`, or not measured for this model and offset.
        UnsupportedModel: the model's states cannot be moved.
        ContextTooLong: it passes the model's context.
    """
    if offset < 1:
        raise UsageError(
            f"a state is moved by 1 position or more, not by {offset}",
            hint="at its own place it is grafted exactly",
        )
    if not approximate:
        raise RelocationRefused(
            "a state at another place than its own is not exact",
            where=f"offset {offset}",
            hint="capture it there, or ask for it as approximate",
        )
    if measured is None or measured.offset != offset:
        raise _not_measured(offset)
    if differing := engine.fingerprint.differing(measured.fingerprint):
        raise RelocationRefused(
            f"what moving costs was measured on something else: {', '.join(differing)} differ",
            where=f"offset {offset}",
            hint=f"kvgraft probe MODEL --offsets {offset}, with the same options",
        )
    if offset + len(ids) + room > engine.context_tokens:
        raise ContextTooLong(
            f"{len(ids)} tokens and {room} new ones from position {offset} on do not fit"
            f" {engine.context_tokens}",
            hint="choose a smaller offset",
        )
    view = _EngineAt(engine, relocating(engine), offset)
    computed = compute_prompt(view, store, ids, salt=salt, keep=Keep.NOTHING, room=room)
    assert view.opened is not None
    return Relocated(view.opened, computed.report, measured)


def _not_measured(offset: int) -> RelocationRefused:
    return RelocationRefused(
        "what moving costs this model was not measured",
        where=f"offset {offset}",
        hint=f"kvgraft probe MODEL --offsets {offset} measures it",
    )


class _EngineAt:
    """An engine as `compute_prompt` takes it, whose contexts stand at an offset.

    Keys, plan and fingerprint are those of position 0: what is looked up was captured there.
    """

    def __init__(self, engine: Engine, mover: Relocating, offset: int) -> None:
        self.name: str = engine.name
        self.model: str = engine.model
        self.fingerprint = engine.fingerprint
        self.spec = engine.spec
        self.model_size = engine.model_size
        self.form = engine.form
        self.context_tokens: int = engine.context_tokens - offset
        self.capabilities: Capabilities = engine.capabilities
        self.tokenizer: Tokenizer = engine.tokenizer
        self.opened: OffsetContext | None = None
        self._mover = mover
        self._offset = offset

    def open_context(self, capacity: int) -> OffsetContext:
        self.opened = self._mover.open_context_at(capacity, self._offset)
        return self.opened

    def monolithic_logits(self, ids: np.ndarray) -> np.ndarray:
        raise EngineError("there is no monolithic call at an offset")

    def close(self) -> None:
        return
