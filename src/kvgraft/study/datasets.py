"""Problem sets with answers: JSONL files in three formats, or public data sets from a hub.

    kvgraft   `problem` (or `question`), `answer`, `id`, ...: see `kvgraft.library.problem`
    aime      `problem`, `answer` (an integer from 0 to 999, perhaps with leading zeros), `id`
    gsm8k     `question`, `answer` (worked steps, the key behind the last `####`)

The format is said, never guessed. Samples and splits depend on the seed and on ids alone, so they
stay as they are when the file is put into another order. A problem without an id gets one that is
made of its text.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvgraft.errors import DownloadFailed, InputError, LimitExceeded, MissingExtra, UsageError
from kvgraft.library.problem import Problem, read_problems
from kvgraft.limits import MAX_PROBLEM_LINE_BYTES, MAX_PROBLEMS

_GSM8K_KEY = re.compile(r"####[ \t]*(\S[^\n]*?)\s*\Z")
_AIME_KEY = re.compile(r"0*[0-9]{1,3}")
_DATA_FOLDER = Path("..") / "shared" / "data"


@dataclass(frozen=True)
class Split:
    """Two parts of a problem set that share no problem, each in the order of the set."""

    deposit: tuple[Problem, ...]
    held_out: tuple[Problem, ...]


def data_path(name: str | Path) -> Path:
    """Where a data file lies: in `$KVGRAFT_DATA`, or in `../shared/data` from here.

    An absolute path, or one that is there as it is, stays as it is.

    Raises:
        InputError: there is no such file.
    """
    given = Path(name).expanduser()
    folder = Path(os.environ.get("KVGRAFT_DATA") or _DATA_FOLDER)
    for path in (given, folder / given):
        if path.is_file():
            return path
    raise InputError(
        "there is no such data file",
        where=str(given),
        hint="data is not part of the project: name its folder in KVGRAFT_DATA",
    )


def read_dataset(path: Path, format: str) -> list[Problem]:
    """All problems of a JSONL file, each with its key where it has one.

    Raises:
        UsageError: no such format.
        InputError: no such file, no problems, an unusable line (named), one problem twice.
        LimitExceeded: a line or the number of lines is over its cap.
    """
    parse = _parser(format)
    if format == "kvgraft":
        problems = _named_by_text(path, read_problems(path))
    else:
        rows = _json_lines(path)
        problems = [_parsed(parse, row, f"{path}:{line}") for line, row in rows]
    return checked(problems, str(path))


def read_hub(
    id: str, format: str, *, split: str = "test", config: str | None = None
) -> list[Problem]:
    """A public data set by its id, through the package `datasets`.

    Raises:
        UsageError: no such format.
        MissingExtra: the package is not installed.
        DownloadFailed: the hub cannot be reached, or has no such data set.
        InputError: a row is unusable, or a problem is there twice.
    """
    parse = _parser(format)
    if importlib.util.find_spec("datasets") is None:
        raise MissingExtra(
            "public data sets need the package 'datasets'",
            where=id,
            hint="pip install datasets, or give a JSONL file instead",
        )
    package = importlib.import_module("datasets")
    try:
        rows = package.load_dataset(id, config, split=split)
        taken = [dict(row) for _, row in zip(range(MAX_PROBLEMS + 1), rows, strict=False)]
    except Exception as error:  # whatever the package and its transports raise
        raise DownloadFailed(
            f"the data set cannot be read: {type(error).__name__}: {error}",
            where=id,
            hint="check the id and the network, or give a JSONL file instead",
        ) from error
    where = f"{id}[{split}]"
    return checked(
        [_parsed(parse, row, f"{where} row {n}") for n, row in enumerate(taken, 1)], where
    )


def sample(problems: Iterable[Problem], count: int, seed: int) -> list[Problem]:
    """`count` problems, the same for a seed whatever the order they come in; in that order.

    Raises:
        InputError: there are fewer.
    """
    given = list(problems)
    if not 0 < count <= len(given):
        raise InputError(f"a sample of {count} of {len(given)} problems cannot be taken")
    ranked = sorted(given, key=lambda problem: _rank("sample", seed, problem.id))
    taken = {problem.id for problem in ranked[:count]}
    return [problem for problem in given if problem.id in taken]


def split(
    problems: Iterable[Problem],
    deposit_share: float,
    seed: int,
    family: Callable[[Problem], str] = lambda problem: "",
) -> Split:
    """Split by id, within each family by `deposit_share` (rounded half up).

    Raises:
        UsageError: a share outside 0 to 1.
        InputError: one problem twice.
    """
    if not 0 <= deposit_share <= 1:
        raise UsageError(f"a share is a number from 0 to 1, not {deposit_share}")
    given = checked(list(problems), "the problems to split")
    families: dict[str, list[str]] = {}
    for problem in given:
        families.setdefault(family(problem), []).append(problem.id)
    deposit: set[str] = set()
    for ids in families.values():
        ids.sort(key=lambda id: _rank("split", seed, id))
        deposit.update(ids[: int(len(ids) * deposit_share + 0.5)])
    return Split(
        tuple(problem for problem in given if problem.id in deposit),
        tuple(problem for problem in given if problem.id not in deposit),
    )


def checked(problems: list[Problem], where: str) -> list[Problem]:
    """`problems`, none of them twice: neither an id nor a text under the same system text.

    One text on both sides of a split would be counted as held out and be known.

    Raises:
        InputError: none, or one twice. LimitExceeded: too many.
    """
    if not problems:
        raise InputError("there are no problems", where=where)
    if len(problems) > MAX_PROBLEMS:
        raise LimitExceeded(f"more than {MAX_PROBLEMS:,} problems", where=where)
    ids: set[str] = set()
    texts: dict[tuple[str | None, str], str] = {}
    for problem in problems:
        if problem.id in ids:
            raise InputError(f"the id {problem.id!r} stands there twice", where=where)
        ids.add(problem.id)
        first = texts.setdefault((problem.system, problem.text), problem.id)
        if first != problem.id:
            raise InputError(
                f"{problem.id!r} and {first!r} are the same problem",
                where=where,
                hint="leave one of them out",
            )
    return problems


def text_id(prefix: str, text: str) -> str:
    """An id for a problem that has none: the same for the same text, wherever it stands."""
    return f"{prefix}-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def _rank(purpose: str, seed: int, id: str) -> bytes:
    words = json.dumps(["kvgraft study", purpose, seed, id])
    return hashlib.sha256(words.encode()).digest()


# --- rows ---------------------------------------------------------------------------------------

_Parse = Callable[[Mapping[str, Any]], Problem]


def _parser(format: str) -> _Parse:
    if format not in _PARSERS:
        raise UsageError(
            f"there is no format {format!r}", hint=f"choose from {', '.join(_PARSERS)}"
        )
    return _PARSERS[format]


def _kvgraft(row: Mapping[str, Any]) -> Problem:
    text = _text(row, "problem" if "problem" in row else "question")
    answer = row.get("answer")
    if answer is not None and (isinstance(answer, bool) or not isinstance(answer, str | int)):
        raise InputError("`answer` is neither text nor a whole number")
    problem = Problem("", text, None if answer is None else str(answer))
    return replace(problem, id=_own_id(row) or text_id("problem", problem.text))


def _aime(row: Mapping[str, Any]) -> Problem:
    answer = str(row.get("answer", "")).strip()
    if isinstance(row.get("answer"), bool) or not _AIME_KEY.fullmatch(answer):
        raise InputError(f"`answer` is not an integer from 0 to 999: {answer[:40]!r}")
    problem = Problem("", _text(row, "problem"), answer)
    return replace(problem, id=_own_id(row) or text_id("aime", problem.text))


def _gsm8k(row: Mapping[str, Any]) -> Problem:
    found = _GSM8K_KEY.search(_text(row, "answer"))
    if found is None:
        raise InputError("`answer` does not end with `#### KEY`")
    problem = Problem("", _text(row, "question"), found[1])
    return replace(problem, id=_own_id(row) or text_id("gsm8k", problem.text))


_PARSERS: Mapping[str, _Parse] = {"kvgraft": _kvgraft, "aime": _aime, "gsm8k": _gsm8k}


def _text(row: Mapping[str, Any], name: str) -> str:
    text = row.get(name)
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"`{name}` is missing, empty, or not text")
    return text


def _own_id(row: Mapping[str, Any]) -> str:
    id = row.get("id")
    return "" if id is None else str(id).strip()


def _parsed(parse: _Parse, row: Mapping[str, Any], where: str) -> Problem:
    try:
        return parse(row)
    except InputError as error:
        raise InputError(error.what, where=where, hint=error.hint) from error


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """`(line number, object)` of each line that is not blank."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: _line(file, path), b""), 1):
                where = f"{path}:{number}"
                if not line.strip():
                    continue
                try:
                    row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
                except (ValueError, RecursionError) as error:
                    raise InputError(f"not a line of JSON: {error}", where=where) from None
                if not isinstance(row, dict):
                    raise InputError("the line is not a JSON object", where=where)
                yield number, row
    except OSError as error:
        raise InputError(f"cannot read the file: {error.strerror}", where=str(path)) from error


def _line(file: Any, path: Path) -> bytes:
    line: bytes = file.readline(MAX_PROBLEM_LINE_BYTES + 1)
    if len(line) > MAX_PROBLEM_LINE_BYTES:
        raise LimitExceeded(f"a line is over {MAX_PROBLEM_LINE_BYTES:,} bytes", where=str(path))
    return line


def _named_by_text(path: Path, problems: list[Problem]) -> list[Problem]:
    """Line numbers, which `read_problems` gives where there is no id, do not outlive a reordering;
    digests of texts do."""
    rows = [row for _, row in _json_lines(path)]
    return [
        problem if _own_id(row) else replace(problem, id=text_id("problem", problem.text))
        for problem, row in zip(problems, rows, strict=True)
    ]
