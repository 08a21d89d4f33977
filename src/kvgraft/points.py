"""Where a stored prompt can be resumed, and what has to be kept for that.

What every later token needs is kept for every chunk. Windows, recurrent states and the end point
that gives the next-token logits are of use at one point only, and the first two are large: of a
long document they would be most of the bytes. So they are kept at few points:

- after the last full block or cut of a prompt, where the next turn or a longer prompt goes on;
- at the prompt's very end, where its tail is kept too (a deposit resumes exactly there);
- where the caller says that other prompts will go on, every cut among these;
- where an earlier prompt turned out to share its beginning with this one and nothing was kept
  there: a preamble that many prompts share is computed twice, then never again.

None of this changes a bit of any logits: it decides what has to be computed, never how.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from kvgraft.plan import Call
from kvgraft.state import Role, StateSpec


def seen_calls(spec: StateSpec, calls: Sequence[Call], done: int) -> range:
    """The calls whose tokens windowed layers can still see after the first `done` calls; empty
    where no layer has a window."""
    if Role.NEAR not in spec.roles:
        return range(0)
    first = spec.near_start(calls[done - 1].end)
    start = done
    while start and calls[start - 1].end > first:
        start -= 1
    return range(start, done)


def kept_roles(
    spec: StateSpec, calls: Sequence[Call], settled: int, *, tail: bool, wanted: Iterable[int] = ()
) -> list[tuple[Role, ...]]:
    """What to keep of each call: objects by role.

    `settled` is `plan.settled_calls`. `tail`: the tail is kept too, and the prompt's end is a
    point. `wanted`: further points, in tokens; a run goes on after the last settled call before
    each.
    """
    last = len(calls) if tail else settled
    ends = [call.end for call in calls[:settled]]
    points = {settled, last, *(bisect_right(ends, tokens) for tokens in wanted)} - {0}
    near = {number for done in points for number in seen_calls(spec, calls, done)}
    return [
        tuple(
            role
            for role, kept in (
                (Role.KEEP, number < last),
                (Role.NEAR, number in near),
                (Role.END, number + 1 in points),
            )
            if kept
        )
        for number in range(len(calls))
    ]
