"""`kvgraft ask`: one problem, replayed from its deposit or attempted afresh, and which of them."""

from __future__ import annotations

import sys
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvgraft.cli import options
from kvgraft.cli.edge import Stopped
from kvgraft.cli.output import (
    duration,
    printable,
    size,
    write_document,
    write_facts,
    write_line,
)
from kvgraft.cli.progress import Watch
from kvgraft.cli.session import EngineOptions, opened
from kvgraft.errors import CheckFailed, InputError, LimitExceeded, UsageError
from kvgraft.limits import MAX_PROMPT_BYTES

if TYPE_CHECKING:
    from kvgraft.library.ask import Answer
    from kvgraft.library.problem import Problem


class Require(str, Enum):
    """The least that an answer has to be, weakest first."""

    recorded = "recorded"
    replayed = "replayed"


_STRENGTH = ("fresh", "recorded", "replayed")


ProblemText = Annotated[
    str | None,
    typer.Argument(metavar="TEXT", help="The problem; or give --file.", show_default=False),
]
File = Annotated[
    Path | None,
    typer.Option(
        "--file",
        metavar="FILE",
        help="A text file that holds the problem; '-' reads standard input.",
        show_default=False,
    ),
]
System = Annotated[
    str | None, typer.Option("--system", metavar="TEXT", help="System text.", show_default=False)
]
VerifierOption = Annotated[
    str | None,
    typer.Option(
        "--verifier",
        metavar="V",
        help=f"Judges a fresh attempt: {options.VERIFIER_HELP}",
        show_default=False,
    ),
]
Expected = Annotated[
    str | None,
    typer.Option(
        "--expected",
        metavar="E",
        help="The answer key, for the verifier; the model never sees it.",
        show_default=False,
    ),
]
Required = Annotated[
    Require | None,
    typer.Option(
        "--require",
        help="Status 1 if the answer is less than that: recorded (a verified deposit) or "
        "replayed (decoded from its state as well).",
        show_default=False,
    ),
]


def ask_command(
    model: options.Model,
    text: ProblemText = None,
    file: File = None,
    system: System = None,
    max_tokens: options.MaxTokens = 256,
    verifier: VerifierOption = None,
    expected: Expected = None,
    require: Required = None,
    store: options.Store = None,
    tenant: options.Tenant = "public",
    engine: options.EngineOption = options.Engine.transformers,
    load: options.LoadOption = options.Load.measured,
    dtype: options.DtypeOption = options.Dtype.bfloat16,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    paranoid: options.Paranoid = False,
    as_json: options.AsJson = False,
) -> None:
    """Answer a problem from its deposit, or afresh.

    The deposit at the problem's exact address is replayed; without one, a single attempt is made.
    The answer says how it came about, its grade (proved, agreed or none), whether its logits are
    exact, where it comes from, and why not more was reused. A fresh attempt is not deposited:
    'kvgraft solve' does that.
    """
    from kvgraft.library.verify.base import make_verifier

    problem = _problem(text, file, system, expected)
    if expected is not None and verifier is None:
        raise UsageError("--expected is for a verifier", hint="add --verifier, such as math")
    judge = None if verifier is None else make_verifier(verifier)
    chosen = EngineOptions(dtype.value, device, threads, paranoid, engine.value)
    try:
        with (
            Watch(f"opening {model}") as watch,
            opened(model, store, tenant, chosen, watch, load.value) as memory,
        ):
            watch.restart("answering")
            answer = memory.ask(problem, verifier=judge, max_new_tokens=max_tokens)
            if memory.engine.model.startswith("toy"):
                watch.say("warning: the toy has random weights, its answers are noise")
    finally:
        if judge is not None:
            judge.close()
    if not as_json:
        show_answer(answer)
    if require and _STRENGTH.index(answer.how) < _STRENGTH.index(require.value):
        failed = CheckFailed(
            f"the answer is {answer.how}, not {require.value}",
            where="--require",
            hint="; ".join(answer.reasons) or "solve the problem first",
        )
        raise Stopped(failed, asdict(answer))
    if as_json:
        write_document(asdict(answer))


def _problem(text: str | None, file: Path | None, system: str | None, key: str | None) -> Problem:
    from kvgraft.library.problem import Problem

    if (text is None) == (file is None):
        raise UsageError(
            "give the problem either as TEXT or with --file", hint="see 'kvgraft ask --help'"
        )
    given = text if text is not None else _read(file or Path("-"))
    return Problem("", given, expected=key, system=system)


def _read(file: Path) -> str:
    """The text of a file, or of standard input for `-`.

    Raises:
        InputError: it cannot be read, or is not UTF-8.
        LimitExceeded: it is longer than any prompt may be.
    """
    try:
        if str(file) == "-":
            data = sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1)
        else:
            with file.open("rb") as source:
                data = source.read(MAX_PROMPT_BYTES + 1)
        if len(data) > MAX_PROMPT_BYTES:
            raise LimitExceeded(f"over {MAX_PROMPT_BYTES:,} bytes", where=str(file))
        return data.decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read the problem: {error.strerror}", where=str(file)) from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"not UTF-8: {error.reason} at byte {error.start}",
            where=str(file),
            hint="convert the file to UTF-8 first",
        ) from None


def show_answer(answer: Answer) -> None:
    """The answer's text first, then everything about it."""
    write_line(printable(answer.text))
    write_line()
    cost = answer.cost
    facts = [
        ("how", answer.how),
        ("answer", "none found" if answer.answer is None else answer.answer),
        ("grade", answer.grade),
        ("exact", _exact(answer)),
        ("deposit", answer.deposit_id or "none"),
        *((name.replace("_", " "), value) for name, value in answer.provenance.items()),
        (
            "cost",
            f"{cost.decode_tokens} tokens decoded, {cost.prefill_tokens} computed, "
            f"{cost.reused_tokens} reused, {duration(cost.seconds)}",
        ),
    ]
    if not answer.finished:
        facts.append(("cut off", "yes: the attempt used all its tokens (--max-tokens)"))
    if answer.reuse is not None and answer.reuse.loaded_bytes:
        seconds = duration(answer.reuse.restore_seconds)
        facts.append(("restored", f"{size(answer.reuse.loaded_bytes)} in {seconds}"))
    misses = answer.reuse.misses if answer.reuse is not None else []
    reasons = dict.fromkeys([*answer.reasons, *misses])
    facts += [("not reused" if n == 0 else "", reason) for n, reason in enumerate(reasons)]
    write_facts(facts)


def _exact(answer: Answer) -> str:
    if answer.exact is None:
        return "nothing to compare with"
    return "yes, the logits have the record's SHA-256" if answer.exact else "no"
