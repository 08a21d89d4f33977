"""From token ids to forward calls to chunk keys.

The plan is derived from the request alone, never from what a store happens to hold (invariant
I1). It is a grid: full blocks of `block` rows starting at absolute multiples of `block`, then one
call for the tail. In the form *padded rungs* the tail is padded to the smallest rung that holds
it; in the form *bare tail* it runs in its own length, as recurrent layers need (padding would
enter their states). A request may declare *cuts*: there a call ends early, and the grid begins
anew. A cold run and a grafted run therefore make the same calls with the same shapes, which is all
that an engine which is deterministic for equal shapes needs in order to give the same bits.
`docs/decisions/` has the measurements behind the form (1) and the reasons for cuts (5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from blake3 import blake3

from kvgraft import limits
from kvgraft.errors import ContextTooLong, InputError, LimitExceeded, UsageError

_ROOT_CONTEXT = "kvgraft 2026-11 v1 plan root"
_CHUNK_CONTEXT = "kvgraft 2026-11 v1 chunk key"
PUBLIC_SALT = bytes(32)

TokenIds = np.ndarray  # uint32 [tokens]


@dataclass(frozen=True)
class PlanForm:
    """`block` and `rungs` are rows per call; `pad_id` fills the rows behind a tail. Without rungs
    tails are bare."""

    block: int
    rungs: tuple[int, ...]
    pad_id: int = 0

    def __post_init__(self) -> None:
        rising = tuple(sorted(set(self.rungs))) == self.rungs
        if min(self.block, *self.rungs, 1) < 1 or not rising:
            raise UsageError(f"rungs must rise and block be positive: {self}")
        if self.rungs and self.rungs[-1] != self.block:
            raise UsageError(f"the last rung is the block itself: {self}")

    @property
    def name(self) -> str:
        """The form as the fingerprint states it."""
        if not self.rungs:
            return f"grid-bare-tail/block={self.block}"
        rungs = ",".join(str(rung) for rung in self.rungs)
        return f"grid-padded-rungs/block={self.block}/rungs={rungs}/pad={self.pad_id}"

    def tail_rows(self, count: int) -> int:
        """Rows of the call for a tail of `count` tokens, where the context has room for them."""
        return next((rung for rung in self.rungs if rung >= count), count)


@dataclass(frozen=True)
class Call:
    """One forward call: tokens `[start, start + count)`, run in a shape of `rows` rows."""

    start: int
    count: int
    rows: int

    @property
    def end(self) -> int:
        return self.start + self.count


def as_token_ids(ids: Sequence[int] | np.ndarray) -> TokenIds:
    """Token ids as a uint32 array `[tokens]`.

    Raises:
        InputError: not one-dimensional, negative, or beyond 32 bits.
    """
    try:
        array = np.asarray(ids)
    except (ValueError, OverflowError) as error:  # lists of unequal length, for one
        raise InputError("token ids must be a flat list of integers") from error
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InputError("token ids must be a flat list of integers")
    # Among integers numpy takes a truth value for a number.
    if not isinstance(ids, np.ndarray) and any(isinstance(id, bool) for id in ids):
        raise InputError("token ids must be a flat list of integers")
    if array.size and (int(array.min()) < 0 or int(array.max()) > 0xFFFFFFFF):
        raise InputError("token ids must be between 0 and 2**32 - 1")
    return np.ascontiguousarray(array, dtype="<u4")


def plan_calls(
    tokens: int, form: PlanForm, context_tokens: int, cuts: Sequence[int] = ()
) -> tuple[Call, ...]:
    """The forward calls that compute a prompt of `tokens` tokens.

    `cuts`: lengths in tokens at which a call ends early, whatever the order they are named in; 0
    and `tokens` itself, where one ends anyway, change nothing. A tail's padding never reaches past
    the context: there the call has the room that is left.

    Raises:
        InputError: no tokens.
        ContextTooLong: more tokens than the context holds.
        UsageError: a cut outside `[0, tokens]`.
    """
    if tokens < 1:
        raise InputError("the prompt is empty", hint="give at least one token")
    if tokens > context_tokens:
        raise ContextTooLong(
            f"the prompt has {tokens} tokens, the model's context holds {context_tokens}",
            hint="shorten the prompt, or use a model with a longer context",
        )
    edges = sorted({0, tokens, *cuts})
    if edges[0] < 0 or edges[-1] > tokens:
        raise UsageError(f"cuts are within the prompt's {tokens} tokens, not {sorted(cuts)}")
    needed = sum(-((start - end) // form.block) for start, end in pairwise(edges))
    if needed > limits.MAX_PLAN_CALLS:
        raise LimitExceeded(f"{tokens} tokens need more than {limits.MAX_PLAN_CALLS} calls")
    calls = []
    for first, end in pairwise(edges):
        for start in range(first, end, form.block):
            count = min(form.block, end - start)
            calls.append(Call(start, count, min(form.tail_rows(count), context_tokens - start)))
    return tuple(calls)


def settled_calls(calls: Sequence[Call], form: PlanForm, cuts: Sequence[int] = ()) -> int:
    """How many of a plan's calls a longer prompt with the same cuts makes too: all of them, or all
    but a tail that no cut ends."""
    tail = calls[-1].count < form.block and calls[-1].end not in cuts
    return len(calls) - tail


def plan_root(fingerprint: bytes, salt: bytes = PUBLIC_SALT) -> bytes:
    """The digest every chunk key of one fingerprint and tenant starts from (32 bytes)."""
    if len(fingerprint) != 32 or len(salt) != 32:
        raise UsageError("fingerprint digest and tenant salt are 32 bytes each")
    return blake3(fingerprint + salt, derive_key_context=_ROOT_CONTEXT).digest()


def chunk_keys(root: bytes, ids: TokenIds, calls: Sequence[Call]) -> tuple[bytes, ...]:
    """One 32-byte key per call: a digest chained over every call before it.

    The shape of the call is part of its key, so a padded tail and the same tokens inside a full
    block have different keys; so have equal tokens after different beginnings.
    """
    keys = []
    parent = root
    for call in calls:
        shape = np.array([call.start, call.count, call.rows], dtype="<u8").tobytes()
        tokens = ids[call.start : call.end].tobytes()
        parent = blake3(parent + shape + tokens, derive_key_context=_CHUNK_CONTEXT).digest()
        keys.append(parent)
    return tuple(keys)
