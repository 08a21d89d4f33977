"""From what the user wrote as a model to what an engine can load."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kvgraft.engines import catalog
from kvgraft.engines.modelcache import Progress, Say
from kvgraft.errors import UnknownModel

Kind = Literal["demo", "folder", "gguf", "hub"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_ACCEPTED = (
    "give demo:NAME, a folder with config.json, a .gguf file, or a Hugging Face id (org/name)"
)


@dataclass(frozen=True)
class ResolvedModel:
    """A model that was found. Exactly one of `folder`, `hub_id` and `gguf` is set.

    `source` names it for people and records: `demo:NAME`, an absolute path, or the hub id.
    """

    kind: Kind
    source: str
    folder: Path | None = None
    hub_id: str | None = None
    gguf: Path | None = None


def _no_progress(stage: str, done: int, total: int) -> None:
    pass


def _silent(line: str) -> None:
    pass


def resolve(model: str, *, progress: Progress = _no_progress, say: Say = _silent) -> ResolvedModel:
    """Find `model`: `demo:NAME` (pulled if absent), a folder, a `.gguf` file, or a hub id.

    Something that exists on disk wins over a hub id of the same spelling; a hub id is passed on
    unchecked. Raises UnknownModel, and what `catalog.pull` raises.
    """
    if model.startswith("demo:"):
        return ResolvedModel("demo", model, gguf=catalog.pull(model, progress, say))
    try:
        path = Path(model).expanduser()
        if model.strip() and path.is_dir():
            return _folder(path.resolve())
        if model.strip() and path.exists():
            return _file(path.resolve())
    except (OSError, ValueError, RuntimeError) as exc:  # too long, a NUL, an unknown ~user
        what = f"cannot look at {model!r}: {exc}"
        raise UnknownModel(what, where=model, hint=_ACCEPTED) from exc
    if _HUB_ID.fullmatch(model) and not model.lower().endswith(".gguf"):
        return ResolvedModel("hub", model, hub_id=model)
    near = difflib.get_close_matches(f"demo:{model.lower()}", catalog.CATALOG, n=1)
    hint = f"did you mean {near[0]}? {_ACCEPTED}" if near else _ACCEPTED
    raise UnknownModel(f"no model at {model!r}", where=model, hint=hint)


def _folder(path: Path) -> ResolvedModel:
    if (path / "config.json").is_file():
        return ResolvedModel("folder", str(path), folder=path)
    files = sorted(path.glob("*.gguf"))
    hint = f"name the file itself: {files[0]}" if files else _ACCEPTED
    raise UnknownModel("the folder has no config.json", where=str(path), hint=hint)


def _file(path: Path) -> ResolvedModel:
    # By content as well: download caches drop the ending.
    if path.suffix.lower() == ".gguf" or _starts_like_gguf(path):
        return ResolvedModel("gguf", str(path), gguf=path)
    raise UnknownModel("the file is not a GGUF model", where=str(path), hint=_ACCEPTED)


def _starts_like_gguf(path: Path) -> bool:
    if not path.is_file():  # opening a pipe would block
        return False
    with path.open("rb") as handle:
        return handle.read(4) == b"GGUF"
