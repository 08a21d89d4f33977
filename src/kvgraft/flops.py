"""Model FLOPs: the floating-point operations that a model's definition asks for.

What an engine does beside that (padding, masked places, dequantising) is not counted, nor what it
saves; so the number compares work across engines. A multiplication and an addition are two:

    2 * body_parameters * tokens
    + 2 * head_parameters * rows of logits
    + 2 * query_heads * (key_dim + value_dim) * positions seen    for each layer and token

The first two terms are the usual 2N per token (Kaplan et al., 2020), with tables that are only
looked up left out and the head counted where it is used. The third is attention's two products;
under a causal mask the token at position p sees p + 1 positions, in a window or chunk fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvgraft.state import LayerKind, LayerSpec, StateSpec


@dataclass(frozen=True)
class ModelSize:
    """What a token is multiplied with.

    `body_parameters`: of all layers, without tables that are only looked up (embeddings).
    `head_parameters`: of the matrix that gives logits, tied to a table or not. `query_heads` of
    every layer with attention. An engine that does not know them of a model declares None: with
    experts, a token meets a part of the parameters, with shared layers some of them twice.
    """

    body_parameters: int
    head_parameters: int
    query_heads: int


def forward_flops(
    size: ModelSize | None, spec: StateSpec, *, tokens: int, context_tokens: int, logit_rows: int
) -> int | None:
    """Model FLOPs of a forward pass over `tokens`, behind `context_tokens` others, which gives
    `logit_rows` rows of logits.

    None where the size is not known, or a layer is of a kind whose products are not known from its
    state: latent, recurrent, sparse attention, or a layer that keeps nothing.
    """
    if size is None:
        return None
    flops = 2 * (size.body_parameters * tokens + size.head_parameters * logit_rows)
    for layer in spec.layers:
        seen = _positions_seen(layer, context_tokens, tokens)
        if seen is None:
            return None
        flops += 2 * size.query_heads * (layer.key_dim + layer.value_dim) * seen
    return flops


def request_flops(
    size: ModelSize | None,
    spec: StateSpec,
    *,
    reused_tokens: int,
    computed_tokens: int,
    steps: Sequence[int],
) -> int | None:
    """Model FLOPs of a prompt of which `reused_tokens` were restored, and of decoding behind it.

    `steps`: for each continuation the rows of logits that chose its tokens. The first row is the
    prompt's own, and the last token chosen is not computed any more.
    """
    prompt_tokens = reused_tokens + computed_tokens
    flops = forward_flops(
        size, spec, tokens=computed_tokens, context_tokens=reused_tokens, logit_rows=0
    )
    for rows in steps:
        lane = forward_flops(
            size, spec, tokens=max(0, rows - 1), context_tokens=prompt_tokens, logit_rows=rows
        )
        if flops is None or lane is None:
            return None
        flops += lane
    return flops


def _positions_seen(layer: LayerSpec, start: int, count: int) -> int | None:
    """Of the tokens at positions `start` to `start + count`, how many positions they see in all,
    each its own included; None for a layer of another kind than these."""
    if layer.states or layer.index_dim:
        return None
    if layer.kind is LayerKind.FULL:
        return _triangle(start + count) - _triangle(start)
    if layer.kind is LayerKind.SLIDING:
        return _windowed(start + count, layer.window) - _windowed(start, layer.window)
    if layer.kind is LayerKind.CHUNKED:
        return _chunked(start + count, layer.window) - _chunked(start, layer.window)
    return None


def _triangle(count: int) -> int:
    """Positions that the first `count` tokens see: 1 + 2 + ... + count."""
    return count * (count + 1) // 2


def _windowed(count: int, window: int) -> int:
    full = min(count, window)
    return _triangle(full) + (count - full) * window


def _chunked(count: int, chunk: int) -> int:
    return count // chunk * _triangle(chunk) + _triangle(count % chunk)
