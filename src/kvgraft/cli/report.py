"""`kvgraft report`: everything there is to show about a model here, as one page."""

from __future__ import annotations

import contextlib
import shlex
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvgraft.cli import options
from kvgraft.cli.doctor import machine_checks
from kvgraft.cli.edge import Stopped
from kvgraft.cli.option_groups import EngineOptions, grouped
from kvgraft.cli.output import printable, write_document, write_facts, write_line
from kvgraft.cli.probe import parse_offsets
from kvgraft.cli.progress import Watch
from kvgraft.cli.session import fetch_demo
from kvgraft.errors import CheckFailed, InputError, UsageError

if TYPE_CHECKING:
    from kvgraft.evidence.report import Wanted


_Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE.html", help="Where the page goes.")
]
_Saved = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="FILE.json",
        help="Make the page of what an earlier report printed with --json; nothing is run.",
        show_default=False,
    ),
]
_Lengths = Annotated[
    str | None,
    typer.Option(
        "--lengths",
        metavar="N,N,...",
        help="Tokens to measure times and bytes at. Default: 64, 128 and so on up to 4,096, "
        "or as far as the model's context reaches.",
        show_default=False,
    ),
]
_Offsets = Annotated[
    str | None,
    typer.Option(
        "--offsets",
        metavar="N,N,...",
        help="Places to move memory to (see 'kvgraft probe').",
        show_default=False,
    ),
]


@grouped
def report_command(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help=options.MODEL_HELP, show_default=False),
    ] = None,
    output: _Output = Path("report.html"),
    saved: _Saved = None,
    samples: Annotated[
        int, typer.Option("--samples", min=5, metavar="N", help="Prompts to prove on.")
    ] = 50,
    lengths: _Lengths = None,
    offsets: _Offsets = None,
    no_probe: Annotated[bool, typer.Option("--no-probe", help="Leave the probe out.")] = False,
    seed: Annotated[
        int, typer.Option("--seed", min=0, metavar="N", help="Chooses the prompts.")
    ] = 0,
    *,
    chosen: EngineOptions,
    as_json: options.AsJson = False,
) -> None:
    """Prove, measure and probe a model, and put it all on one page.

    Exactness as 'prove' shows it, restore against compute, bytes per token, when storing pays,
    and what 'probe' measures. The page needs no network and carries its raw data. Status 1 when
    the proof fails; the page is written all the same.
    """
    check_output(output)
    if (model is None) == (saved is None):
        raise UsageError("name either a MODEL, or saved data with --from")
    if model is None:
        assert saved is not None
        data, page = _rendered(saved)
    else:
        from kvgraft.evidence.report import Wanted

        wanted = Wanted(
            model=model,
            samples=samples,
            seed=seed,
            lengths=parse_lengths(lengths),
            offsets=parse_offsets(offsets),
            probe=not no_probe,
            options=chosen.as_dict(),
        )
        data, page = _collected(wanted, chosen)
    _finish(data, page, output, as_json)


def _finish(data: dict[str, Any], page: str, output: Path, as_json: bool) -> None:
    from kvgraft.evidence.report_page import verdict
    from kvgraft.store.local import write_whole

    write_whole(output.expanduser().absolute(), page.encode())
    if not as_json:
        for line in verdict(data):
            write_line(printable(line))
        write_line()
        write_facts([("result", "passed" if data["passed"] else "FAILED"), ("page", str(output))])
    if not data["passed"]:
        hint = f"{output} says what failed; do not rely on this engine here"
        raise Stopped(CheckFailed("the proof failed", where=data["model"], hint=hint), data)
    if as_json:
        write_document(data)


def _collected(wanted: Wanted, chosen: EngineOptions) -> tuple[dict[str, Any], str]:
    from kvgraft import __version__
    from kvgraft.evidence.report import collect
    from kvgraft.evidence.report_page import page

    with Watch(f"reporting on {wanted.model}") as watch:
        fetch_demo(wanted.model, chosen.engine.value, watch)
        # Whatever an engine's packages print while they load is not this command's output.
        with contextlib.redirect_stdout(sys.stderr):
            data = collect(
                wanted,
                environment=environment(),
                command=command_line(wanted, chosen),
                version=__version__,
                progress=watch.progress,
                say=watch.say,
            )
    return data, page(data)


def _rendered(saved: Path) -> tuple[dict[str, Any], str]:
    from kvgraft.evidence.report_page import saved_page

    try:
        text = saved.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the saved data cannot be read: {error}", where=str(saved)) from error
    return saved_page(text)


def check_output(path: Path) -> None:
    """Refuse, before anything long begins, a place where no page can be written.

    Raises:
        InputError: a folder or device is there, or the folder is not there or cannot be written.
    """
    path = path.expanduser().absolute()
    hint = "name another file with -o"
    try:
        if path.exists() and not path.is_file():
            what = "a folder" if path.is_dir() else "no plain file"
            raise InputError(f"what is there is {what}", where=str(path), hint=hint)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise InputError(
            f"the page cannot be written: {error.strerror or error}", where=str(path), hint=hint
        ) from error


def environment() -> list[dict[str, str]]:
    """What `doctor` finds, without this machine's folders: they are nobody else's business."""
    return [
        {**asdict(check), "detail": check.detail.partition(" at ")[0]}
        if check.name == "python"
        else asdict(check)
        for check in machine_checks(lambda words: None)
    ]


def parse_lengths(text: str | None) -> list[int] | None:
    """`64,1024` as numbers.

    Raises:
        UsageError: it is something else.
    """
    try:
        return parse_offsets(text)
    except UsageError as error:
        raise UsageError(
            error.what.replace("offsets", "lengths"), hint="for example --lengths 64,1024"
        ) from error


def command_line(wanted: Wanted, chosen: EngineOptions) -> str:
    """The command that repeats a report, as a shell takes it."""
    words = ["kvgraft", "report", wanted.model, "-o", "report.html"]
    words += ["--samples", str(wanted.samples), "--seed", str(wanted.seed)]
    for name, numbers in (("--lengths", wanted.lengths), ("--offsets", wanted.offsets)):
        if numbers is not None:
            words += [name, ",".join(map(str, numbers))]
    if not wanted.probe:
        words.append("--no-probe")
    usual = EngineOptions().as_dict()
    for name, value in chosen.as_dict().items():
        if name != "paranoid" and value != usual[name]:
            words += [f"--{name}", str(value)]
    return shlex.join(words)
