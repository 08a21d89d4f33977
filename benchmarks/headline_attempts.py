"""Makes the headline study's attempts: raw texts, kept as they come, with what each batch took.

One gzip member a line is appended for each problem and condition, so that a run that was stopped
goes on where it was, and loses at most the batch it was in.
"""

from __future__ import annotations

import gzip
import json
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import headline_plan as plan
from kvgraft.decode import Sampling, greedy, sample_lanes
from kvgraft.engines.base import Engine, Message
from kvgraft.library.address import canonical_text
from kvgraft.prompt import encode, problem_prompt, render_messages
from kvgraft.reuse import Keep, compute_prompt

Found = dict[str, Any]
FENCE = "```"


def read_attempts(path: Path) -> Iterator[Found]:
    """The batches of a file; a half-written last one is left out."""
    if not path.exists():
        return
    with gzip.open(path, "rt", encoding="utf-8") as file:
        try:
            for line in file:
                yield json.loads(line)
        except (EOFError, ValueError):
            return


def make_attempts(
    engine: Engine, model: str, path: Path, seconds: float, say: Callable[[str], None]
) -> bool:
    """Every batch that is not in the file yet, for at most `seconds`; whether all are done."""
    done = {(batch["id"], batch["condition"]) for batch in read_attempts(path)}
    give_up = time.monotonic() + seconds
    asked = plan.problems()
    conditions: dict[str, Callable[[Engine, str, plan.Asked], Found]] = {
        plan.CHAIN: _chain,
        plan.TEXT: _sampled,
        plan.PROGRAM: _sampled_programs,
    }
    for number, problem in enumerate(asked, 1):
        if problem.part == "calibration" and model != plan.CALIBRATED_WITH:
            continue
        for condition in plan.CONDITIONS[problem.part]:
            if (problem.id, condition) in done:
                continue
            if time.monotonic() > give_up:
                return False
            batch = _measured(conditions[condition], engine, model, problem)
            line = {"id": problem.id, "condition": condition, **batch}
            with path.open("ab") as file:
                file.write(gzip.compress(json.dumps(line).encode() + b"\n", mtime=0))
            say(
                f"{model} {number}/{len(asked)} {problem.id} {condition}: "
                f"{batch['decode_tokens']} tokens, {batch['seconds']:.1f} s"
            )
    return True


def _measured(
    make: Callable[[Engine, str, plan.Asked], Found],
    engine: Engine,
    model: str,
    problem: plan.Asked,
) -> Found:
    began, cpu = time.perf_counter(), _cpu_seconds()
    out = make(engine, model, problem)
    took = {"seconds": time.perf_counter() - began, "cpu_seconds": _cpu_seconds() - cpu}
    return {**out, **{name: round(value, 4) for name, value in took.items()}}


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def posed(problem: plan.Asked, condition: str) -> str:
    """The text that is asked."""
    return canonical_text(problem.text + plan.SUFFIX[condition])


def _chain(engine: Engine, model: str, problem: plan.Asked) -> Found:
    """The greedy attempt, and rounds of self-correction behind it."""
    question = Message("user", posed(problem, plan.TEXT))
    chain = [_one(engine, [question])]
    for _ in range(plan.ROUNDS):
        said = Message("assistant", chain[-1]["texts"][0])
        chain.append(_one(engine, [question, said, Message("user", plan.CORRECT)]))
    return {
        **_batch(
            [one["texts"][0] for one in chain],
            [one["finished"][0] for one in chain],
            sum(one["prefill_tokens"] for one in chain),
            sum(one["decode_tokens"] for one in chain),
        ),
        "greedy": {name: chain[0][name] for name in ("prefill_tokens", "decode_tokens", "seconds")},
    }


def _one(engine: Engine, messages: list[Message]) -> Found:
    began = time.perf_counter()
    ids = encode(engine.tokenizer, render_messages(engine.tokenizer, messages))
    computed = compute_prompt(engine, None, ids, keep=Keep.NOTHING, room=plan.MAX_NEW_TOKENS)
    try:
        decoded = greedy(computed.context, plan.MAX_NEW_TOKENS, engine.tokenizer.stop_ids)
    finally:
        computed.context.close()
    text = engine.tokenizer.decode(decoded.ids)
    seconds = round(time.perf_counter() - began, 4)
    return {**_batch([text], [decoded.finished], len(ids), decoded.steps), "seconds": seconds}


def _sampled(engine: Engine, model: str, problem: plan.Asked) -> Found:
    return _lanes(engine, model, problem, plan.TEXT)


def _sampled_programs(engine: Engine, model: str, problem: plan.Asked) -> Found:
    return _lanes(engine, model, problem, plan.PROGRAM)


def _lanes(engine: Engine, model: str, problem: plan.Asked, condition: str) -> Found:
    tokenizer = engine.tokenizer
    prompt = problem_prompt(tokenizer, posed(problem, condition), None)
    computed = compute_prompt(engine, None, prompt.ids, keep=Keep.NOTHING, room=1)
    try:
        lanes = computed.context.fork(plan.LANES[problem.set][condition], plan.MAX_NEW_TOKENS)
    finally:
        computed.context.close()
    sampling = Sampling(plan.TEMPERATURE, plan.TOP_P, plan.seed_of(model, problem.id, condition))

    def ends(ids: Any) -> bool:
        """A program ends where its block is closed."""
        return condition == plan.PROGRAM and _closed(tokenizer.decode(ids))

    try:
        decoded = sample_lanes(
            lanes, plan.MAX_NEW_TOKENS, tokenizer.stop_ids, sampling, stop_when=ends
        )
    finally:
        lanes.close()
    return _batch(
        [tokenizer.decode(lane.ids) for lane in decoded],
        [lane.finished for lane in decoded],
        len(prompt.ids),
        sum(lane.steps for lane in decoded),
    )


def _closed(text: str) -> bool:
    """Whether a code block was opened and closed again."""
    start = text.find(FENCE)
    return start >= 0 and "\n" + FENCE in text[start + len(FENCE) :]


def _batch(texts: list[str], finished: list[bool], prefill: int, decode: int) -> Found:
    return {
        "texts": texts,
        "finished": finished,
        "prefill_tokens": prefill,
        "decode_tokens": decode,
    }
