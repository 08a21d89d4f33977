"""`kvgraft ask`: one problem, replayed from its deposit or attempted afresh, and which of them."""

from __future__ import annotations

import sys
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvgraft.cli import ask_collection, options
from kvgraft.cli.edge import Stopped
from kvgraft.cli.option_groups import MemoryOptions, grouped
from kvgraft.cli.output import (
    duration,
    printable,
    size,
    work,
    write_document,
    write_facts,
    write_line,
)
from kvgraft.cli.progress import Watch
from kvgraft.cli.session import opened
from kvgraft.errors import BelowMinimum, InputError, LimitExceeded, UsageError
from kvgraft.limits import MAX_PROMPT_BYTES, MAX_TRANSFERRED_SOLUTIONS

if TYPE_CHECKING:
    from kvgraft.library.answer import Answer
    from kvgraft.library.problem import Problem
    from kvgraft.library.transfer import Transfer


class Minimum(str, Enum):
    """The least that an answer has to be."""

    any = "any"
    agreed = "agreed"
    proved = "proved"
    replayed = "replayed"


class Position(str, Enum):
    """Where related solutions stand."""

    single = "single"
    page = "page"


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
Checks = Annotated[
    Path | None,
    typer.Option(
        "--checks",
        metavar="FILE.json",
        help="What the verifier checks by (tests, constraints, a schema), as one JSON object, like "
        "`checks` in a file of problems.",
        show_default=False,
    ),
]
Least = Annotated[
    Minimum,
    typer.Option(
        "--minimum",
        help="The least that will do: a grade (agreed, proved), or a replay. Below it there is no "
        "answer, and status 1.",
    ),
]
TransferOption = Annotated[
    Position | None,
    typer.Option(
        "--transfer",
        help="Without a deposit of this problem, put related solutions before the attempt: a "
        "single one before each, or a page with all of them.",
        show_default=False,
    ),
]
Solutions = Annotated[
    int,
    typer.Option(
        "--solutions",
        min=1,
        max=MAX_TRANSFERRED_SOLUTIONS,
        metavar="N",
        help="At most so many related solutions.",
    ),
]
Keep = Annotated[
    bool,
    typer.Option("--keep", help="Deposit the answer, if it is new and the verifier passes it."),
]


@grouped
def ask_command(
    model: options.Model,
    text: ProblemText = None,
    file: File = None,
    system: System = None,
    max_tokens: options.MaxTokens = 256,
    verifier: VerifierOption = None,
    expected: Expected = None,
    checks: Checks = None,
    minimum: Least = Minimum.any,
    transfer: TransferOption = None,
    solutions: Solutions = 3,
    attempts: options.Attempts = 1,
    keep: Keep = False,
    *,
    documents: ask_collection.CollectionOptions,
    memory_options: MemoryOptions,
    watts: options.Watts = None,
    as_json: options.AsJson = False,
) -> None:
    """Answer a problem from its deposit, or afresh.

    The deposit at the problem's exact address is replayed; without one, a single attempt is made,
    or, with --transfer, up to --attempts with related solutions in context, until the verifier
    passes one. The answer says how it came about (replayed, recorded, transferred or fresh), its
    grade (proved, agreed or none), whether its logits are exact, where it comes from, and why not
    more was reused. A new answer is deposited only with --keep. With --collection the answer comes
    from documents instead, with the passage that it stands in.
    """
    if documents.collection is not None:
        question = given_problem(text, file, None, None).text
        _only_for_deposits(system, verifier, expected, checks, minimum, transfer, keep)
        ask_collection.ask_documents(
            question, model, documents, max_tokens, memory_options, watts, as_json
        )
        return
    documents.check_unused()
    check_options(verifier, expected, checks, keep)
    problem = given_problem(text, file, system, expected, checks)
    context = _transfer(transfer, solutions, attempts, verifier)
    from kvgraft.library.verify.specs import make_verifier

    judge = None if verifier is None else make_verifier(verifier)
    try:
        with (
            Watch(f"opening {model}") as watch,
            opened(model, memory_options, watch, watts) as memory,
        ):
            watch.restart("answering")
            answer = memory.ask(
                problem,
                verifier=judge,
                max_new_tokens=max_tokens,
                minimum=minimum.value,
                transfer=context,
                keep=keep,
            )
            if memory.engine.model.startswith("toy"):
                watch.say("warning: the toy has random weights, its answers are noise")
    except BelowMinimum as error:
        raise Stopped(error, error.details) from error
    finally:
        if judge is not None:
            judge.close()
    if as_json:
        write_document(asdict(answer))
    else:
        show_answer(answer)


def _transfer(
    position: Position | None, solutions: int, attempts: int, verifier: str | None
) -> Transfer | None:
    """How related solutions become context, if they do.

    Raises:
        UsageError: options of a transfer without one; attempts that nothing would choose from.
    """
    from kvgraft.library.transfer import Transfer

    if position is None and (attempts, solutions) != (1, 3):
        raise UsageError("--attempts and --solutions are for --transfer")
    if attempts > 1 and verifier is None:
        raise UsageError("--attempts is for a verifier, which says when to stop")
    return Transfer(position.value, solutions, attempts) if position else None


def _only_for_deposits(*given: object) -> None:
    """Refuse what a question to a collection has no use for.

    Raises:
        UsageError: one of these options was given.
    """
    if any(one not in (None, False, Minimum.any) for one in given):
        raise UsageError(
            "a question to a collection takes none of --system, --verifier, --expected, --checks,"
            " --minimum, --transfer and --keep"
        )


def check_options(
    verifier: str | None, expected: str | None, checks: Path | None, keep: bool
) -> None:
    """Refuse options that are for a verifier where there is none.

    Raises:
        UsageError: `expected`, `checks` or `keep`, and no verifier.
    """
    given = {"--expected": expected is not None, "--checks": checks is not None, "--keep": keep}
    for name in (name for name, there in given.items() if there and verifier is None):
        raise UsageError(f"{name} is for a verifier", hint="add --verifier, such as math")


def given_problem(
    text: str | None,
    file: Path | None,
    system: str | None,
    key: str | None,
    checks: Path | None = None,
) -> Problem:
    """The problem that the command line gives, in its words or in a file.

    Raises:
        UsageError: neither or both.
        InputError, LimitExceeded: a file is unusable.
    """
    from kvgraft.library.problem import Problem, read_checks

    if (text is None) == (file is None):
        raise UsageError(
            "give the problem either as TEXT or with --file", hint="see 'kvgraft ask --help'"
        )
    given = text if text is not None else _read(file or Path("-"))
    checked_by = {} if checks is None else read_checks(checks)
    return Problem("", given, expected=key, system=system, checks=checked_by)


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
        *([("in context", ", ".join(answer.context))] if answer.context else []),
        *([("kept as", answer.kept)] if answer.kept else []),
        *((name.replace("_", " "), value) for name, value in answer.provenance.items()),
        (
            "cost",
            f"{cost.decode_tokens} tokens decoded, {cost.prefill_tokens} computed, "
            f"{cost.reused_tokens} reused, {duration(cost.seconds)}",
        ),
        ("work", work(cost.as_dict())),
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
