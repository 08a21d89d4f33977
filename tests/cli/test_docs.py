"""docs/cli.md is what the command line says of itself."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from kvgraft.cli import docs
from kvgraft.cli.edge import error_classes
from kvgraft.cli.main import make_app
from kvgraft.cli.options import example_lines

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


ALL = dict(commands(typer.main.get_command(make_app())))


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text(encoding="utf-8") == docs.markdown(), "run: make docs"


def test_the_page_does_not_depend_on_the_terminal(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert docs.markdown() == PAGE.read_text(encoding="utf-8")


def test_it_writes_the_page(tmp_path) -> None:
    assert docs.main([str(tmp_path / "cli.md")]) == 0
    assert (tmp_path / "cli.md").read_bytes() == PAGE.read_bytes()
    assert docs.main([]) == 2


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_has_an_example_that_parses(run, path: tuple[str, ...]) -> None:
    lines = example_lines(ALL[path].epilog)
    assert lines
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "kvgraft"
        names: tuple[str, ...] = ()
        while words and (*names, words[0]) in ALL:
            names = (*names, words.pop(0))
        assert names[: len(path)] == path
        ALL[names].make_context(" ".join(names), words)  # parses, or raises
    seen = run(*path, "--help")
    assert seen.status == 0
    for line in lines:
        assert f"  {line}\n" in seen.stdout  # neither wrapped nor cut
    # A summary in a list of commands is not cut off.
    assert "...\n" not in seen.stdout.partition("Commands:")[2]


def test_every_error_has_a_documented_status() -> None:
    for one in error_classes():
        assert one.exit_status in docs._STATUSES, one
        assert f"`{one.code}`" in docs.markdown()


def test_every_command_that_reports_has_json(run) -> None:
    leaves = [path for path, command in ALL.items() if not hasattr(command, "commands")]
    for path in leaves:
        options = [name for parameter in ALL[path].params for name in parameter.opts]
        assert "--json" in options
    described = {name.partition(" --")[0] for name in docs.DOCUMENTS}
    assert {" ".join(path) for path in leaves} == described


def test_common_options_are_the_same_everywhere() -> None:
    seen: dict[str, set[str]] = {}
    for command in ALL.values():
        for parameter in command.params:
            if parameter.opts[0] in ("--store", "--tenant", "--json", "--threads", "--dtype"):
                seen.setdefault(parameter.opts[0], set()).add(str(parameter.help))
    assert {len(texts) for texts in seen.values()} == {1}


def test_the_root_without_a_command_is_help(run) -> None:
    seen = run()
    assert seen.status == 0
    assert seen.stdout == run("--help").stdout
    for name in ("KVGRAFT_STORE", "KVGRAFT_CACHE"):
        assert name in seen.stdout
