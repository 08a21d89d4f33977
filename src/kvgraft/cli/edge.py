"""The edge itself: whatever a command raises becomes a message and an exit status.

Nothing above this catches errors to print them. `docs/cli.md` lists the statuses.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from kvgraft import errors
from kvgraft.cli.output import console, printable, write_document
from kvgraft.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, KvgraftError, UsageError

PROGRAM = "kvgraft"
EXIT_BROKEN_PIPE = 141  # what a shell reports for a program that SIGPIPE ended

# typer has a copy of click inside, or uses the package: either way this is its ClickException.
_ParseError: type[BaseException] = typer.BadParameter.__mro__[2]


class Stopped(Exception):
    """A command that ended early or whose check failed; `document` is what it has to show.

    In JSON the error stands beside it, in one document.
    """

    def __init__(
        self, cause: KvgraftError | KeyboardInterrupt, document: Mapping[str, Any], hint: str = ""
    ) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.document = document
        self.hint = hint


class Interrupted(KvgraftError):
    """Ctrl-C. What is kept is whole."""

    code, exit_status, http_status = "interrupted", EXIT_INTERRUPTED, 499


class EdgeGroup(TyperGroup):
    """The root command."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line and end the process with its exit status (return it instead
        where `standalone_mode` is off)."""
        words = sys.argv[1:] if args is None else list(args)
        try:
            status = self._run(words, prog_name or PROGRAM, extra)
            sys.stdout.flush()
        except BrokenPipeError:
            _close_quietly()
            status = EXIT_BROKEN_PIPE
        if standalone_mode:
            sys.exit(status)
        return status

    def _run(self, words: list[str], program: str, extra: dict[str, Any]) -> int:
        debug = _has(words, "--debug")
        try:
            with self.make_context(program, list(words), **extra) as context:
                self.invoke(context)
        except typer.Exit as ended:
            return ended.exit_code
        except BrokenPipeError:
            raise
        except (Exception, KeyboardInterrupt) as error:
            if debug:
                traceback.print_exc(file=sys.stderr)
            return self._report(error, words, debug)
        return 0

    def _report(self, error: BaseException, words: list[str], debug: bool) -> int:
        document: Mapping[str, Any] = {}
        hint = ""
        if isinstance(error, Stopped):
            document, hint, error = error.document, error.hint, error.cause
        known = _known(error)
        status = known.exit_status
        hint = known.hint or hint
        if not hint and not (debug and status == EXIT_INTERNAL):
            hint = _HINTS.get(status, "").format(command=self._named(words), program=PROGRAM)
        write_error(known, hint)
        if _has(words, "--json"):
            write_document({"error": {**known.as_dict(), "hint": hint}, **document})
        return status

    def _named(self, words: list[str]) -> str:
        """The command that was meant, as far as it can be told."""
        names = [PROGRAM]
        commands: Any = self.commands
        for word in words:
            if word in commands:
                names.append(word)
                commands = getattr(commands[word], "commands", {})
        return " ".join(names)


# What to do where an error does not say: by its exit status.
_HINTS = {
    errors.EXIT_USAGE: "see '{command} --help'",
    errors.EXIT_INPUT: "see '{command} --help'",
    errors.EXIT_MODEL: "'{program} models ls' names models that can be fetched",
    errors.EXIT_STORE: "'{program} doctor' looks at folders and disks; --store names another",
    errors.EXIT_ARTIFACT: "'{program} store check' names what is damaged",
    errors.EXIT_LIMIT: "give less at a time",
    errors.EXIT_INTERNAL: "'{program} --debug ...' shows where; please report it",
    errors.EXIT_INTERRUPTED: "nothing half-written is left; run it again",
}


def _has(words: Sequence[str], flag: str) -> bool:
    """Whether `flag` is among the options: known even where the line cannot be parsed."""
    options = words[: words.index("--")] if "--" in words else words
    return flag in options


def _known(error: BaseException) -> KvgraftError:
    if isinstance(error, KvgraftError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("interrupted")
    if isinstance(error, _ParseError):
        context = getattr(error, "ctx", None)
        message = str(getattr(error, "format_message", error.__str__)())
        where = context.command_path if context else PROGRAM
        return UsageError(message.rstrip("."), where=where)
    return KvgraftError(f"something unexpected: {type(error).__name__}: {error}")


def error_classes() -> Iterator[type[KvgraftError]]:
    """Every class of `kvgraft.errors`, in the order of that file."""
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, KvgraftError):
            yield value


def write_error(error: KvgraftError, hint: str) -> None:
    """Print `error: what [where]`, and `hint: ...` below it, on standard error."""
    err = console(sys.stderr)
    where = f" [{error.where}]" if error.where else ""
    for name, style, text in (
        ("error", "bold red", error.what + where),
        ("hint", "cyan", hint),
    ):
        if text:
            line = Text.assemble((f"{name}:", style), " ", printable(text))
            err.print(line, soft_wrap=True)


def _close_quietly() -> None:
    """Nobody reads any more: what is still buffered goes nowhere, without a word."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
