"""Registering a study: what will be done is written down and hashed before anything is done.

A run folder holds `registration.json`, written first, durable, and never again. Its hash covers
the protocol, the problems (ids, splits, digests of texts and of the key), the code and the models;
every result names it. The answers are not in it, and not in what solvers see: they are sealed in a
`SealedKey`, which opens for a registration of the same key alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import kvgraft
from kvgraft.errors import CheckFailed, InputError
from kvgraft.library.problem import Problem
from kvgraft.store.local import store_error, sync_folder

FORMAT = "kvgraft-registration-1"
NAME, AMENDMENTS = "registration.json", "amendments.jsonl"
PARTS = ("protocol", "data", "code", "models")
# The code may be mended while a long study runs, and then that is written down. All else stays.
_AMENDABLE = ("kvgraft", "sources_sha256")


class SealedKey:
    """The answers by problem id, for scoring. `sha256` covers them all, and may be shown."""

    def __init__(self, answers: Mapping[str, str]) -> None:
        self._answers = dict(answers)
        self.sha256 = digest(self._answers)

    def open(self, registration: Registration) -> Mapping[str, str]:
        """The answers.

        Raises:
            CheckFailed: the registration is not written, or was made for another key.
        """
        if not registration.written:
            raise CheckFailed("the key stays closed until the study is registered")
        registered = registration.parts["data"].get("key_sha256")
        if registered != self.sha256:
            raise CheckFailed(
                "the answers are not those that were registered",
                where=f"{self.sha256[:16]}, registered {str(registered)[:16]}",
            )
        return dict(self._answers)

    def __repr__(self) -> str:
        return f"SealedKey({len(self._answers)} answers, {self.sha256[:16]})"


@dataclass(frozen=True)
class Registration:
    """`parts` are those of `PARTS`; `written` says that they are on disk."""

    parts: Mapping[str, Any]
    registered_at: str = ""
    written: bool = False
    amendments: Sequence[Mapping[str, Any]] = field(default_factory=tuple)

    @property
    def hash(self) -> str:
        """SHA-256 over the canonical JSON of the parts, in hex."""
        return digest({"format": FORMAT, **{name: self.parts[name] for name in PARTS}})


def blind(problems: Iterable[Problem]) -> tuple[list[Problem], SealedKey]:
    """The problems as solvers see them, without answers, and the key to them."""
    given = list(problems)
    answers = {problem.id: problem.expected for problem in given if problem.expected is not None}
    return [replace(problem, expected=None) for problem in given], SealedKey(answers)


def data_part(problems: Iterable[Problem], **splits: Iterable[Problem]) -> dict[str, Any]:
    """The part `data`: digests of the problems and of their key, and who is in which split."""
    given = list(problems)
    _, key = blind(given)
    return {
        "problems": len(given),
        "problems_sha256": problems_digest(given),
        "key_sha256": key.sha256,
        "keys": sum(problem.expected is not None for problem in given),
        "splits": {name: [problem.id for problem in part] for name, part in splits.items()},
    }


def problems_digest(problems: Iterable[Problem]) -> str:
    """SHA-256 over what solvers and verifiers see, in hex; the order does not matter."""
    rows = [[p.id, p.text, p.system, dict(p.checks)] for p in problems]
    return digest(sorted(rows, key=lambda row: str(row[0])))


def code_part() -> dict[str, str]:
    """The part `code`: the version, and a digest of the package's Python files as they are."""
    whole = hashlib.sha256()
    package = Path(kvgraft.__file__).parent
    for path in sorted(package.rglob("*.py"), key=lambda path: path.relative_to(package).parts):
        text = path.read_bytes()
        whole.update(f"{path.relative_to(package).as_posix()}\0{len(text)}\0".encode() + text)
    return {"kvgraft": kvgraft.__version__, "sources_sha256": whole.hexdigest()}


