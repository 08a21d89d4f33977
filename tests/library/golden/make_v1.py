"""How `library_v1.sqlite3` was made: a library of schema version 1, as that release wrote it.

`python tests/library/golden/make_v1.py FILE`, from the root of a checkout whose
`kvgraft.library.schema.SCHEMA_VERSION` is 1. It was made once and never changes; a later release
writes another schema, and there this refuses to run.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, "tests")

from kvgraft.library import schema
from kvgraft.library.deposit import NewDeposit
from kvgraft.library.problem import Problem
from kvgraft.library.verify.base import Verdict
from kvgraft.library.verify.exact import ExactVerifier
from kvgraft.prompt import CUES
from library.scripted import FOUR, opened, run, solving_engine

DOUBLE = Problem("double", "And twice that?", expected="8")


def main(target: Path) -> None:
    if schema.SCHEMA_VERSION != 1:
        raise SystemExit(f"this release writes schema {schema.SCHEMA_VERSION}")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        engine = solving_engine()
        engine.on_problem("What is 3 + 3?", "Answer: 6")  # does not say it again: text only
        engine.on_problem("What is 5 + 5?", "Five and five.\nAnswer: 10")
        engine.on("Five and five.\nAnswer: 10" + CUES[0], " 10\n")
        three = Problem("three", "What is 3 + 3?", expected="6")
        five = Problem("five", "What is 5 + 5?", expected="10")
        with opened(root, engine) as space:
            outcomes = run(space, FOUR, three, five, judge=ExactVerifier())
            four, _, ten = (outcome.deposit_id or "" for outcome in outcomes)
            library = space.library
            follow = replace(space.space(None).identity(DOUBLE.text), parent=four)
            said = Verdict(True, "proved", "8", "exact", "1", {"method": "key", "gold": "8"})
            kept = library.get(four)
            child = NewDeposit(
                identity=follow,
                model=kept.model,
                fingerprint=kept.fingerprint,
                prompt="<user>And twice that?<eos><assistant>",
                trace="Answer: 8",
                cue="",
                token_ids=(1, 2, 3),
                answer="8",
                answer_ids=(),
                verdict=said,
                cost={"attempts": 1, "joules": None},
                source="ask",
                finished=True,
            )
            library.deposit(child)
            library.deposit(replace(child, trace="So:\nAnswer: 8"), supersede=True)
            library.record_replay(ten, replays=False, reason="the state was lost")
            library.revoke(ten, "the key was wrong")
        with opened(root, solving_engine(1)) as space:
            run(space, FOUR, judge=ExactVerifier())
        shutil.copyfile(root / "library.sqlite3", target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
