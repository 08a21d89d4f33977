"""The headline study's library: what a model's attempts agree on is deposited, and asked again.

Two processes: one deposits, another replays, so that nothing but the disk is between them.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headline_plan as plan
from headline_attempts import posed
from headline_score import Accepted, Worked, effort
from kvgraft.api import Memory, open_memory
from kvgraft.library.problem import Problem
from kvgraft.library.replay import make_deposit
from kvgraft.library.transfer import Transfer
from kvgraft.library.verify.base import Case, Verdict
from kvgraft.prompt import problem_prompt

Found = dict[str, Any]
Say = Callable[[str], None]


class Agreement:
    """The study's verdict: so many of a problem's attempts had this answer. Sees no key."""

    name = spec = "agreement"
    version = "1"
    needs = frozenset({"peers"})

    def __init__(self, accepted: Accepted, attempts: int) -> None:
        self._accepted, self._attempts = accepted, attempts

    def verify(self, case: Case, trace: str) -> Verdict:
        """The verdict on the attempt that is kept."""
        evidence = {"votes": self._accepted.votes, "attempts": self._attempts}
        answer = self._accepted.answer
        return Verdict(True, "agreed", answer, self.name, self.version, evidence)

    def close(self) -> None:
        """Nothing is held."""


def opened(model: str, store: Path) -> Memory:
    """The model with the study's store."""
    return open_memory(
        plan.MODELS[model], store=store, engine=plan.ENGINE, threads=plan.THREADS, load="always"
    )


def kept_trace(one: Worked, accepted: Accepted) -> str:
    """The attempt that is deposited: a text as it is, a program with what it printed."""
    text = str(one.batches[accepted.condition]["texts"][accepted.index])
    if accepted.condition == plan.TEXT:
        return text
    return f"{text.rstrip()}\n\nThe program prints:\n\n{accepted.answer}"


def deposit_all(
    model: str, store: Path, problems: dict[str, Worked], threshold: int, say: Say
) -> Found:
    """Deposit what enough attempts agree on; id -> deposit, or why not."""
    asked = {problem.id: problem for problem in plan.problems()}
    out: Found = {}
    with opened(model, store) as memory:
        for id, one in problems.items():
            accepted = one.accepted
            if accepted is None or accepted.votes < threshold:
                continue
            text = posed(asked[id], plan.TEXT)
            problem = Problem(id, text)
            prompt = problem_prompt(memory.workspace.engine.tokenizer, text, None)
            trace = kept_trace(one, accepted)
            others = [
                one.batches[condition]["texts"][index]
                for condition, index, _ in one.sampled
                if (condition, index) != (accepted.condition, accepted.index)
            ]
            judge = Agreement(accepted, 1 + len(others))
            case = problem.case(others)
            deposit = make_deposit(
                *(memory.workspace, problem, prompt, trace, judge.verify(case, trace), judge),
                effort(one),
                case=case,
                source="headline",
            )
            out[id] = {
                "deposit": deposit.id,
                "answer": deposit.answer,
                "votes": accepted.votes,
                "replay": deposit.replay,
                "reason": deposit.replay_reason,
            }
            say(f"{model} {id}: {accepted.answer}, {accepted.votes} votes, {deposit.replay}")
    return out


def ask_again(model: str, store: Path, deposited: Found, say: Say) -> Found:
    """In another process: every deposited problem again, and the held-out ones with related
    solutions in context."""
    out: Found = {"recurring": {}, "held_out": {}}
    with opened(model, store) as memory:
        for problem in plan.problems():
            if problem.id in deposited:
                out["recurring"][problem.id] = _asked(memory, problem, None)
            elif problem.part == "held_out":
                out["held_out"][problem.id] = _asked(memory, problem, Transfer(solutions=1))
            else:
                continue
            say(f"{model} {problem.id} asked again")
    return out


def _asked(memory: Memory, problem: plan.Asked, transfer: Transfer | None) -> Found:
    began, cpu = time.perf_counter(), _cpu_seconds()
    answer = memory.ask(
        Problem(problem.id, posed(problem, plan.TEXT)),
        max_new_tokens=plan.MAX_NEW_TOKENS,
        transfer=transfer,
    )
    return {
        "how": answer.how,
        "grade": answer.grade,
        "answer": answer.answer if answer.finished else None,
        "context": list(answer.context),
        "exact": answer.exact,
        "reasons": list(answer.reasons),
        "prefill_tokens": answer.cost.prefill_tokens,
        "reused_tokens": answer.cost.reused_tokens,
        "decode_tokens": answer.cost.decode_tokens,
        "seconds": round(time.perf_counter() - began, 4),
        "cpu_seconds": round(_cpu_seconds() - cpu, 4),
    }


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
