"""The flywheel's figures: selection, near misses, replays, methods, controls.

    python benchmarks/flywheel.py [--only PARTS] [--methods FILE] [--study DIR] [--json FILE]

`select` and `near_misses` are measured here. The others are read from what made them: `--methods`
takes the JSON of `benchmarks/methods.py`, `--study` the folder of `kvgraft study` (or
`make study-demo`); replays and the ratio of tokens come from `benchmarks/results/headline.json`.
What is not there is "not measured".
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import harness

TARGETS: dict[str, tuple[str, float]] = {
    "replay_right_share": (">=", 1.0),
    "replay_decode_tokens_median": ("<=", 8),
    "token_ratio_failed_first": (">=", 300),
    "near_miss_wrong_replays": ("<=", 0),
    "near_misses": (">=", 500),
    "method_families": (">=", 9),
    "method_right_share": (">=", 1.0),
    "controls_verified_wrongly": ("<=", 0),
    "select_us": ("<=", 15),
    "select_flatness": ("<=", 1.5),
}
FEW, MANY = 4_500, 1_000_000
HEADLINE = Path(__file__).parent / "results" / "headline.json"

Found = dict[str, Any]


def part_select(job: Found) -> Found:
    """Microseconds of one look-up, address and revocation included, among so many deposits."""
    return {"us": harness.lookup_us(job["records"])}


PARTS = {"select": part_select}


def select() -> Found:
    """Each size in a process of its own."""
    found = {
        records: harness.run_part(__file__, "select", {"records": records})["us"]
        for records in (FEW, MANY)
    }
    return {
        "select_us": found[MANY],
        "select_flatness": found[MANY] / found[FEW],
        "us_by_records": found,
    }


def near_misses() -> Found:
    """Near misses of what a library holds, asked of it by their addresses; the same of a cache that
    answers by similarity."""
    from kvgraft.library.address import AddressSpace, RequestIdentity
    from kvgraft.library.records import Library
    from kvgraft.testing import near_misses as made

    space = AddressSpace(
        RequestIdentity(problem="", tenant="public", template_digest="t", tokenizer_digest="k")
    )
    misses = made.near_misses()
    originals = sorted({miss.stored.text for miss in misses})
    with (
        tempfile.TemporaryDirectory() as folder,
        Library.open(Path(folder) / "l.sqlite3") as library,
    ):
        with library.batch():
            for problem in originals:
                library.deposit(harness.deposit_of(space, problem))
        if any(library.lookup(space.address(text), "public", "f") is None for text in originals):
            raise RuntimeError("a deposit was not found")
        wrong = [
            miss.asked
            for miss in misses
            if library.lookup(space.address(miss.asked), "public", "f") is not None
        ]
    return {
        "near_misses": float(len(misses)),
        "near_miss_wrong_replays": float(len(wrong)),
        "wrong": wrong,
        "similarity_caches": [asdict(hits) for hits in made.similarity_cache_hits(misses)],
    }


def read_methods(path: Path | None) -> Found:
    """Of what `benchmarks/methods.py` wrote."""
    if path is None:
        return {}
    figures = json.loads(path.read_text(encoding="utf-8"))["figures"]
    return {name: figures.get(name) for name in ("method_families", "method_right_share")}


def read_study(folder: Path | None) -> Found:
    """Of what `kvgraft study score` wrote."""
    if folder is None:
        return {}
    figures = json.loads((folder / "figures.json").read_text(encoding="utf-8"))
    return {"controls_verified_wrongly": figures["controls_verified_wrongly"]}


def read_headline() -> Found:
    """Of the headline study: what was deposited, replayed."""
    if not HEADLINE.exists():
        return {}
    found = json.loads(HEADLINE.read_text(encoding="utf-8"))
    replay = found["details"]["cost"]["0.5b"]["replay"]
    return {
        "replay_right_share": replay["replayed"] / max(1, replay["deposits"]),
        "replay_decode_tokens_median": replay["decode_tokens_median"],
        "token_ratio_failed_first": replay["failed_first"]["token_ratio"],
    }


def main(arguments: list[str]) -> int:
    """See the module."""
    if arguments[:1] == ["--part"]:
        return harness.answer_part(arguments[1:], PARTS)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="select,near_misses", help="with commas between")
    parser.add_argument("--methods", type=Path, help="JSON of benchmarks/methods.py")
    parser.add_argument("--study", type=Path, help="folder of a study")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args(arguments)
    parts = {"select": select, "near_misses": near_misses}
    details: Found = {name: parts[name]() for name in options.only.split(",") if name}
    details |= {
        "methods": read_methods(options.methods),
        "study": read_study(options.study),
        "headline": read_headline(),
    }
    figures: dict[str, float | None] = dict.fromkeys(TARGETS)
    for found in details.values():
        figures |= {name: found[name] for name in TARGETS if name in found}
    command = f"python benchmarks/flywheel.py {' '.join(arguments)}".strip()
    harness.report("flywheel", figures, TARGETS, details, options.json, command)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
