"""Writes docs/cli.md from the command line itself: `python -m kvgraft.cli.docs docs/cli.md`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from kvgraft import errors
from kvgraft.cli.edge import EXIT_BROKEN_PIPE, PROGRAM, Interrupted, error_classes
from kvgraft.cli.main import make_app
from kvgraft.cli.options import example_lines

_INTRODUCTION = f"""# The command line

<!-- Made by `make docs` from the command line itself. Do not edit: a test compares. -->

`{PROGRAM} --help` and `{PROGRAM} COMMAND --help` say the same.

- Results go to standard output; progress, what is about to be fetched and errors go to standard
  error. Colour and moving bars appear on a terminal only; `NO_COLOR` turns colour off.
- An error is two lines: `error: what happened [where]` and `hint: what to do`.
- `--json` prints exactly one JSON document on standard output, and nothing else there. When the
  exit status is not 0, it has an `error` object with `code`, `what`, `where` and `hint`; what the
  command had to show until then stands beside it.
- Ctrl-C leaves nothing half-written. `solve` and `models pull` go on where they stopped.
"""

# What a status says, beyond the errors that have it.
_STATUSES = {
    0: "success; for `solve` also where problems stay unsolved",
    errors.EXIT_FAILED_CHECK: "a check ran to its end, and its answer is no",
    errors.EXIT_USAGE: "the command line is wrong",
    errors.EXIT_INPUT: "what was given is unusable: a file, a line of it, a text, an id",
    errors.EXIT_MODEL: "the model is unknown, unreadable, unsupported or cannot be fetched, or "
    "its server fails",
    errors.EXIT_MISSING_EXTRA: "an optional dependency is not installed",
    errors.EXIT_STORE: "the store or the library cannot be read or written",
    errors.EXIT_ARTIFACT: "a stored artifact cannot be used (a command that can go on without it "
    "computes again, and names the miss)",
    errors.EXIT_LIMIT: "a limit would be passed, such as the model's context",
    errors.EXIT_INTERNAL: "something unexpected; `--debug` shows where",
    errors.EXIT_INTERRUPTED: "interrupted by Ctrl-C",
    EXIT_BROKEN_PIPE: "whoever read the output stopped reading, as `head` does",
}

# The names at the top of each document of `--json`; a test compares.
DOCUMENTS = {
    "doctor": ("ok", "checks"),
    "demo": ("passed", "model", "rows", "totals", "near_misses"),
    "prove": (
        *("passed", "model", "samples", "sha_equal", "reused_as_expected", "controls_detected"),
        *("kl_max", "argmax_agree", "rebuilt_equal", "monolithic", "fingerprint", "controls"),
        *("failures", "rows"),
    ),
    "probe": (
        *("model", "samples", "block_tokens", "suffix_tokens", "control_equal", "fingerprint"),
        "offsets",
    ),
    "report": (
        *("format", "passed", "model", "made_at", "kvgraft", "command", "engine", "proof"),
        *("lengths", "probe", "probe_reason", "environment", "fingerprint", "fingerprint_digest"),
    ),
    "solve": ("outcomes", "totals"),
    "ask": (
        *("how", "text", "answer", "grade", "exact", "cost", "deposit_id", "finished"),
        *("logits_sha256", "context", "kept", "provenance", "reasons", "reuse"),
    ),
    "ask --collection": (
        *("way", "text", "answer", "relevant", "why", "sources", "cost", "times", "finished"),
        *("logits_sha256", "reuse", "provenance"),
    ),
    "ingest": ("files", "forecast", "captured", "totals"),
    "collection ls": ("collections",),
    "collection show": ("about", "totals", "documents"),
    "collection rm": ("removed", "freed_bytes"),
    "follow-up": ("parent", "history_tokens", "answer", "compared"),
    **dict.fromkeys(
        ("study run", "study score", "study report"),
        (
            *("format", "kvgraft", "name", "question", "registration", "problems", "models"),
            *("controls_verified_wrongly", "findings"),
        ),
    ),
    "library ls": ("deposits", "total"),
    "library show": (
        *("id", "created_at", "status", "tenant", "model", "problem", "system", "answer"),
        *("grade", "verifier", "replay", "replay_reason", "source", "expires_at", "fingerprint"),
        *("address", "prompt", "trace", "cue", "token_ids", "answer_ids", "verdict", "judged"),
        *("verified_at", "cost", "provenance", "artifact", "replay_logits_sha256", "parent"),
        *("origin", "revoked_at", "revoke_reason", "audit", "made_with", "supersedes"),
        "superseded_by",
    ),
    "library revoke": ("revoked", "made_with", "dry_run"),
    "library expire": ("changed", "expires_at"),
    "library audit": ("events",),
    "library reverify": ("deposits", "totals"),
    "library rebuild": ("deposits", "totals"),
    "library check": ("ok", "deposits", "problems"),
    "method learn": ("outcomes",),
    "method ls": ("methods",),
    "method show": (
        *("id", "state", "why", "created_at", "revoked_at", "tenant", "model", "grade"),
        *("problems", "phrasings", "programs", "types", "answers", "checker", "cost", "detail"),
        *("evidence", "audit"),
    ),
    "method ask": (
        *("answered", "answer", "grade", "methods", "parameters", "programs", "reason", "detail"),
        "cost",
    ),
    "method revoke": ("revoked",),
    "store stats": ("packs", "pack_bytes", "objects", "roles", "fingerprints", "alarms"),
    "store check": (
        *("ok", "packs", "objects", "fingerprints", "size_bytes", "unlisted_objects"),
        *("problems", "alarms"),
    ),
    "store reindex": ("ok", "packs", "objects", "fingerprints", "size_bytes", "problems"),
    "models pull": ("name", "path", "bytes", "sha256", "license"),
    "models ls": ("cache", "models"),
    "models rm": ("name", "freed_bytes"),
}

_ENVIRONMENT = {
    "KVGRAFT_STORE": "folder of states and deposits, where `--store` is not given",
    "KVGRAFT_ENDPOINT_KEY": "the key of an OpenAI-compatible server, where `--effort` names one",
    "KVGRAFT_DATA": "folder of data sets that studies name; else `../shared/data`",
    "KVGRAFT_CACHE": "folder of fetched and converted models and of their digests",
    "XDG_DATA_HOME": "without `KVGRAFT_STORE`, the store is `kvgraft` in it (else in "
    "`~/.local/share`)",
    "XDG_CACHE_HOME": "without `KVGRAFT_CACHE`, the cache is `kvgraft` in it (else in `~/.cache`)",
    "NO_COLOR": "no colour, even on a terminal",
    "COLUMNS": "width of tables; by default the terminal's, and wide in files and pipes",
}


def markdown() -> str:
    """The whole page."""
    command: Any = typer.main.get_command(make_app())
    # Not as wide as the terminal that happens to be there.
    context = command.make_context(PROGRAM, [], resilient_parsing=True, terminal_width=100)
    parts = [_INTRODUCTION, *_command(command, context), _documents(), _statuses(), _environment()]
    return "\n".join(parts)


def _command(command: Any, context: Any) -> Iterator[str]:
    """The section of a command, then those of its commands."""
    yield f"## `{context.command_path}`\n"
    yield f"{inspect.cleandoc(command.help or '')}\n"
    yield f"```\n{command.get_usage(context)}\n```\n"
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    yield "| argument or option | meaning |\n| - | - |"
    yield "".join(f"| `{_cell(name)}` | {_cell(meaning)} |\n" for name, meaning in records)
    if lines := example_lines(command.epilog):
        yield "```sh\n" + "\n".join(lines) + "\n```\n"
    for name, child in getattr(command, "commands", {}).items():
        inner = child.make_context(name, [], parent=context, resilient_parsing=True)
        yield from _command(child, inner)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _documents() -> str:
    lines = ["## JSON documents\n", "| command | names at the top |", "| - | - |"]
    for name, keys in DOCUMENTS.items():
        lines.append(f"| `{name}` | {', '.join(f'`{key}`' for key in keys)} |")
    return "\n".join(lines) + "\n"


def _statuses() -> str:
    codes: dict[int, list[str]] = {}
    classes: list[type[errors.KvgraftError]] = [*error_classes(), Interrupted]
    for one in classes:
        codes.setdefault(one.exit_status, []).append(one.code)
    lines = ["## Exit statuses\n", "| status | when | `code` in JSON |", "| - | - | - |"]
    for status, meaning in _STATUSES.items():
        listed = ", ".join(f"`{code}`" for code in codes.get(status, ()))
        lines.append(f"| {status} | {meaning} | {listed} |")
    return "\n".join(lines) + "\n"


def _environment() -> str:
    lines = ["## Environment variables\n", "| variable | meaning |", "| - | - |"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in _ENVIRONMENT.items()]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Write the page to the named file; 0, or 2 without a name."""
    if len(arguments) != 1:
        print("usage: python -m kvgraft.cli.docs FILE", file=sys.stderr)
        return errors.EXIT_USAGE
    Path(arguments[0]).write_text(markdown(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
