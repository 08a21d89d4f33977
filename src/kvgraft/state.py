"""Typed layer states: what a frozen model carries after reading tokens, and in which order.

No tensors live here, only their description. A `StateSpec` says, for one engine and model, which
tensors a chunk (what one forward call adds) consists of. From it alone follow the byte layout of
every object on disk (`kvgraft.blob.payload`) and the buffers an engine must offer
(`kvgraft.engines.base.Context.import_views`). Axes are always token-major, `[tokens, heads, dim]`:
a run of tokens is then one contiguous run of bytes, whatever the context's capacity.

A chunk is up to three objects, because their lives differ:

`KEEP`
    what every later token needs: the token ids, and keys and values of full-attention layers (or
    their latents). Every chunk has one: look-up walks along them.
`NEAR`
    what only near tokens need: keys and values of sliding-window and chunked-local layers. Per
    layer the last `min(count, window - 1)` tokens of the chunk; older ones can never be attended
    to again. Stored near the points where a run may resume, not for every chunk.
`END`
    what only a point needs: recurrent and convolution states, and the final hidden state of the
    last token, from which a one-row head gives the next-token logits (or those logits themselves,
    for an engine that cannot run its head alone).
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
    """How a layer remembers. A layer with attention and a recurrent part side by side is of its
    attention's kind and has `states` too."""

    FULL = "full"
    SLIDING = "sliding"
    CHUNKED = "chunked"
    LATENT = "latent"
    RECURRENT = "recurrent"
    NONE = "none"


_WINDOWED = (LayerKind.SLIDING, LayerKind.CHUNKED)
_ATTENTION = (LayerKind.FULL, LayerKind.LATENT, *_WINDOWED)


