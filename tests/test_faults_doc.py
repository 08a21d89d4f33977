"""docs/FAULTS.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_named_test_exists() -> None:
    page = (ROOT / "docs/FAULTS.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/.]+\.py)::(\w+)`", page)
    assert len(named) > 30
    missing = [
        f"{path}::{name}"
        for path, name in named
        if f"def {name}(" not in (ROOT / path).read_text(encoding="utf-8")
    ]
    assert missing == []
