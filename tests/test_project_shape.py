"""The shape of the project, as rules a machine can hold (docs/ARCHITECTURE.md has the reasons).

Import directions are not here: import-linter holds them (pyproject.toml).
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted([*ROOT.glob("src/**/*.py"), *ROOT.glob("benchmarks/**/*.py")])

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 70

# A name that says nothing attracts everything.
EMPTY_NAMES = {"common", "helper", "helpers", "misc", "util", "utils"}

# Formats that run code when they are read.
CODE_RUNNING_FORMATS = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}

# Words of one machine or one network, written in pieces so that this file does not contain them.
MACHINE_WORDS = re.compile(
    "|".join(
        [
            r"(?<![\w.~-])/(?:" + "work|root|farm" + r")/",
            r"(?<![\w.~-])/(?:home|Users)/[A-Za-z]",
            r"/tmp/(?:" + "exp|bash_jobs" + r")\b",
            r"/opt/(?:" + "pypi|wheels" + r")\b",
            r"\b(?:test\.)?" + "pypi" + r"\.org\b",
            r"\b" + "files.python" + r"hosted\.org\b",
            r"\b" + "download.pytorch" + r"\.org\b",
            r"\b" + "registry.npm" + r"js\.org\b",
            r"\b" + "deb.debian" + r"\.org\b",
        ]
    )
)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def project_files() -> list[Path]:
    """The files of a commit made now; in an unpacked archive, all files."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if listing.returncode == 0:
        found = [ROOT / name for name in listing.stdout.decode().split("\0") if name]
    else:
        found = [
            path
            for path in ROOT.rglob("*")
            if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
        ]
    return sorted(path for path in found if path.is_file())


def texts() -> Iterator[tuple[Path, str]]:
    for path in project_files():
        try:
            yield path, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # golden and damaged files


def test_there_are_sources() -> None:
    assert len(SOURCES) > 2


def test_modules_are_short() -> None:
    lengths = {relative(path): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: n for name, n in lengths.items() if n >= MAX_MODULE_LINES} == {}


def test_functions_are_short() -> None:
    long = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                lines = node.end_lineno - node.lineno + 1
                if lines >= MAX_FUNCTION_LINES:
                    long[f"{relative(path)}:{node.lineno} {node.name}"] = lines
    assert long == {}


def test_no_module_has_an_empty_name() -> None:
    assert [relative(path) for path in SOURCES if EMPTY_NAMES & {path.stem, path.parent.name}] == []


def test_no_module_reads_a_format_that_runs_code() -> None:
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            found += [
                f"{relative(path)}: {name}"
                for name in names
                if name.partition(".")[0] in CODE_RUNNING_FORMATS
            ]
    assert found == []


@pytest.mark.parametrize("modules", ["kvgraft", "kvgraft.cli.main"])
def test_the_core_imports_no_tensor_framework(modules: str) -> None:
    script = (
        f"import sys, {modules}\n"
        "heavy = {'torch', 'transformers', 'llama_cpp', 'vllm', 'sympy', 'math_verify'}\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


def test_no_file_names_a_machine_or_an_index_host() -> None:
    found = [
        f"{relative(path)}:{number}: {match[0]}"
        for path, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        for match in MACHINE_WORDS.finditer(line)
    ]
    assert found == []


def test_every_make_target_named_in_the_docs_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, flags=re.MULTILINE))
    assert {"demo", "test"} <= targets
    missing = []
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        code = re.findall(r"```.*?```|`[^`\n]+`", path.read_text(), flags=re.DOTALL)
        named = re.findall(r"(?:^|[`$;&]\s*)make ([a-z][a-z-]*)", "\n".join(code), re.MULTILINE)
        missing += [f"{relative(path)}: make {name}" for name in named if name not in targets]
    assert missing == []
