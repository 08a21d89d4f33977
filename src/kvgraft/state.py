"""Typed layer states: what a frozen model carries after reading tokens, and in which order.

No tensors live here, only their description. A `StateSpec` says, for one engine and model, which
tensors a chunk (what one forward call adds) consists of. From it alone follow the byte layout of
every object on disk (`kvgraft.blob.payload`) and the buffers an engine must offer
(`kvgraft.engines.base.Context.views`). Axes are always token-major, `[tokens, heads, dim]`: a run
of tokens is then one contiguous run of bytes, whatever the context's capacity.

A chunk is up to three objects, because their lives differ:

`KEEP`
    what every later token needs: keys and values of full-attention layers.
`NEAR`
    what only near tokens need: keys and values of sliding-window layers. Per layer the last
    `min(count, window - 1)` tokens of the chunk; older ones can never be attended to again.
`END`
    what only the end point needs: the final hidden state of the last token, from which a one-row
    head gives the next-token logits. Recurrent and convolution states belong here too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache

from kvgraft import limits
from kvgraft.errors import UnsupportedModel, UsageError

# safetensors dtype name -> bytes per element
DTYPE_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "U32": 4}


class Role(Enum):
    """Which of a chunk's objects; the value is its byte in headers and indexes."""

    KEEP = 1
    NEAR = 2
    END = 3


class LayerKind(Enum):
    """How a layer remembers. `LATENT` and `RECURRENT` are named so that they can be refused."""

    FULL = "full"
    SLIDING = "sliding"
    LATENT = "latent"
    RECURRENT = "recurrent"


@dataclass(frozen=True)
class LayerSpec:
    """One layer's state: `heads` KV heads, key and value sizes in elements, window in tokens."""

    kind: LayerKind
    heads: int
    key_dim: int
    value_dim: int
    dtype: str
    window: int = 0

    def __post_init__(self) -> None:
        if self.kind not in (LayerKind.FULL, LayerKind.SLIDING):
            raise UnsupportedModel(
                f"layers of kind {self.kind.value!r} are not carried by this version",
                hint="use a model whose layers are full or sliding-window attention",
            )
        if self.dtype not in DTYPE_BYTES:
            raise UnsupportedModel(f"layer dtype {self.dtype!r} is not carried")
        if min(self.heads, self.key_dim, self.value_dim) < 1:
            raise UnsupportedModel(f"layer sizes must be positive: {self}")
        if (self.kind is LayerKind.SLIDING) != (self.window >= 2):
            raise UnsupportedModel(f"a sliding layer, and only it, has a window >= 2: {self}")

    @property
    def role(self) -> Role:
        return Role.KEEP if self.kind is LayerKind.FULL else Role.NEAR

    @property
    def token_bytes(self) -> int:
        """Bytes of keys and values per token."""
        return self.heads * (self.key_dim + self.value_dim) * DTYPE_BYTES[self.dtype]

    def rows_kept(self, count: int) -> int:
        """How many of a chunk's `count` tokens its object holds."""
        return count if self.kind is LayerKind.FULL else min(count, self.window - 1)


@dataclass(frozen=True)
class TensorSpec:
    """A tensor inside an object. `layer` is -1 for what belongs to no layer."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    layer: int = -1

    @cached_property
    def size_bytes(self) -> int:
        size = DTYPE_BYTES[self.dtype]
        for axis in self.shape:
            size *= axis
        return size


@dataclass(frozen=True)
class StateSpec:
    """All layers in order, and the size and dtype of the final hidden state."""

    layers: tuple[LayerSpec, ...]
    hidden_dim: int
    hidden_dtype: str

    def __post_init__(self) -> None:
        if not 1 <= len(self.layers) <= limits.MAX_LAYERS:
            raise UnsupportedModel(f"{len(self.layers)} layers; 1 to {limits.MAX_LAYERS} allowed")

    @cached_property
    def _hash(self) -> int:
        return hash((self.layers, self.hidden_dim, self.hidden_dtype))

    def __hash__(self) -> int:
        # A spec is a cache key on the restore path; hashing hundreds of fields each time is not.
        return self._hash

    @lru_cache(maxsize=4096)  # noqa: B019 - specs live as long as their engines
    def tensors(self, role: Role, count: int) -> tuple[TensorSpec, ...]:
        """The tensors of a chunk's object of `role`, `count` tokens long, in byte order.

        The token ids come first in every object, so that a reader can compare them before
        anything else is believed.
        """
        if count < 1:
            raise UsageError(f"a chunk has at least one token, not {count}")
        out = [TensorSpec("ids", "U32", (count,))]
        if role is Role.END:
            out.append(TensorSpec("hidden", self.hidden_dtype, (self.hidden_dim,)))
            return tuple(out)
        for number, layer in enumerate(self.layers):
            if layer.role is not role:
                continue
            rows = layer.rows_kept(count)
            key = (rows, layer.heads, layer.key_dim)
            value = (rows, layer.heads, layer.value_dim)
            out.append(TensorSpec(f"layer.{number:04d}.key", layer.dtype, key, number))
            out.append(TensorSpec(f"layer.{number:04d}.value", layer.dtype, value, number))
        return tuple(out)

    def roles(self) -> tuple[Role, ...]:
        """The roles a chunk of this model has, `END` apart (it exists at chosen points only)."""
        present = {layer.role for layer in self.layers}
        return tuple(role for role in (Role.KEEP, Role.NEAR) if role in present)

    @property
    def largest_window(self) -> int:
        """Tokens; 0 where no layer slides."""
        return max((layer.window for layer in self.layers), default=0)

    def near_start(self, length: int) -> int:
        """The first position that a context of `length` tokens can still attend to in any
        sliding layer; `length` itself where no layer slides."""
        if not self.largest_window:
            return length
        return max(0, length - (self.largest_window - 1))

    def bytes_per_token(self, role: Role) -> int:
        """Bytes each token adds to objects of `role` (ids and headers not counted)."""
        return sum(layer.token_bytes for layer in self.layers if layer.role is role)
