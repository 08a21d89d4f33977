"""One process of the demonstration: `python -m kvgraft.cli.demo_phase JOB.json RESULT.json`.

`learn` asks every problem with an empty library, then solves and deposits; `recall` is another
process that asks them all again, and `near` one that asks the near misses of what was deposited.
All tell their progress on standard output, a JSON object a line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import kvgraft
from kvgraft.api import Memory
from kvgraft.cli.demo_problems import DemoProblem, read_demo_problems
from kvgraft.decode import Sampling, greedy
from kvgraft.errors import KvgraftError
from kvgraft.evidence.process import tell, tell_progress
from kvgraft.library.ask import REPLAYED, Answer
from kvgraft.library.deposit import Deposit
from kvgraft.library.problem import Problem
from kvgraft.library.solve import Effort
from kvgraft.library.verify.base import Verifier
from kvgraft.library.verify.specs import make_verifier
from kvgraft.limits import MAX_ANSWER_TOKENS
from kvgraft.reuse import Keep, compute_prompt


def main(arguments: list[str]) -> int:
    """Run one phase; 0, or the error's exit status with the error as JSON."""
    try:
        job = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
        result = _run(job)
    except KvgraftError as error:
        tell({"error": error.as_dict()})
        return error.exit_status
    Path(arguments[1]).write_text(json.dumps(result), encoding="utf-8")
    return 0


def _run(job: dict[str, Any]) -> dict[str, Any]:
    posed = read_demo_problems(Path(job["problems"]))
    problems = [one.problem for one in posed]
    verifier = make_verifier("math")
    try:
        with kvgraft.open(
            job["model"],
            store=job["store"],
            threads=job["threads"],
            engine=job["engine"],
            load="always",  # so that every replay shown came from disk
            progress=tell_progress,
            say=lambda line: tell({"say": line}),
        ) as memory:
            if job["phase"] == "near":
                return _near(memory, posed, job)
            phase = {"learn": _learn, "recall": _recall}[job["phase"]]
            return phase(memory, problems, verifier, job)
    finally:
        verifier.close()


def _learn(
    memory: Memory, problems: list[Problem], verifier: Verifier, job: dict[str, Any]
) -> dict[str, Any]:
    effort = Effort(job["attempts"], job["max_tokens"], Sampling(seed=job["seed"]))
    asked = [_ask(memory, problem, verifier, job, "first try") for problem in problems]
    solved = []
    outcomes = memory.solve_all(problems, verifier=verifier, effort=effort)
    for number, outcome in enumerate(outcomes):
        solved.append(
            {
                "state": outcome.state,
                "answer": outcome.answer,
                "replays": outcome.replays,
                "detail": outcome.detail,
                **outcome.cost.as_dict(),
            }
        )
        tell({"stage": "solving", "done": number + 1, "total": len(problems)})
    totals = memory.chunks.index.totals()
    return {"asked": asked, "solved": solved, "stored_bytes": totals["pack_bytes"]}


def _recall(
    memory: Memory, problems: list[Problem], verifier: Verifier, job: dict[str, Any]
) -> dict[str, Any]:
    return {"asked": [_ask(memory, problem, verifier, job, "asking again") for problem in problems]}


def _near(memory: Memory, posed: list[DemoProblem], job: dict[str, Any]) -> dict[str, Any]:
    """The near misses of what is in the library: of any other problem, it would show nothing."""
    asked = []
    deposited = [one for one in posed if _is_deposited(memory, one.problem)]
    for number, one in enumerate(deposited):
        answer = memory.ask(one.near, max_new_tokens=job["max_tokens"])
        asked.append({"problem": one.near, "near": one.problem.text, "how": answer.how})
        tell({"stage": "asking near misses", "done": number + 1, "total": len(deposited)})
    return {"asked": asked}


def _is_deposited(memory: Memory, problem: Problem) -> bool:
    workspace = memory.workspace
    address = workspace.space(problem.system).address(problem.text)
    fingerprint = workspace.engine.fingerprint.hex
    return workspace.library.find(address, workspace.tenant, fingerprint) is not None


def _ask(
    memory: Memory, problem: Problem, verifier: Verifier, job: dict[str, Any], stage: str
) -> dict[str, Any]:
    answer = memory.ask(problem, max_new_tokens=job["max_tokens"])
    right = verifier.verify(problem.case(), answer.text)
    tell({"stage": stage, "done": 1, "total": 1})
    return {
        "id": problem.id,
        "how": answer.how,
        "answer": answer.answer,
        # A generation that was cut off counts as wrong, as it does when solving.
        "right": right.passed and answer.finished,
        "tokens": answer.cost.decode_tokens,
        "seconds": answer.cost.seconds,
        "reasons": list(answer.reasons),
        "same_bytes_cold": _same_bytes_cold(memory, answer),
    }


def _same_bytes_cold(memory: Memory, answer: Answer) -> bool | None:
    """Whether the replay's logits have the digest that the same state gives when it is computed
    here, from its tokens, without the store."""
    if answer.how != REPLAYED or answer.deposit_id is None:
        return None
    deposit: Deposit = memory.library.get(answer.deposit_id)
    tokenizer = memory.engine.tokenizer
    computed = compute_prompt(
        memory.engine,
        None,
        deposit.token_ids,
        cuts=deposit.cuts,
        keep=Keep.NOTHING,
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
    return decoded.logits_sha256 == answer.logits_sha256


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
