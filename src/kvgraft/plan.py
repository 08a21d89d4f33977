"""From token ids to forward calls to chunk keys.

The plan is derived from the request alone, never from what a store happens to hold (invariant
I1). It is a grid: full blocks of `block` rows starting at absolute multiples of `block`, then one
call for the tail. In the form *padded rungs* the tail is padded to the smallest rung that holds
it; in the form *bare tail* it runs in its own length, as recurrent layers need (padding would
enter their states). A cold run and a grafted run therefore make the same calls with the same
shapes, which is all that an engine which is deterministic for equal shapes needs in order to give
the same bits. `docs/decisions/0001-plan-form.md` has the measurements behind the choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


def plan_calls(tokens: int, form: PlanForm, context_tokens: int) -> tuple[Call, ...]:
    """The forward calls that compute a prompt of `tokens` tokens.

    A tail's padding never reaches past the context: there the call has the room that is left.

    Raises:
        InputError: no tokens.
        ContextTooLong: more tokens than the context holds.
    """
    if tokens < 1:
        raise InputError("the prompt is empty", hint="give at least one token")
    if tokens > context_tokens:
        raise ContextTooLong(
            f"the prompt has {tokens} tokens, the model's context holds {context_tokens}",
            hint="shorten the prompt, or use a model with a longer context",
        )
    if tokens > limits.MAX_PLAN_CALLS * form.block:
        raise LimitExceeded(f"{tokens} tokens need more than {limits.MAX_PLAN_CALLS} calls")
    full = tokens // form.block
    calls = [Call(number * form.block, form.block, form.block) for number in range(full)]
    start = full * form.block
    if tail := tokens - start:
        calls.append(Call(start, tail, min(form.tail_rows(tail), context_tokens - start)))
    return tuple(calls)


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
