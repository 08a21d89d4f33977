"""Pairs of a gold answer and what a model wrote, for the tests of this folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]


def own_pairs() -> list[dict[str, Any]]:
    return _read(HERE / "pairs.jsonl")


def shared_pairs() -> list[dict[str, Any]] | None:
    """The pairs kept beside the repository, None where there are none."""
    folder = Path(os.environ.get("KVGRAFT_CASES", ROOT.parent / "shared" / "cases"))
    path = folder / "answer_pairs.jsonl"
    return _read(path) if path.is_file() else None


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
