"""Groups of options: typer sees the options, the command gets the group."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from kvgraft.cli import options
from kvgraft.cli.option_groups import EngineOptions, MemoryOptions, grouped


@dataclass(frozen=True)
class Inner:
    size: Annotated[int, typer.Option("--size", min=1)] = 3
    dtype: options.DtypeOption = options.Dtype.bfloat16


@dataclass(frozen=True)
class Outer:
    name: Annotated[str, typer.Option("--name")] = "a"
    inner: Inner = field(default_factory=Inner)


def call(*words: str) -> tuple[int, list[object]]:
    seen: list[object] = []
    app = typer.Typer()

    @app.command()
    @grouped
    def show(
        what: Annotated[str, typer.Argument()],
        *,
        group: Outer,
        loud: Annotated[bool, typer.Option("--loud")] = False,
    ) -> None:
        """Show it."""
        seen.extend([what, group, loud])

    return CliRunner().invoke(app, list(words)).exit_code, seen


def test_a_group_stands_for_its_options() -> None:
    assert call("x") == (0, ["x", Outer(), False])
    words = ("x", "--name", "b", "--size", "5", "--dtype", "float32", "--loud")
    assert call(*words) == (0, ["x", Outer("b", Inner(5, options.Dtype.float32)), True])


@pytest.mark.parametrize("words", [("x", "--size", "0"), ("x", "--group", "y"), ()], ids=str)
def test_options_of_a_group_are_checked_like_others(words: tuple[str, ...]) -> None:
    assert call(*words) == (2, [])


def test_the_command_keeps_its_name_and_its_order() -> None:
    @grouped
    def show(*, first: str, group: MemoryOptions, last: str) -> None:
        """Show it."""

    assert (show.__name__, show.__doc__) == ("show", "Show it.")
    names = list(inspect.signature(show).parameters)
    engine = ["engine", "dtype", "device", "threads", "paranoid"]
    assert names == ["first", "store", "tenant", "load", *engine, "last"]


def test_engine_options_are_what_an_engine_takes() -> None:
    plain = {
        "engine": "transformers",
        "dtype": "bfloat16",
        "device": "cpu",
        "threads": None,
        "paranoid": False,
    }
    assert EngineOptions().as_dict() == plain
    assert {type(value) for value in EngineOptions().as_dict().values()} == {str, type(None), bool}
