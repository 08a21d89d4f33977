"""The headline study's plan: what is asked, of which models, with which budget. No answer is here.

Everything that decides a figure is a constant of this module, and enters the registration. Answer
keys stay in the data files: `problems` never reads them, `keys` is for scoring alone.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvgraft.engines.catalog import CATALOG

MODELS = {"0.5b": "demo:qwen-coder-0.5b", "1.5b": "demo:qwen-coder-1.5b"}
ENGINE = "llamacpp"  # the published files as they are, quantised
THREADS = 2
SEED = 2026

AIME, GSM8K = "aime25", "gsm8k"
GSM8K_PROBLEMS = 50  # of the test split, drawn with the seed
HELD_OUT = 20  # other GSM8K problems, never deposited
CALIBRATION = 30  # again others, whose keys choose the threshold, and nothing else

TEXT = "text"
PROGRAM = "program"
CHAIN = "chain"  # a greedy text, and self-corrections behind it
SUFFIX = {
    TEXT: "\n\nReason step by step, and put the final answer in \\boxed{}.",
    PROGRAM: "\n\nWrite a short Python program that computes the answer and prints it, and nothing "
    "else. Reply with one Python code block.",
}
CORRECT = (
    "Check every step of your solution. If something is wrong, solve the problem again. Put the "
    "final answer in \\boxed{}."
)
# Sampled attempts for each problem, 16 in all. Few texts of 256 tokens get to the end of an AIME
# problem.
LANES = {AIME: {TEXT: 4, PROGRAM: 12}, GSM8K: {TEXT: 8, PROGRAM: 8}}
MAX_NEW_TOKENS = 256
TEMPERATURE, TOP_P = 0.8, 0.95
ROUNDS = 1  # of self-correction, behind the greedy attempt

# What is worked on, for which part of the problems. The larger model takes the smaller one's
# threshold.
CONDITIONS = {
    "deposit": (CHAIN, TEXT, PROGRAM),
    "held_out": (CHAIN,),
    "calibration": (TEXT, PROGRAM),
}
CALIBRATED_WITH = "0.5b"

# A deposit needs votes: that many equal answers of the 16 attempts, more than any other answer has,
# and one of them at least printed by a program that computes it. How many is the smallest number
# of these with at most this share of wrong answers among the calibration problems accepted.
THRESHOLDS = tuple(range(3, 13))
CALIBRATED_WRONG = 0.05

SETS = {
    AIME: "aime25.jsonl",
    GSM8K: "gsm8k_test.jsonl",
}


@dataclass(frozen=True)
class Asked:
    """A problem as solvers see it. `part`: deposit, held_out or calibration."""

    id: str
    set: str
    part: str
    text: str


def data_folder() -> Path:
    """Where the data files lie: KVGRAFT_DATA, or beside the project."""
    given = os.environ.get("KVGRAFT_DATA")
    return Path(given) if given else Path(__file__).parents[2] / "shared" / "data"


def _rows(name: str) -> list[tuple[str, dict[str, Any]]]:
    path = data_folder() / SETS[name]
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines if line.strip()]
    return [(row.get("id", f"{name}-{number}"), row) for number, row in enumerate(rows)]


def _drawn(rows: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
    def order(row: tuple[str, dict[str, Any]]) -> bytes:
        return hashlib.sha256(f"{SEED}:{row[0]}".encode()).digest()

    return sorted(rows, key=order)


def problems() -> list[Asked]:
    """Every problem of the study, in the order in which it is worked on."""
    out = [Asked(id, AIME, "deposit", row["problem"]) for id, row in _rows(AIME)]
    drawn = iter(_drawn(_rows(GSM8K)))
    sizes = {"deposit": GSM8K_PROBLEMS, "held_out": HELD_OUT, "calibration": CALIBRATION}
    for part, count in sizes.items():
        for _ in range(count):
            id, row = next(drawn)
            out.append(Asked(id, GSM8K, part, row["question"]))
    return out


def keys() -> dict[str, str]:
    """The answer key, for scoring alone: id -> answer."""
    out = {id: str(row["answer"]) for id, row in _rows(AIME)}
    for id, row in _rows(GSM8K):
        out[id] = row["answer"].rpartition("####")[2].strip()
    return out


def seed_of(model: str, id: str, condition: str) -> int:
    """The seed of a batch of attempts: 64 bits of a digest, so that none is shared."""
    text = f"{SEED}:{model}:{id}:{condition}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def registration() -> dict[str, Any]:
    """All of the plan, with a digest of every problem's text."""
    names = (
        *("MODELS", "ENGINE", "THREADS", "SEED", "SUFFIX", "CORRECT", "LANES", "MAX_NEW_TOKENS"),
        *("TEMPERATURE", "TOP_P", "ROUNDS", "CONDITIONS", "CALIBRATED_WITH", "THRESHOLDS"),
        "CALIBRATED_WRONG",
    )
    plan = {name.lower(): globals()[name] for name in names}
    plan["weights_sha256"] = {name: CATALOG[model].sha256 for name, model in MODELS.items()}
    plan["problems"] = [
        [asked.id, asked.part, hashlib.sha256(asked.text.encode()).hexdigest()]
        for asked in problems()
    ]
    plan["measures"] = [
        "an attempt's answer: what stands in its text, or what its program prints; one that was "
        "cut off has none, a program that only prints a constant counts as a text",
        "bare: the answer of the greedy text",
        "corrected: the answer after the last round",
        "voted: the answer that most texts have, a tie being wrong; programs: likewise",
        "library, recurring: a deposited problem is replayed, any other gets the bare answer",
        "every problem of a set is in the denominator; compared by McNemar's exact test, paired by "
        "problem; intervals are Wilson's, 95 %",
        "wrong acceptances: deposits whose answer is not the key's, over deposits, with the "
        "Clopper-Pearson upper bound, at the threshold and at every other",
    ]
    return plan


def digest(plan: dict[str, Any]) -> str:
    """The registration's SHA-256, over canonical JSON."""
    text = json.dumps(plan, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