@dataclass(frozen=True)
class PointState:
    """One recurrent or convolution state of a layer, `shape` as the engine keeps it for one
    sequence: the whole of it belongs to one point of the token sequence."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise UnsupportedModel(f"state dtype {self.dtype!r} is not carried")
        if not self.shape or min(self.shape) < 1:
            raise UnsupportedModel(f"state sizes must be positive: {self}")


@dataclass(frozen=True)
class LayerSpec:
    """One layer's state.

    `heads` KV heads; key and value sizes in elements per head; `window` in tokens, for sliding
    layers the window itself, for chunked-local ones the chunk; `index_dim` elements per token of
    a sparse-attention index. Of a latent layer `key_dim` is the latent's size and `value_dim` that
    of the rotated part beside it, which may be 0. `states` are the layer's recurrent part.
    """

    kind: LayerKind
    heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    dtype: str = "F32"
    window: int = 0
    index_dim: int = 0
    states: tuple[PointState, ...] = ()

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise UnsupportedModel(f"layer dtype {self.dtype!r} is not carried")
        if (self.kind in _WINDOWED) != (self.window >= 2):
            raise UnsupportedModel(f"a windowed layer, and only it, has a window >= 2: {self}")
        sizes = (self.heads, self.key_dim)
        if self.kind in _ATTENTION:
            latent = self.kind is LayerKind.LATENT
            if min(*sizes, self.value_dim + latent) < 1 or min(self.value_dim, self.index_dim) < 0:
                raise UnsupportedModel(f"layer sizes do not fit its kind: {self}")
        elif any((*sizes, self.value_dim, self.index_dim)):
            raise UnsupportedModel(f"a layer without attention has no keys and values: {self}")
        if (self.kind is LayerKind.RECURRENT and not self.states) or (
            self.kind is LayerKind.NONE and self.states
        ):
            raise UnsupportedModel(f"a recurrent layer, and no empty one, has states: {self}")

    @property
    def role(self) -> Role | None:
        """The object its tokens are in; None where it keeps nothing per token."""
        if self.kind in _WINDOWED:
            return Role.NEAR
        return Role.KEEP if self.kind in _ATTENTION else None

    @property
    def parts(self) -> tuple[tuple[str, int, int], ...]:
        """What it keeps per token: `(name, heads, dim)`, in byte order."""
        if self.kind not in _ATTENTION:
            return ()
        first, second = ("latent", "rope") if self.kind is LayerKind.LATENT else ("key", "value")
        parts = [
            (first, self.heads, self.key_dim),
            (second, self.heads, self.value_dim),
            ("index", 1, self.index_dim),
        ]
        return tuple(part for part in parts if part[2])

    @property
    def token_bytes(self) -> int:
        """Bytes it keeps per token."""
        return sum(heads * dim for _, heads, dim in self.parts) * DTYPE_BYTES[self.dtype]

    def rows_kept(self, count: int) -> int:
        """How many of a chunk's `count` tokens its object holds."""
        return min(count, self.window - 1) if self.window else count


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
    """All layers in order, and the size, dtype and name of what an end point gives the next-token
    logits from: the final hidden state, or the logits themselves."""

    layers: tuple[LayerSpec, ...]
    hidden_dim: int
    hidden_dtype: str
    end_name: str = "hidden"

    def __post_init__(self) -> None:
        if not 1 <= len(self.layers) <= limits.MAX_LAYERS:
            raise UnsupportedModel(f"{len(self.layers)} layers; 1 to {limits.MAX_LAYERS} allowed")
        if self.hidden_dim < 1 or self.hidden_dtype not in DTYPE_BYTES:
            raise UnsupportedModel(
                f"an end point of {self.hidden_dim} x {self.hidden_dtype!r} is not carried"
            )

    @cached_property
    def _hash(self) -> int:
        return hash((self.layers, self.hidden_dim, self.hidden_dtype, self.end_name))

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
            out.append(TensorSpec(self.end_name, self.hidden_dtype, (self.hidden_dim,)))
        for number, layer in enumerate(self.layers):
            prefix = f"layer.{number:04d}"
            if role is Role.END:
                out += [
                    TensorSpec(f"{prefix}.{state.name}", state.dtype, state.shape, number)
                    for state in layer.states
                ]
            elif layer.role is role:
                rows = layer.rows_kept(count)
                out += [
                    TensorSpec(f"{prefix}.{name}", layer.dtype, (rows, heads, dim), number)
                    for name, heads, dim in layer.parts
                ]
        return tuple(out)

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """The roles a chunk of this model may have, `END` apart."""
        windows = any(layer.role is Role.NEAR for layer in self.layers)
        return (Role.KEEP, Role.NEAR) if windows else (Role.KEEP,)

    @cached_property
    def resumes_with(self) -> tuple[Role, ...]:
        """What a point needs, beside every `KEEP` before it, for a run to go on from there."""
        recurrent = any(layer.states for layer in self.layers)
        return (*self.roles[1:], *((Role.END,) if recurrent else ()))

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes of all layers' states, sorted."""
        parts = {layer.dtype for layer in self.layers if layer.parts}
        return tuple(sorted(parts | {s.dtype for layer in self.layers for s in layer.states}))

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

    def kind_of(self, role: Role, tensor: TensorSpec) -> str:
        """The layer kind of a tensor of an object of `role`; `ids` and `end` belong to none. Of a
        layer with both parts, states count as recurrent."""
        if tensor.layer < 0:
            return "ids" if tensor.name == "ids" else "end"
        kind = LayerKind.RECURRENT if role is Role.END else self.layers[tensor.layer].kind
        return kind.value

    @lru_cache(maxsize=4096)  # noqa: B019 - specs live as long as their engines
    def bytes_by_kind(self, role: Role, count: int) -> dict[str, int]:
        """Bytes of a chunk's object of `role` by `kind_of` its tensors."""
        sizes: dict[str, int] = {}
        for tensor in self.tensors(role, count):
            kind = self.kind_of(role, tensor)
            sizes[kind] = sizes.get(kind, 0) + tensor.size_bytes
        return sizes
