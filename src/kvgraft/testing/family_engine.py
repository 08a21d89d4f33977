"""What a check of a family works with: an engine over its model, a prompt, points to resume at."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from kvgraft.engines.base import Engine, Message
from kvgraft.plan import PlanForm
from kvgraft.state import DTYPE_BYTES, LayerKind, LayerSpec, StateSpec
from kvgraft.testing.families import build_model

if TYPE_CHECKING:
    from kvgraft.engines.transformers.engine import TransformersEngine

DTYPES = {"fp32": "F32", "bf16": "BF16"}
FORM = PlanForm(block=16, rungs=(4, 8, 16))
TOKENS = 150  # nine blocks and a tail, past every window and chunk of the catalogue
POINTS = 5
_FIRST_WORD, _WORDS = 4, 380  # between the ids that are special to some model of the catalogue
FAR_BLOCKS = 7


class StubTokenizer:
    """Nothing here turns text into ids."""

    digest = template_digest = "none"
    bos_id = None
    stop_ids: frozenset[int] = frozenset()

    def encode(self, text: str) -> list[int]:
        """No ids."""
        return []

    def decode(self, ids: Sequence[int]) -> str:
        """No text."""
        return ""

    def render(self, messages: Sequence[Message]) -> str:
        """No template."""
        return ""


def engine_of(name: str, dtype: str) -> TransformersEngine:
    """An engine over the family's model in one of `DTYPES`.

    Raises:
        UnsupportedModel: the engine does not carry this family.
    """
    from kvgraft.engines.transformers.engine import TransformersEngine
    from kvgraft.engines.transformers.layers import TORCH_DTYPES

    model = build_model(name, dtype=TORCH_DTYPES[DTYPES[dtype]])
    digest = hashlib.sha256()
    for key, tensor in sorted(model.state_dict().items()):
        digest.update(key.encode() + tensor.detach().double().numpy().tobytes())
    return TransformersEngine(
        model,
        StubTokenizer(),
        source=f"family:{name}",
        weights_digest=digest.hexdigest(),
        form=FORM,
    )


def prompt_ids() -> np.ndarray:
    """The prompt of every check."""
    rng = np.random.default_rng(0)
    return rng.integers(_FIRST_WORD, _WORDS, TOKENS).astype(np.uint32)


def resume_points(spec: StateSpec, block: int) -> list[int]:
    """Tokens after which the prompt is resumed: one block, the last full block that no window has
    left, the one behind it, one far past it, and the end of the prompt, tail and all. Where these
    are fewer than five, further blocks."""
    inside = max(spec.largest_window - 1, 0) // block * block
    points = {block, inside, inside + block, FAR_BLOCKS * block} - {0}
    more = (block * number for number in range(2, TOKENS // block))
    while len(points) < POINTS - 1:
        points.add(next(more))
    return [*sorted(points), TOKENS]


def described(engine: Engine) -> dict[str, Any]:
    """Layers, plan, bytes and fingerprint as plain data: what every token adds by layer kind, and
    what a point needs beside that, windows and states."""
    spec = engine.spec
    tokens: dict[str, int] = {}
    points: dict[str, int] = {}
    for layer in spec.layers:
        sizes = points if layer.window else tokens
        if layer.token_bytes:
            rows = layer.window - 1 if layer.window else 1
            sizes[layer.kind.value] = sizes.get(layer.kind.value, 0) + rows * layer.token_bytes
        for state in layer.states:
            size = DTYPE_BYTES[state.dtype] * int(np.prod(state.shape))
            points["states"] = points.get("states", 0) + size
    return {
        "layers": layers_text(spec.layers),
        "plan": engine.form.name,
        "token_bytes": tokens,
        "point_bytes": points,
        "fingerprint": engine.fingerprint.digest.hex(),
    }


def layers_text(layers: Sequence[LayerSpec]) -> str:
    """Layer kinds in order, equal neighbours counted: "2 sliding(24), full"."""
    return ", ".join(
        f"{count} {word}" if (count := len(list(group))) > 1 else word
        for word, group in groupby(map(_word, layers))
    )


def _word(layer: LayerSpec) -> str:
    states = sorted({state.name.split(".")[0] for state in layer.states})
    if layer.kind is LayerKind.RECURRENT:
        return "+".join(states)
    window = f"({layer.window})" if layer.window else ""
    return "+".join([layer.kind.value + window, *["index"] * bool(layer.index_dim), *states])
