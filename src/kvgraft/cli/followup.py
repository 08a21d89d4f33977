"""`kvgraft follow-up`: a question behind a deposit, from its grafted state."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from kvgraft.cli import ask, options
from kvgraft.cli.edge import Stopped
from kvgraft.cli.library import DepositId
from kvgraft.cli.option_groups import MemoryOptions, grouped
from kvgraft.cli.output import duration, write_document, write_facts, write_line
from kvgraft.cli.progress import Watch
from kvgraft.cli.session import opened
from kvgraft.errors import BelowMinimum, CheckFailed

if TYPE_CHECKING:
    from kvgraft.library.followup import Comparison, FollowUp
    from kvgraft.meter import Cost

Question = Annotated[
    str | None,
    typer.Argument(metavar="TEXT", help="The question; or give --file.", show_default=False),
]
Compare = Annotated[
    bool,
    typer.Option(
        "--compare",
        help="Ask a second time with the whole conversation as text and nothing stored; status 1 "
        "if any logits differ.",
    ),
]


@grouped
def follow_up_command(
    id: DepositId,
    model: options.Model,
    text: Question = None,
    file: ask.File = None,
    max_tokens: options.MaxTokens = 256,
    verifier: ask.VerifierOption = None,
    expected: ask.Expected = None,
    checks: ask.Checks = None,
    minimum: ask.Least = ask.Minimum.any,
    keep: ask.Keep = False,
    compare: Compare = False,
    *,
    memory_options: MemoryOptions,
    watts: options.Watts = None,
    as_json: options.AsJson = False,
) -> None:
    """Ask a question behind a deposit.

    The model goes on from the deposit's state (problem and solution), which is grafted to its last
    token, unless the deposit keeps text only or the template rewrites it; what stands behind it is
    computed. A follow-up that a verifier passed can be
    kept; the same question behind the same deposit is then replayed. Revoking a deposit revokes
    its follow-ups.
    """
    from kvgraft.library.verify.specs import make_verifier

    ask.check_options(verifier, expected, checks, keep)
    question = ask.given_problem(text, file, None, expected, checks)
    judge = None if verifier is None else make_verifier(verifier)
    try:
        with (
            Watch(f"opening {model}") as watch,
            opened(model, memory_options, watch, watts) as memory,
        ):
            watch.restart("answering")
            done = memory.follow_up(
                id,
                question,
                verifier=judge,
                max_new_tokens=max_tokens,
                minimum=minimum.value,
                keep=keep,
                compare=compare,
            )
    except BelowMinimum as error:
        raise Stopped(error, error.details) from error
    finally:
        if judge is not None:
            judge.close()
    if not as_json:
        _show(done, compare)
    if done.compared is not None and not done.compared.same_logits:
        failed = CheckFailed(
            "the same tokens, sent again as text, gave other logits",
            where=id,
            hint="'kvgraft prove MODEL' looks for the cause",
        )
        raise Stopped(failed, asdict(done))
    if as_json:
        write_document(asdict(done))


def _show(done: FollowUp, compare: bool) -> None:
    ask.show_answer(done.answer)
    if done.compared is not None:
        _show_comparison(done.compared)
    elif compare:
        write_line("\nnot compared: the answer was replayed, and nothing was continued")


def _show_comparison(compared: Comparison) -> None:
    write_line()
    write_facts(
        [
            ("from the state", _cost(compared.continued)),
            ("as text again", _cost(compared.resent)),
            ("same logits", "yes" if compared.same_logits else "NO"),
        ]
    )


def _cost(cost: Cost) -> str:
    return (
        f"{cost.prefill_tokens} tokens computed, {cost.reused_tokens} reused, "
        f"{cost.decode_tokens} decoded, {duration(cost.seconds)}"
    )
