"""The command line: which commands there are. `edge` runs them, each has a module of its own."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from kvgraft.cli import (
    ask,
    collection,
    demo_command,
    doctor,
    followup,
    ingest,
    library,
    library_again,
    library_life,
    methods,
    methods_learn,
    models,
    probe,
    prove,
    report,
    solve,
    store,
    study,
)
from kvgraft.cli.edge import PROGRAM, EdgeGroup
from kvgraft.cli.options import examples

ENVIRONMENT = {
    "KVGRAFT_STORE": "folder of states and deposits (--store)",
    "KVGRAFT_CACHE": "folder of fetched and converted models",
}


def make_app() -> typer.Typer:
    """The whole command line."""
    app = _group("Exact, persistent memory for frozen language models.", cls=EdgeGroup)
    first = examples(
        "kvgraft demo",
        "kvgraft prove demo:smollm2 --samples 10",
        "kvgraft solve problems.jsonl --model demo:smollm2 --verifier math",
        "kvgraft ask 'What is 17 + 25?' --model demo:smollm2",
    )
    variables = [f"  {name}  {meaning}" for name, meaning in ENVIRONMENT.items()]
    first += "\n".join(["\n\n\b", "Environment:", *variables])
    app.callback(invoke_without_command=True, epilog=first)(root)
    app.command("doctor", epilog=examples("kvgraft doctor"))(doctor.doctor_command)
    demo = examples("kvgraft demo", "kvgraft demo --attempts 32 --json")
    app.command("demo", epilog=demo)(demo_command.demo_command)
    _add_prove(app)
    _add_probe(app)
    _add_report(app)
    _add_solve(app)
    _add_ask(app)
    _add_follow_up(app)
    _add_ingest(app)
    _add_collection(app)
    _add_study(app)
    _add_library(app)
    _add_method(app)
    _add_store(app)
    _add_models(app)
    return app


def _add_prove(app: typer.Typer) -> None:
    shown = examples(
        "kvgraft prove toy --samples 10",
        "kvgraft prove demo:gemma3 --dtype float32 --json",
    )
    app.command("prove", epilog=shown)(prove.prove_command)


def _add_probe(app: typer.Typer) -> None:
    shown = examples(
        "kvgraft probe toy --offsets 8,128,1024",
        "kvgraft probe demo:gemma3 --offsets 8,4096 --samples 4 -o probe.svg",
    )
    app.command("probe", epilog=shown)(probe.probe_command)


def _add_report(app: typer.Typer) -> None:
    shown = examples(
        "kvgraft report toy --samples 10 -o report.html",
        "kvgraft report demo:smollm2 --lengths 64,1024 --no-probe --json",
        "kvgraft report --from report.json -o report.html",
    )
    app.command("report", epilog=shown)(report.report_command)


def _add_solve(app: typer.Typer) -> None:
    shown = examples(
        "kvgraft solve problems.jsonl --model demo:smollm2 --verifier math --attempts 16",
        "kvgraft solve code.jsonl --model demo:qwen-coder-0.5b --verifier 'command:./check.py'",
        "kvgraft solve hard.jsonl --model demo:qwen-coder-0.5b --verifier math "
        "--effort 'greedy + sample:8 + correct:2 + larger:demo:qwen-coder-1.5b' "
        "--budget-tokens 20000",
    )
    app.command("solve", epilog=shown)(solve.solve_command)


def _add_ask(app: typer.Typer) -> None:
    shown = examples(
        "kvgraft ask 'What is 17 + 25?' --model demo:smollm2",
        "kvgraft ask --file problem.txt --model demo:smollm2 --minimum replayed --json",
        "kvgraft ask 'What is 6 * 7?' --model demo:smollm2 --verifier math --expected 42",
        "kvgraft ask 'What is 6 * 7?' --model demo:smollm2 --verifier math --expected 42 "
        "--transfer single --attempts 8 --keep",
    )
    app.command("ask", epilog=shown)(ask.ask_command)


def _add_follow_up(app: typer.Typer) -> None:
    shown = examples(
        "kvgraft follow-up 0650f6d2b3a4c1f00ddecafe 'Explain step 2.' --model demo:smollm2",
        "kvgraft follow-up 0650f6d2b3a4c1f00ddecafe 'And for 12?' --model demo:smollm2 --compare",
    )
    app.command("follow-up", epilog=shown)(followup.follow_up_command)


def _add_ingest(app: typer.Typer) -> None:
    shown = examples(
        "kvgraft ingest manuals/ --collection manuals --model demo:qwen-coder-0.5b",
        "kvgraft ingest notes.md paper.pdf -c papers --model demo:gemma3 --page-tokens 8192",
    )
    app.command("ingest", epilog=shown)(ingest.ingest_command)


def _add_collection(app: typer.Typer) -> None:
    group = _group("Collections of documents: list, show, remove.", "kvgraft collection ls")
    app.add_typer(group, name="collection")
    group.command("ls", epilog=examples("kvgraft collection ls"))(collection.ls_command)
    shown = examples("kvgraft collection show manuals --json")
    group.command("show", epilog=shown)(collection.show_command)
    removing = examples(
        "kvgraft collection rm manuals --document manuals/old.html",
        "kvgraft collection rm manuals --all",
    )
    group.command("rm", epilog=removing)(collection.rm_command)


def _add_study(app: typer.Typer) -> None:
    run = (
        "kvgraft study run demo.json --out demo-study",
        "kvgraft study run demo.json --out demo-study --resume",
    )
    score = "kvgraft study score demo-study --data ../shared/data"
    report = "kvgraft study report demo-study -o report.html"
    group = _group("Studies that are registered before they are run.", run[0], report)
    group.command("run", epilog=examples(*run))(study.run_command)
    group.command("score", epilog=examples(score))(study.score_command)
    group.command("report", epilog=examples(report))(study.report_command)
    app.add_typer(group, name="study")


def _add_library(app: typer.Typer) -> None:
    id = "0650f6d2b3a4c1f00ddecafe"
    ls = ("kvgraft library ls", "kvgraft library ls --status all --model demo:smollm2 --json")
    show = f"kvgraft library show {id}"
    group = _group("Deposits: list, show, check; revoke, verify, make again.", ls[0], show)
    group.command("ls", epilog=examples(*ls))(library.ls_command)
    group.command("show", epilog=examples(show))(library.show_command)
    group.command("check", epilog=examples("kvgraft library check"))(library.check_command)
    _add_library_life(group, id)
    app.add_typer(group, name="library")


def _add_library_life(group: typer.Typer, id: str) -> None:
    revoke = (
        f"kvgraft library revoke {id} --reason 'the key was wrong'",
        "kvgraft library revoke --verifier math --verifier-version 2 --reason 'a bug' --dry-run",
        "kvgraft library revoke --source ask --model demo:smollm2 --reason 'never looked at'",
    )
    expire = (f"kvgraft library expire {id} --in 90", f"kvgraft library expire {id} --never")
    audit = ("kvgraft library audit --since 2027-01-01", f"kvgraft library audit --id {id} --json")
    reverify = (
        "kvgraft library reverify --due 30",
        "kvgraft library reverify --verifier math --revoke-failed",
        "kvgraft library reverify --verifier 'command:./check.py' --json",
    )
    rebuild = (
        "kvgraft library rebuild demo:smollm2 --all",
        f"kvgraft library rebuild demo:qwen-coder-0.5b --id {id}",
    )
    group.command("revoke", epilog=examples(*revoke))(library_life.revoke_command)
    group.command("expire", epilog=examples(*expire))(library_life.expire_command)
    group.command("audit", epilog=examples(*audit))(library_life.audit_command)
    group.command("reverify", epilog=examples(*reverify))(library_again.reverify_command)
    group.command("rebuild", epilog=examples(*rebuild))(library_again.rebuild_command)


def _add_method(app: typer.Typer) -> None:
    id = "0661797f2c4b1e5d0c0ffee1"
    learn = (
        "kvgraft method learn --model demo:qwen-coder-1.5b",
        "kvgraft method learn --problems solved.jsonl --model demo:qwen-coder-1.5b --json",
    )
    ask = "kvgraft method ask 'What is the remainder when 7^20 is divided by 11?'"
    revoke = f"kvgraft method revoke {id} --reason 'wrong for leap years'"
    group = _group("Programs that answer families of problems: learn, ask, revoke.", learn[0], ask)
    group.command("learn", epilog=examples(*learn))(methods_learn.learn_command)
    group.command("ls", epilog=examples("kvgraft method ls"))(methods.ls_command)
    group.command("show", epilog=examples(f"kvgraft method show {id}"))(methods.show_command)
    group.command("ask", epilog=examples(ask))(methods.ask_command)
    group.command("revoke", epilog=examples(revoke))(methods.revoke_command)
    app.add_typer(group, name="method")


def _add_store(app: typer.Typer) -> None:
    stats, reindex = "kvgraft store stats", "kvgraft store reindex"
    check = ("kvgraft store check", "kvgraft store check --store /mnt/backup/kvgraft --json")
    group = _group("Stored states: count, check, list anew.", stats, check[0])
    group.command("stats", epilog=examples(stats))(store.stats_command)
    group.command("check", epilog=examples(*check))(store.check_command)
    group.command("reindex", epilog=examples(reindex))(store.reindex_command)
    app.add_typer(group, name="store")


def _add_models(app: typer.Typer) -> None:
    ls, pull, rm = (
        f"kvgraft models {rest}" for rest in ("ls", "pull demo:smollm2", "rm demo:gemma3")
    )
    group = _group("Demo models: fetch, list, remove. They lie in $KVGRAFT_CACHE.", ls, pull)
    group.command("pull", epilog=examples(pull))(models.pull_command)
    group.command("ls", epilog=examples(ls))(models.ls_command)
    group.command("rm", epilog=examples(rm))(models.rm_command)
    app.add_typer(group, name="models")


def _group(help: str, *shown: str, cls: type[EdgeGroup] | None = None) -> typer.Typer:
    # Plain help: it keeps examples as they are, and needs no terminal.
    return typer.Typer(
        cls=cls,
        help=help,
        epilog=examples(*shown) if shown else None,
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
    )


def _version(wanted: bool) -> None:
    if wanted:
        from kvgraft import __version__

        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


def root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where an error came from (a traceback).")
    ] = False,
) -> None:
    """Exact, persistent memory for frozen language models."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the command line and end the process."""
    # A stream that the caller closed must not make another one take its place.
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115 (until the end)
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What a terminal cannot show must not end a command.
            stream.reconfigure(errors="backslashreplace")
    make_app()(prog_name=PROGRAM)


if __name__ == "__main__":
    main()
