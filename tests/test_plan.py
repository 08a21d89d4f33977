"""From token ids to calls to keys: calls cover the ids on the grid, keys change with anything."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import kvgraft.plan
from kvgraft import limits
from kvgraft.engines.toy import ToyEngine
from kvgraft.errors import ContextTooLong, InputError, LimitExceeded, UsageError
from kvgraft.plan import (
    PUBLIC_SALT,
    Call,
    PlanForm,
    as_token_ids,
    chunk_keys,
    plan_calls,
    plan_root,
    settled_calls,
)
from toys import cold, memory_chunks, prompt, run

SOURCES = Path(__file__).parents[1] / "src"
FORM = PlanForm(16, (4, 8, 16))
FINGERPRINT = bytes(range(32))

FORMS = st.builds(
    lambda block, rungs: PlanForm(block, (*sorted(r for r in rungs if r < block), block)),
    st.integers(1, 300),
    st.sets(st.integers(1, 300), max_size=5),
)


# --- calls ------------------------------------------------------------------------------------


@given(tokens=st.integers(1, 5000), form=FORMS, spare=st.integers(0, 400))
def test_calls_cover_the_ids_exactly_and_on_the_grid(
    tokens: int, form: PlanForm, spare: int
) -> None:
    context = tokens + spare
    calls = plan_calls(tokens, form, context)
    assert [call.start for call in calls] == [0, *(call.end for call in calls[:-1])]
    assert calls[-1].end == tokens
    assert all(call.start % form.block == 0 for call in calls)
    assert all(call.count == call.rows == form.block for call in calls[:-1])
    last = calls[-1]
    assert 1 <= last.count <= last.rows <= form.block
    assert last.start + last.rows <= context


@given(tokens=st.integers(1, 5000), form=FORMS, spare=st.integers(0, 400))
def test_a_tail_runs_in_the_smallest_rung_or_in_the_room_that_is_left(
    tokens: int, form: PlanForm, spare: int
) -> None:
    last = plan_calls(tokens, form, tokens + spare)[-1]
    smallest = min(rung for rung in form.rungs if rung >= last.count)
    assert last.rows == min(smallest, tokens + spare - last.start)


@given(tokens=st.integers(1, 3000), more=st.integers(0, 3000), form=FORMS)
def test_a_longer_prompt_makes_the_same_full_calls(tokens: int, more: int, form: PlanForm) -> None:
    # What makes a stored prefix good for every prompt that begins with it.
    shorter, longer = (plan_calls(n, form, 10_000) for n in (tokens, tokens + more))
    full = tokens // form.block
    assert shorter[:full] == longer[:full]


def test_the_plan_spelled_out() -> None:
    assert plan_calls(37, FORM, 2048) == (Call(0, 16, 16), Call(16, 16, 16), Call(32, 5, 8))
    assert plan_calls(32, FORM, 2048) == (Call(0, 16, 16), Call(16, 16, 16))
    assert plan_calls(1, FORM, 2048) == (Call(0, 1, 4),)
    assert plan_calls(37, FORM, 38) == (Call(0, 16, 16), Call(16, 16, 16), Call(32, 5, 6))
    assert plan_calls(37, FORM, 37)[-1] == Call(32, 5, 5)


@given(
    tokens=st.integers(1, 2000),
    form=FORMS,
    spare=st.integers(0, 400),
    cuts=st.lists(st.integers(0, 2000), max_size=6),
)
def test_calls_end_at_cuts_and_the_grid_begins_anew(
    tokens: int, form: PlanForm, spare: int, cuts: list[int]
) -> None:
    cuts = [cut for cut in cuts if cut <= tokens]
    calls = plan_calls(tokens, form, tokens + spare, cuts)
    assert [call.start for call in calls] == [0, *(call.end for call in calls[:-1])]
    assert {tokens, *cuts} - {0} <= {call.end for call in calls}
    assert all(call.start + call.rows <= tokens + spare for call in calls)
    assert all(1 <= call.count <= call.rows <= form.block for call in calls)
    for first, end in pairwise(sorted({0, tokens, *cuts})):
        within = [call for call in calls if first <= call.start < end]
        plain = plan_calls(end - first, form, tokens + spare - first)
        assert within == [Call(first + one.start, one.count, one.rows) for one in plain]
    assert calls == plan_calls(tokens, form, tokens + spare, [0, *reversed(cuts), tokens])


def test_cuts_spelled_out() -> None:
    calls = plan_calls(37, FORM, 2048, (20,))
    assert calls == (Call(0, 16, 16), Call(16, 4, 4), Call(20, 16, 16), Call(36, 1, 4))
    assert settled_calls(calls, FORM, (20,)) == 3
    assert settled_calls(calls, FORM, (20, 37)) == 4
    assert settled_calls(plan_calls(32, FORM, 2048), FORM) == 2
    for beyond in (-1, 38):
        with pytest.raises(UsageError, match="within the prompt's 37 tokens"):
            plan_calls(37, FORM, 2048, (20, beyond))


def test_cuts_count_towards_the_calls_that_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_PLAN_CALLS", 3)
    assert len(plan_calls(35, FORM, 2048, (3,))) == 3
    with pytest.raises(LimitExceeded):
        plan_calls(35, FORM, 2048, (3, 5))


def test_prompts_that_do_not_fit() -> None:
    with pytest.raises(InputError):
        plan_calls(0, FORM, 100)
    with pytest.raises(ContextTooLong, match="101 tokens") as caught:
        plan_calls(101, FORM, 100)
    assert caught.value.hint
    too_many = limits.MAX_PLAN_CALLS + 1
    with pytest.raises(LimitExceeded):
        plan_calls(too_many, PlanForm(1, (1,)), too_many)


def test_as_many_calls_as_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_PLAN_CALLS", 3)
    assert len(plan_calls(48, FORM, 2048)) == 3
    with pytest.raises(LimitExceeded, match="49 tokens need more than 3 calls"):
        plan_calls(49, FORM, 2048)


@pytest.mark.parametrize(
    ("block", "rungs"),
    [(0, (0,)), (-1, (-1,)), (0, ()), (8, (4,)), (8, (8, 4)), (8, (4, 4, 8)), (8, (4, 8, 16))],
)
def test_forms_that_are_none(block: int, rungs: tuple[int, ...]) -> None:
    with pytest.raises(UsageError):
        PlanForm(block, rungs)


def test_the_forms_name_holds_all_of_it() -> None:
    forms = [FORM, PlanForm(16, (8, 16)), PlanForm(8, (4, 8)), replace(FORM, pad_id=7)]
    assert len({form.name for form in forms}) == 4
    assert FORM.name == "grid-padded-rungs/block=16/rungs=4,8,16/pad=0"


# --- token ids --------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 2**32 - 1), max_size=50))
def test_token_ids_are_little_endian_32_bit(ids: list[int]) -> None:
    array = as_token_ids(ids)
    assert array.dtype == np.dtype("<u4")
    assert array.tolist() == ids
    assert array.tobytes() == b"".join(id.to_bytes(4, "little") for id in ids)
    for kind in (np.uint32, np.int64, ">u4"):
        assert as_token_ids(np.array(ids, kind)).tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "ids",
    [
        [-1],
        [2**32],
        [2**70],
        [-1, 2**63],
        [1.0],
        ["1"],
        [None],
        [True],
        [[1, 2]],
        [[1], [1, 2]],
        5,
        "text",
        {"a": 1},
        np.zeros((2, 2), np.int64),
    ],
)
def test_what_is_no_list_of_token_ids(ids: Any) -> None:
    with pytest.raises(InputError):
        as_token_ids(ids)


# --- keys -------------------------------------------------------------------------------------


def keys_of(
    ids: Any,
    *,
    fingerprint: bytes = FINGERPRINT,
    salt: bytes = PUBLIC_SALT,
    calls: tuple[Call, ...] | None = None,
) -> tuple[bytes, ...]:
    array = as_token_ids(ids)
    return chunk_keys(
        plan_root(fingerprint, salt), array, calls or plan_calls(len(array), FORM, 2048)
    )


@given(ids=st.lists(st.integers(0, 300), min_size=2, max_size=60), data=st.data())
def test_any_other_id_changes_its_key_and_all_after_it_alone(ids: list[int], data: Any) -> None:
    position = data.draw(st.integers(0, len(ids) - 1))
    other = list(ids)
    other[position] += 1
    before = position // FORM.block
    mine, theirs = keys_of(ids), keys_of(other)
    assert mine[:before] == theirs[:before]
    assert all(a != b for a, b in zip(mine[before:], theirs[before:], strict=True))


@given(ids=st.lists(st.integers(0, 300), min_size=2, max_size=60), data=st.data())
def test_order_is_part_of_a_key(ids: list[int], data: Any) -> None:
    first, second = sorted(
        data.draw(st.lists(st.integers(0, len(ids) - 1), min_size=2, max_size=2, unique=True))
    )
    assume(ids[first] != ids[second])
    swapped = list(ids)
    swapped[first], swapped[second] = ids[second], ids[first]
    before = first // FORM.block
    assert keys_of(swapped)[before] != keys_of(ids)[before]


@given(
    digest=st.binary(min_size=32, max_size=32),
    bit=st.integers(0, 255),
    which=st.sampled_from(["fingerprint", "salt"]),
)
def test_any_bit_of_fingerprint_or_salt_changes_every_key(
    digest: bytes, bit: int, which: str
) -> None:
    flipped = bytearray(digest)
    flipped[bit // 8] ^= 1 << bit % 8
    ids = list(range(40))
    mine, theirs = (keys_of(ids, **{which: value}) for value in (digest, bytes(flipped)))
    assert not set(mine) & set(theirs)


def test_fingerprint_and_salt_do_not_stand_for_each_other() -> None:
    one, two = bytes(32), bytes([1]) * 32
    assert plan_root(one, two) != plan_root(two, one)


@pytest.mark.parametrize(("fingerprint", "salt"), [(31, 32), (33, 32), (32, 31), (32, 33), (0, 0)])
def test_digests_of_another_length_are_refused(fingerprint: int, salt: int) -> None:
    with pytest.raises(UsageError):
        plan_root(bytes(fingerprint), bytes(salt))


def test_the_shape_of_a_call_is_part_of_its_key() -> None:
    ids = list(range(16))
    calls = [
        Call(0, 16, 16),
        Call(0, 16, 32),  # more padding
        Call(16, 16, 16),  # another position, with the same ids below
    ]
    keys = [keys_of(ids + ids, calls=(call,))[0] for call in calls]
    keys.append(keys_of(ids, calls=(Call(0, 8, 8), Call(8, 8, 8)))[-1])  # cut otherwise
    keys.append(keys_of(ids[:8], calls=(Call(0, 8, 16),))[0])
    keys.append(keys_of(ids[:8], calls=(Call(0, 8, 8),))[0])
    assert len(set(keys)) == len(keys)


def test_equal_blocks_after_different_beginnings_have_different_keys() -> None:
    block = list(range(16))
    assert keys_of([1] * 16 + block)[1] != keys_of([2] * 16 + block)[1]


SCRIPT = """
from kvgraft.engines.toy import ToyEngine
from kvgraft.plan import as_token_ids, chunk_keys, plan_calls, plan_root
engine = ToyEngine()
ids = as_token_ids(list(range(100)))
calls = plan_calls(len(ids), engine.form, engine.context_tokens)
for key in chunk_keys(plan_root(engine.fingerprint.digest, bytes(range(32))), ids, calls):
    print(key.hex())
