"""`kvgraft study`: run a registered protocol, score it, make its page."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kvgraft.cli import options
from kvgraft.cli.edge import Stopped
from kvgraft.cli.output import printable, write_document, write_facts, write_line
from kvgraft.cli.progress import Watch
from kvgraft.cli.report import check_output
from kvgraft.cli.session import fetch_demo
from kvgraft.errors import CheckFailed

PAGE = "report.html"
_RESUME = "the same command with --resume goes on; what is finished is kept"

ProtocolFile = Annotated[
    Path,
    typer.Argument(
        metavar="PROTOCOL.json", help="What is to be done, and nothing else (docs/STUDY.md)."
    ),
]
Out = Annotated[
    Path,
    typer.Option("--out", metavar="DIR", help="Folder of the run: empty, or one to be resumed."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with a study that is registered in the folder.")
]
RunFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.")]
Data = Annotated[
    Path,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Where the protocol's data files are named from; generated problems need none.",
    ),
]
Page = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE.html",
        help="Where the page goes. Default: report.html in the folder.",
        show_default=False,
    ),
]


def run_command(
    protocol: ProtocolFile,
    out: Out,
    resume: Resume = False,
    as_json: options.AsJson = False,
) -> None:
    """Register a study, run it, score it, make its page.

    The registration is written before the first attempt and never again. Results are kept as they
    come: Ctrl-C loses at most the one being made. The answers are opened when all results are
    there. Status 1 when a control failed: a wrong answer was vouched for.
    """
    from kvgraft.study.protocol import read_protocol
    from kvgraft.study.run import run_study

    plan = read_protocol(protocol)
    folder = out.expanduser()
    try:
        with Watch(f"study {plan.name}") as watch:
            for model in plan.models:
                fetch_demo(model.name, model.engine, watch)
            registration = run_study(
                plan,
                folder,
                base=protocol.expanduser().parent,
                resume=resume,
                follow=watch.progress,
                say=watch.say,
            )
    except KeyboardInterrupt as error:
        raise Stopped(error, {"folder": str(folder)}, _RESUME) from error
    if not as_json:
        write_line(f"registered as {registration.hash}")
    _scored(folder, protocol.expanduser().parent, folder / PAGE, as_json)


def score_command(folder: RunFolder, data: Data = Path(), as_json: options.AsJson = False) -> None:
    """Score a finished study again, from its raw results. Needs no model."""
    folder = folder.expanduser()
    _scored(folder, data.expanduser(), folder / PAGE, as_json)


def report_command(folder: RunFolder, output: Page = None, as_json: options.AsJson = False) -> None:
    """Make the page of a study that was scored."""
    from kvgraft.study.report import load_figures

    folder = folder.expanduser()
    figures = load_figures(folder)
    _finish(figures, folder, output or folder / PAGE, as_json)


def _scored(folder: Path, base: Path, page: Path, as_json: bool) -> None:
    from kvgraft.study.report import score_study

    # Whatever a verifier's packages print is not this command's output.
    with Watch("scoring"), contextlib.redirect_stdout(sys.stderr):
        figures = score_study(folder, base)
    _finish(figures, folder, page, as_json)


def _finish(figures: dict[str, Any], folder: Path, output: Path, as_json: bool) -> None:
    from kvgraft.store.local import write_whole
    from kvgraft.study.page import page
    from kvgraft.study.report import raw_results

    check_output(output)
    write_whole(output.expanduser().absolute(), page(figures, raw_results(folder)).encode())
    if not as_json:
        for line in figures["findings"]:
            write_line(printable(line))
        write_line()
        wrong = figures["controls_verified_wrongly"]
        verdict = "none were run" if wrong is None else "FAILED" if wrong else "passed"
        write_facts([("controls", verdict), ("page", str(output))])
    if figures["controls_verified_wrongly"]:
        what = f"{figures['controls_verified_wrongly']} wrong answers were vouched for"
        raise Stopped(CheckFailed(what, where=str(folder), hint=f"see {output}"), figures)
    if as_json:
        write_document(figures)
