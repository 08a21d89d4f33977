"""What README.md shows is so: its Python example is run, and its commands parse."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import kvgraft.api
from kvgraft.cli.main import make_app
from kvgraft.library.problem import read_problems

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


@pytest.mark.model("demo:smollm2")
@pytest.mark.usefixtures("model_path")
def test_the_python_example_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = blocks("python")
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    out = capsys.readouterr().out
    seen = re.fullmatch(r"(\w+) '(.*)' (\w+) (\d+)\n", out)
    assert seen is not None, out
    # How the model words its answer is another machine class's own affair.
    assert (seen[1], seen[3]) == ("replayed", "True")
    assert "12" in seen[2]
    assert 0 < int(seen[4]) <= 16
    assert (tmp_path / "my-store").is_dir()


def test_the_api_shows_the_same_example() -> None:
    (example,) = blocks("python")
    shown = (kvgraft.api.__doc__ or "").partition("\n\n")[2]
    assert without_comments(shown) == without_comments(example)


def without_comments(source: str) -> list[str]:
    code = [line.partition("#")[0].rstrip() for line in source.splitlines()]
    return [line for line in code if line]


def test_the_commands_parse() -> None:
    lines = [
        line.partition("  #")[0].strip()
        for block in blocks("sh")
        for line in block.splitlines()
        if line.startswith("kvgraft ")
    ]
    assert len(lines) > 5
    for line in lines:
        words = shlex.split(line)[1:]
        command: Any = get_command(make_app())
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command.make_context("kvgraft", words)  # parses, or raises


def test_the_problem_line_is_one(tmp_path: Path) -> None:
    (line,) = re.findall(r'`(\{"problem": .*?\})`', README)
    path = tmp_path / "problems.jsonl"
    path.write_text(line, encoding="utf-8")
    (problem,) = read_problems(path)
    assert problem.expected is not None
