"""What an answer is: where it came from, what speaks for it, what it took; and one fresh attempt.

Every answer carries one label (`how`) and one grade. A caller can demand a minimum; an answer below
it is refused whole, and is not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

from kvgraft.decode import Decoded, greedy
from kvgraft.errors import BelowMinimum, UsageError
from kvgraft.flops import request_flops
from kvgraft.library.problem import Problem
from kvgraft.library.verify.base import GRADES, Case, Verdict, Verifier
from kvgraft.library.verify.extract import extract
from kvgraft.library.workspace import Workspace
from kvgraft.meter import Cost
from kvgraft.prompt import Prompt
from kvgraft.reuse import Keep, ReuseReport, compute_prompt

REPLAYED, RECORDED, TRANSFERRED, FRESH = "replayed", "recorded", "transferred", "fresh"
MINIMUMS = ("any", "agreed", "proved", "replayed")


@dataclass(frozen=True)
class Answer:
    """An answer and where it came from.

    `how`: replayed (decoded by the model from the grafted state, equal to the record), recorded
    (a verified deposit that keeps text only), transferred (a new attempt with related solutions in
    context, which a verifier passed), or fresh. `grade` is the verdict's: proved, agreed or none.
    `exact`: the logits had the record's SHA-256 (None where that says nothing). `deposit_id`: the
    deposit that it is from; `context`: the deposits whose solutions the model had before it;
    `kept`: the deposit that was made of it. `reasons` names why it was not replayed, or what had
    to be made again.
    """

    how: str
    text: str
    answer: str | None
    grade: str
    exact: bool | None
    cost: Cost
    deposit_id: str | None = None
    finished: bool = True
    logits_sha256: str | None = None
    context: tuple[str, ...] = ()
    kept: str | None = None
    provenance: dict[str, str] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    reuse: ReuseReport | None = None


def check_minimum(minimum: str) -> None:
    """Refuse a minimum that is none.

    Raises:
        UsageError: it is not in `MINIMUMS`.
    """
    if minimum not in MINIMUMS:
        raise UsageError(
            f"there is no minimum {minimum!r}", hint=f"choose from {', '.join(MINIMUMS)}"
        )


def reaches(minimum: str, how: str, grade: str) -> bool:
    """Whether an answer is at least `minimum`: "replayed" is about the label, "proved" and
    "agreed" are about the grade, whatever the label."""
    if minimum == "any":
        return True
    if minimum == REPLAYED:
        return how == REPLAYED
    return GRADES.index(grade) >= GRADES.index(minimum)


def refuse_below(minimum: str, answer: Answer) -> Answer:
    """The answer, if it is good enough.

    Raises:
        BelowMinimum: it is not. The error tells what there was, but not what it says.
    """
    if reaches(minimum, answer.how, answer.grade):
        return answer
    raise below(minimum, answer.how, answer.grade, answer.reasons, answer.cost)


def below(minimum: str, how: str, grade: str, reasons: Sequence[str], cost: Cost) -> BelowMinimum:
    """The error for an answer that is not given, or for an attempt that is not worth making."""
    return BelowMinimum(
        f"the best answer is {how} with grade {grade}, and {minimum} is the least that will do",
        hint="; ".join(reasons) or "solve the problem first",
        details={"how": how, "grade": grade, "reasons": list(reasons), "cost": asdict(cost)},
    )


def fresh_answer(
    workspace: Workspace,
    prompt: Prompt,
    max_new_tokens: int,
    *,
    stop: Sequence[str] = (),
    store: bool = True,
) -> Answer:
    """One greedy attempt, not judged yet. The text ends before the first of the strings `stop`.
    Without `store` nothing is reused or kept.

    Raises:
        ContextTooLong: prompt and new tokens do not fit the model's context.
    """
    engine = workspace.engine
    decode = engine.tokenizer.decode
    computed = compute_prompt(
        engine,
        workspace.chunks if store else None,
        prompt.ids,
        salt=workspace.salt,
        keep=Keep.BLOCKS,
        cuts=prompt.cuts,
        load=workspace.load,
        room=max_new_tokens,
    )
    try:
        decoded = greedy(
            computed.context,
            max_new_tokens,
            engine.tokenizer.stop_ids,
            lambda ids: bool(stop) and any(end in decode(ids) for end in stop),
        )
    finally:
        computed.context.close()
    text = until(decode(decoded.ids), stop)
    found = extract(text)
    return Answer(
        how=FRESH,
        text=text,
        answer=found.answer if found else None,
        grade="none",
        exact=None,
        cost=Cost(
            attempts=1,
            prefill_tokens=computed.report.computed_tokens,
            reused_tokens=computed.report.reused_tokens,
            decode_tokens=decoded.steps,
            model_flops=decoding_flops(workspace, computed.report, decoded),
        ),
        finished=decoded.finished,
        logits_sha256=decoded.logits_sha256,
        provenance={"model": engine.model, "fingerprint": engine.fingerprint.hex},
        reuse=computed.report,
    )


def until(text: str, stop: Sequence[str]) -> str:
    """`text` up to the first of the strings `stop`."""
    return text[: min((at for end in stop if (at := text.find(end)) >= 0), default=len(text))]


@dataclass(frozen=True)
class Judged:
    """An attempt and, where a verifier saw it, what it said and on which case. `grade` and `answer`
    follow it."""

    answer: Answer
    verdict: Verdict | None = None
    case: Case | None = None

    @property
    def passed(self) -> bool:
        return self.verdict is not None and self.verdict.passed


def judged(
    answer: Answer, problem: Problem, verifier: Verifier | None, peers: Sequence[str] = ()
) -> Judged:
    """The attempt with the verifier's verdict; one that was cut off is not shown to it.

    Raises:
        VerifierError: the problem lacks what the verifier needs.
    """
    if verifier is None or not answer.finished:
        return Judged(answer)
    case = problem.case(peers)
    verdict = verifier.verify(case, answer.text)
    named = {"verifier": verifier.name, "verifier_version": verifier.version}
    seen = replace(
        answer,
        grade=verdict.grade if verdict.passed else "none",
        answer=verdict.answer,
        provenance=answer.provenance | named,
    )
    return Judged(seen, verdict, case)


def check_judge(verifier: Verifier | None) -> None:
    """Refuse a verifier that compares attempts, where there is to be but one.

    Raises:
        UsageError: it is one.
    """
    if verifier is not None and "peers" in verifier.needs:
        raise UsageError(
            f"the verifier {verifier.name!r} compares attempts, and this makes one alone",
            hint="solve the problem, which makes many",
        )


def decoding_flops(workspace: Workspace, report: ReuseReport, decoded: Decoded) -> int | None:
    """Model FLOPs of a prompt and of what was decoded behind it."""
    engine = workspace.engine
    return request_flops(
        engine.model_size,
        engine.spec,
        reused_tokens=report.reused_tokens,
        computed_tokens=report.computed_tokens,
        steps=[decoded.steps],
    )
