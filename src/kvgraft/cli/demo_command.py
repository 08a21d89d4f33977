"""`kvgraft demo`: the demonstration as a command; `demo` runs it."""

from __future__ import annotations

from typing import Annotated

import typer

from kvgraft.cli import options
from kvgraft.cli.edge import Stopped
from kvgraft.cli.output import console, write_document
from kvgraft.cli.progress import Watch
from kvgraft.errors import CheckFailed


def demo_command(
    model: Annotated[
        str, typer.Option("--model", metavar="MODEL", help=options.MODEL_HELP)
    ] = "demo:smollm2",
    attempts: options.Attempts = 16,
    max_tokens: options.MaxTokens = 80,
    seed: options.Seed = 0,
    engine: options.EngineOption = options.Engine.transformers,
    threads: options.Threads = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the whole way on a real model, in minutes.

    Short problems (14) are asked, then solved by sampling; those with an attempt that verified
    are deposited, and another process asks them all again, from disk. Two controls follow: with
    the library emptied, and with a near miss of every deposited problem, one word or sign of it
    changed. Nothing is kept. Status 1 when it does not show what it claims.
    """
    from kvgraft.cli.demo import DemoOptions, passed, run_demo, show

    chosen = DemoOptions(model, attempts, max_tokens, seed, threads, engine=engine.value)
    try:
        with Watch(f"demonstrating {model}") as watch:
            result = run_demo(chosen, watch.progress, watch.say)
    except KeyboardInterrupt as stop:
        raise Stopped(stop, {}, "the demonstration keeps nothing; run it again") from stop
    document = {"passed": passed(result), **result}
    if not as_json:
        show(result, console())
    if not document["passed"]:
        hint = "the table says where; other --attempts or another --seed change what is solved"
        failed = CheckFailed("the demonstration did not hold", where=model, hint=hint)
        raise Stopped(failed, document)
    if as_json:
        write_document(document)
