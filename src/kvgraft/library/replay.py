"""Replay: restore the state that ends just before the answer, and let the model say it.

The model decodes greedily at batch 1 without sight of the record; only then is the result
compared. A deposit is replayed once from disk when it is made. One that does not reproduce its
answer is kept as text only, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kvgraft.breakeven import Load
from kvgraft.decode import Decoded, greedy
from kvgraft.errors import ContextTooLong
from kvgraft.library.address import RequestIdentity
from kvgraft.library.deposit import (
    REPLAYS,
    TEXT_ONLY,
    Deposit,
    Grounds,
    NewDeposit,
    check_new,
    with_cuts,
)
from kvgraft.library.problem import Problem
from kvgraft.library.restate import restatement
from kvgraft.library.rows import encode
from kvgraft.library.verify.base import Case, Verdict, Verifier, summary
from kvgraft.library.workspace import Workspace
from kvgraft.limits import MAX_ANSWER_TOKENS, MAX_EVIDENCE_CHARS
from kvgraft.prompt import Prompt, answer_prefixes
from kvgraft.reuse import Keep, ReuseReport, compute_prompt


@dataclass(frozen=True)
class Replay:
    """What the model said from a restored state: one line of text, and what it took."""

    decoded: Decoded
    text: str
    report: ReuseReport
    key: bytes

    @property
    def from_disk(self) -> bool:
        """Whether the whole state came from the store, without one forward call."""
        return self.report.calls_made == 0 and self.report.reused_tokens == self.report.tokens


def replay(
    workspace: Workspace,
    token_ids: Sequence[int],
    cuts: Sequence[int] = (),
    *,
    keep: Keep = Keep.ALL,
    load: Load | None = None,
) -> Replay:
    """Graft the state after `token_ids` (made again where it is gone) and decode one line.

    `cuts` are `compute_prompt`'s. What has to be computed is captured as `keep` says. `load` is the
    workspace's own unless given.

    Raises:
        ContextTooLong: no room for an answer behind the state.
    """
    engine = workspace.engine
    tokenizer = engine.tokenizer
    computed = compute_prompt(
        engine,
        workspace.chunks,
        token_ids,
        salt=workspace.salt,
        keep=keep,
        cuts=cuts,
        load=load or workspace.load,
        room=MAX_ANSWER_TOKENS,
    )
    try:
        decoded = greedy(
            computed.context,
            MAX_ANSWER_TOKENS,
            tokenizer.stop_ids,
            lambda ids: "\n" in tokenizer.decode(ids).lstrip(),
        )
    finally:
        computed.context.close()
    text = tokenizer.decode(decoded.ids).strip()
    return Replay(decoded, text.partition("\n")[0].strip(), computed.report, computed.key)


def rendered_otherwise(deposit: Deposit, prompt: Prompt) -> str | None:
    """Why a deposit was not made for this prompt, or None if it was.

    The address says that problem, system text and template are the same. It cannot say what a
    template takes from elsewhere, such as today's date.
    """
    if deposit.prompt == prompt.text:
        return None
    return "the template renders this problem otherwise than when it was deposited"


def reproduces(deposit: Deposit, fingerprint: str, result: Replay) -> str | None:
    """Why a replay is not the record's, or None if it is.

    Under the record's own fingerprint the logits are compared too, not only the answer.
    """
    if tuple(result.decoded.ids) != deposit.answer_ids:
        return f"the replay says {result.text[:80]!r}, the record {deposit.answer[:80]!r}"
    if fingerprint == deposit.fingerprint:
        recorded = deposit.replay_logits_sha256
        if result.decoded.logits_sha256 != recorded:
            return "the replay's logits have another digest than the record's"
    return None


def make_deposit(
    workspace: Workspace,
    problem: Problem,
    prompt: Prompt,
    trace: str,
    verdict: Verdict,
    verifier: Verifier,
    cost: Mapping[str, Any],
    *,
    case: Case | None = None,
    identity: RequestIdentity | None = None,
    source: str = "solve",
    provenance: Mapping[str, Any] | None = None,
    expires_at: str | None = None,
    supersede: bool = False,
) -> Deposit:
    """Keep a verified, finished solution: re-capture its state on the plan, replay it from disk.

    The sampled lanes' own state is never stored: decoded rows have other bits than the same
    tokens computed on the plan. `case` is what the verdict was given on, with the peers if there
    were any. `identity` is that of the problem asked alone unless given; `source` says how the
    solution came about, `provenance` who wrote it, from which seed. It holds until `expires_at` (a
    date or time, ISO 8601), if that is given. `supersede`: also where a deposit is in its place.

    Raises:
        InputError, LimitExceeded, StoreError: the library refuses the record.
    """
    fingerprint = workspace.engine.fingerprint.hex
    case = case or problem.case()
    trace, tail = trace.rstrip(), trace[len(trace.rstrip()) :]
    new = NewDeposit(
        identity=identity or workspace.space(problem.system).identity(problem.text),
        model=workspace.engine.model,
        fingerprint=fingerprint,
        prompt=prompt.text,
        trace=trace,
        cue="",
        token_ids=prompt.ids,
        answer=verdict.answer or "",
        answer_ids=(),
        verdict=verdict,
        cost=cost,
        grounds=Grounds(verifier.spec, case, tail),
        provenance=with_cuts(provenance or {}, prompt.cuts),
        source=source,
        expires_at=expires_at,
        finished=True,
    )
    check_new(new)
    encode(new)  # what would not be kept is refused before anything is computed
    new = with_replay(workspace, new, partial(restatement, verifier, case, verdict))
    return workspace.library.deposit(new, supersede=supersede)


def with_replay(
    workspace: Workspace,
    new: NewDeposit,
    judge: Callable[[str], Verdict],
    first_cue: str = "",
) -> NewDeposit:
    """`new` with the first cue behind which the model states, from its own state, what `judge`
    passes: captured, and replayed from disk. Else `new` as text only, saying why. `first_cue` is
    tried before the others."""
    try:
        return _with_replay(workspace, new, judge, first_cue)
    except ContextTooLong as error:
        return replace(new, replay=TEXT_ONLY, replay_reason=str(error))


def _with_replay(
    workspace: Workspace, new: NewDeposit, judge: Callable[[str], Verdict], first_cue: str
) -> NewDeposit:
    tokenizer = workspace.engine.tokenizer
    said: list[str] = []
    prefixes = list(answer_prefixes(tokenizer, new.prompt, new.trace, new.answer))
    prefixes.sort(key=lambda prefix: prefix[0] != first_cue)
    for cue, joint in prefixes:
        # A trial: its tail is not worth a file before the answer is right.
        trial = replay(workspace, joint.ids, new.cuts, keep=Keep.BLOCKS)
        restated = judge(trial.text)
        if trial.decoded.finished and restated.passed and restated.answer is not None:
            candidate = replace(new, cue=cue, token_ids=joint.ids)
            return _captured(workspace, candidate, trial, restated)
        said.append(trial.text[:40])
    return replace(
        new, replay=TEXT_ONLY, replay_reason=f"asked for its answer, the model says {said}"
    )


def _captured(
    workspace: Workspace, new: NewDeposit, trial: Replay, restated: Verdict
) -> NewDeposit:
    made, again = (replay(workspace, new.token_ids, new.cuts, load=Load.ALWAYS) for _ in range(2))
    if made.decoded != trial.decoded or again.decoded != made.decoded:
        return replace(new, replay=TEXT_ONLY, replay_reason="replays differ in their logits")
    if not again.from_disk:
        why = made.report.capture_error or "; ".join(again.report.misses)
        return replace(new, replay=TEXT_ONLY, replay_reason=f"not replayed from disk: {why}")
    # The record is what the model says from the state, judged like the solution itself.
    assert restated.answer is not None  # a verdict that passed has judged an answer
    return replace(
        new,
        answer=restated.answer,
        answer_ids=tuple(made.decoded.ids),
        verdict=replace(restated, evidence=_evidence(restated, new.verdict)),
        grounds=new.grounds and replace(new.grounds, restated=trial.text),
        artifact=made.key.hex(),
        replay=REPLAYS,
        replay_reason="",
        replay_logits_sha256=made.decoded.logits_sha256,
    )


def _evidence(restated: Verdict, solution: Verdict) -> dict[str, Any]:
    """What speaks for both verdicts. Each was within the cap; where the two together are not, the
    solution's is shortened, and where that is not enough the other one too."""
    short = summary(json.dumps(solution.evidence))
    for both in (
        {**restated.evidence, "solution": solution.evidence},
        {**restated.evidence, "solution": short},
    ):
        if len(json.dumps(both)) <= MAX_EVIDENCE_CHARS:
            return both
    return {"restated": summary(json.dumps(restated.evidence)), "solution": short}