"""


def test_keys_are_equal_in_every_process() -> None:
    outputs = set()
    for seed in ("0", "1", "4294967295"):
        environment = {**os.environ, "PYTHONPATH": str(SOURCES), "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.add(done.stdout)
    (output,) = outputs
    assert len(set(output.split())) == 7


# --- a digest alone is no identity ------------------------------------------------------------


class ConstantHash:
    """Stands in for BLAKE3 where keys are made: everything has the same digest."""

    def __init__(self, data: bytes = b"", **_: Any) -> None:
        pass

    def digest(self) -> bytes:
        return b"\x07" * 32


@pytest.fixture
def constant_hash(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr(kvgraft.plan, "blake3", ConstantHash)


@pytest.mark.parametrize("tokens", [5, 16, 37])
def test_with_a_constant_hash_a_different_prompt_is_computed_on_its_own(
    tokens: int, constant_hash: Callable[[], None]
) -> None:
    engine, store = ToyEngine(), memory_chunks()
    first, second = prompt(tokens), prompt(tokens, seed=1)
    expected = cold(engine, second)
    constant_hash()
    run(engine, store, first)
    assert {entry.object.key for entry in store.index.all_entries()} == {b"\x07" * 32}
    bits, report = run(engine, store, second)
    assert (bits, report.reused_tokens) == (expected, 0)
    assert any(miss.startswith("artifact_") for miss in report.misses)


def test_with_a_constant_hash_other_ids_of_the_same_place_are_another_address(
    constant_hash: Callable[[], None],
) -> None:
    engine, store = ToyEngine(), memory_chunks()
    constant_hash()
    run(engine, store, prompt(12))
    _, report = run(engine, store, prompt(12, seed=1))
    assert any(miss.startswith("artifact_address: ") for miss in report.misses)
