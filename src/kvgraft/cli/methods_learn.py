"""`kvgraft method learn`: methods from deposits, or from solved problems of a file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvgraft.cli import options
from kvgraft.cli.methods import library_in
from kvgraft.cli.option_groups import MemoryOptions, grouped
from kvgraft.cli.output import counted, duration, one_line, write_document, write_line, write_table
from kvgraft.cli.progress import Watch
from kvgraft.cli.session import opened, store_folder
from kvgraft.errors import InputError, RecordNotFound

if TYPE_CHECKING:
    from kvgraft.library.methods.learn import Learned
    from kvgraft.library.methods.trial import Instance
    from kvgraft.library.records import Library

Deposits = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="DEPOSIT",
        help="Ids of deposits to learn from. Default: every active one of the tenant.",
        show_default=False,
    ),
]
Problems = Annotated[
    Path | None,
    typer.Option(
        "--problems",
        metavar="FILE.jsonl",
        help="Learn from solved problems of a file too, or instead; each needs its answer.",
        show_default=False,
    ),
]
OptionalModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help=f"Writes the programs: {options.MODEL_HELP} Without one no method is made, but those "
        "that are there take up other phrasings.",
        show_default=False,
    ),
]


@grouped
def learn_command(
    deposits: Deposits = None,
    problems: Problems = None,
    model: OptionalModel = None,
    attempts: options.Attempts = 8,
    max_tokens: options.MaxTokens = 200,
    seed: options.Seed = 0,
    *,
    memory_options: MemoryOptions,
    as_json: options.AsJson = False,
) -> None:
    """Learn methods from solved problems.

    Problems are put together by their phrasing. A method that is there takes a phrasing up if its
    programs give every answer. Otherwise the model writes programs from six of the problems, in two
    batches of attempts; they have to answer the rest, which it does not see, and two that differ
    are kept. What is not learned is told, with the reason, and is no error.
    """
    from kvgraft.decode import Sampling
    from kvgraft.library.attempts import LocalModel
    from kvgraft.library.methods.learn import Learner
    from kvgraft.library.methods.records import METHODS_NAME, Methods
    from kvgraft.library.methods.writing import WritingEffort

    folder, tenant = store_folder(memory_options.store), memory_options.tenant
    given = _solved_in(problems) if problems is not None else ()
    effort = WritingEffort(
        attempts=attempts, max_new_tokens=max_tokens, sampling=Sampling(seed=seed)
    )
    with library_in(folder) as library:
        found = (*_deposited(library, tenant, deposits, problems is None), *given)
        if not found:
            raise InputError("there are no solved problems to learn from", where=str(folder))
        with Methods(folder / METHODS_NAME) as methods, Watch("learning") as watch:
            if model is None:
                learner = Learner(methods, library, None, tenant, effort)
                outcomes = learner.learn(found)
            else:
                watch.restart(f"opening {model}")
                with opened(model, memory_options, watch) as memory:
                    watch.restart("learning")
                    space = memory.workspace
                    writer = LocalModel(space.engine, space.chunks, space.salt, space.load)
                    learner = Learner(methods, memory.library, writer, tenant, effort)
                    outcomes = learner.learn(found)
    if as_json:
        write_document({"outcomes": [_outcome(one) for one in outcomes]})
    else:
        _show(outcomes)


def _solved_in(file: Path) -> tuple[Instance, ...]:
    from kvgraft.library.methods.trial import Instance
    from kvgraft.library.problem import read_problems

    problems = read_problems(file)
    for problem in problems:
        if not (problem.expected or "").strip() or problem.system is not None:
            raise InputError(
                f"problem {problem.id!r} has no answer, or has a system text",
                where=str(file),
                hint='give each problem an "answer", and no "system"',
            )
    # The answers are keys: whoever gives the file vouches for them.
    return tuple(Instance(one.text, one.expected or "", "proved") for one in problems)


def _deposited(
    library: Library | None, tenant: str, ids: list[str] | None, otherwise_all: bool
) -> tuple[Instance, ...]:
    from kvgraft.library.methods.learn import instances_of

    if library is None:
        if ids:
            raise RecordNotFound("there is no library yet", where=ids[0])
        return ()
    return instances_of(library, tenant, ids) if ids or otherwise_all else ()


def _outcome(one: Learned) -> dict[str, Any]:
    return {**asdict(one), "cost": one.cost.as_dict()}


def _show(outcomes: tuple[Learned, ...]) -> None:
    write_table(
        ["state", "problems", "method", "phrasing", "why"],
        [
            [
                one.state.replace("_", " "),
                str(one.instances),
                one.method or "-",
                one_line(one.phrasing, 60),
                one_line(one.detail, 160),
            ]
            for one in outcomes
        ],
        right=("problems",),
    )
    tokens = sum(one.cost.decode_tokens or 0 for one in outcomes)
    seconds = duration(sum(one.cost.seconds for one in outcomes))
    write_line(f"{counted(len(outcomes), 'phrasing')}; {tokens:,} tokens decoded in {seconds}")