def register(folder: Path, parts: Mapping[str, Any]) -> Registration:
    """Write the registration of a new run, or check that the run in `folder` is this one.

    Another version or digest of our code is added to the amendments, with the time; any other
    difference is refused.

    Raises:
        InputError: a part is missing, unknown or no JSON; what lies there is no registration.
        CheckFailed: the folder holds another study, or results without a registration.
        StoreError: the folder cannot be written.
    """
    if set(parts) != set(PARTS):
        raise InputError(f"a registration has the parts {', '.join(PARTS)}")
    wanted = Registration(json.loads(canonical_json(parts)))
    path = folder / NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            if strangers := sorted(one.name for one in folder.iterdir() if _is_content(one)):
                raise CheckFailed(
                    "the folder holds files, and none is a registration",
                    where=f"{folder}: {', '.join(strangers[:3])}",
                    hint="a study registers first; name an empty folder",
                )
            now = datetime.now(timezone.utc).isoformat(timespec="seconds")
            document = {
                "format": FORMAT,
                "hash": wanted.hash,
                "registered_at": now,
                **wanted.parts,
            }
            _create(path, json.dumps(document, indent=2, sort_keys=True) + "\n")
    except OSError as error:
        raise store_error(error, folder, "registering a study") from error
    return _matching(folder, wanted)


def load_registration(folder: Path) -> Registration:
    """The registration of the run in `folder`.

    Raises:
        InputError: there is none, or its hash is not that of its content.
    """
    path = folder / NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        parts = {name: document[name] for name in PARTS}
        found = Registration(parts, document["registered_at"], True, _amendments(folder))
        whole = document["format"] == FORMAT and document["hash"] == found.hash
    except FileNotFoundError:
        raise InputError(
            "the folder holds no registered study", where=str(folder), hint="run the study first"
        ) from None
    except OSError as error:
        raise store_error(error, path, "reading a registration") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"not a registration: {error!r}", where=str(path)) from error
    if not whole:
        raise InputError("the registration was changed after it was written", where=str(path))
    return found


def _matching(folder: Path, wanted: Registration) -> Registration:
    found = load_registration(folder)
    for name in PARTS:
        here, there = _fixed(name, found.parts[name]), _fixed(name, wanted.parts[name])
        if places := differences(here, there):
            raise CheckFailed(
                f"registered otherwise: {name} differs in {', '.join(places[:3])}",
                where=str(folder),
                hint="a registered study is not changed: take another folder",
            )
    code = wanted.parts["code"]
    latest = found.amendments[-1]["code"] if found.amendments else found.parts["code"]
    if code != latest:
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        line = json.dumps({"at": now, "hash": found.hash, "code": code}, sort_keys=True) + "\n"
        try:
            _append(folder / AMENDMENTS, line)
        except OSError as error:
            raise store_error(error, folder, "amending a registration") from error
        return load_registration(folder)
    return found


def _fixed(name: str, part: Any) -> Any:
    """What of a part stays for ever."""
    if name != "code" or not isinstance(part, dict):
        return part
    return {key: value for key, value in part.items() if key not in _AMENDABLE}


def differences(one: Any, other: Any, place: str = "") -> list[str]:
    """Where two JSON values differ: `model.dtype`, `sets[0].seed`."""
    if isinstance(one, dict) and isinstance(other, dict):
        found = []
        for key in sorted(one.keys() | other.keys()):
            here = f"{place}.{key}" if place else str(key)
            if key not in one or key not in other:
                found.append(here)
            else:
                found += differences(one[key], other[key], here)
        return found
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [spot for n, pair in pairs for spot in differences(*pair, f"{place}[{n}]")]
    # 1, 1.0 and True are equal in Python, and another protocol.
    return [] if canonical_json(one) == canonical_json(other) else [place]


def canonical_json(value: Any) -> str:
    """Sorted keys, no white space, ASCII.

    Raises:
        InputError: not JSON (NaN and infinity are not).
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}") from error


def digest(value: Any) -> str:
    """SHA-256 over `canonical_json`, in hex."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def _is_content(path: Path) -> bool:
    return not path.name.startswith(".")


def _amendments(folder: Path) -> tuple[Mapping[str, Any], ...]:
    try:
        text = (folder / AMENDMENTS).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ()
    return tuple(json.loads(line) for line in text.splitlines() if line)


def _create(path: Path, text: str) -> None:
    """Write a new file, whole and durable; one that is there stays."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        _append(draft, text)
        with contextlib.suppress(FileExistsError):  # another process was first: compared next
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)
