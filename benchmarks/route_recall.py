"""Routing: whether a question finds the page that answers it, apart from any answering.

    python benchmarks/route_recall.py [--passages 640] [--seed N] [--words-only] [--json FILE]

The text is real: the topics and docstrings of the Python that runs this. Facts with made-up names
and values are planted in it, each as a paragraph of a passage chosen by chance, and asked for
literally and in other words (`route_facts`). All of a kind are decoys of one another. Then come
questions that the text answers by itself, and questions that it does not: some about other things,
some about facts that were not planted though their kind and their place were.
"""

from __future__ import annotations

import argparse
import ast
import pydoc_data.topics
import random
import re
import secrets
import sqlite3
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import harness
import route_facts

TARGETS: dict[str, tuple[str, float]] = {
    "literal_recall_at_1": (">=", 0.95),
    "literal_recall_at_3": (">=", 0.95),
    "literal_recall_at_10": (">=", 0.95),
    "paraphrased_recall_at_1": (">=", 0.80),
    "paraphrased_recall_at_3": (">=", 0.80),
    "paraphrased_recall_at_10": (">=", 0.80),
    "words_only_literal_recall_at_1": (">=", 0.95),
    "rare_words_shared": ("<=", 0),
    "answered_relevant": (">=", 0.90),
    "words_only_answered_relevant": (">=", 0.90),
    "literal_relevant": (">=", 0.95),
    "paraphrased_relevant": (">=", 0.80),
    "absent_relevant": ("<=", 0.20),
    "words_only_absent_relevant": ("<=", 0.20),
}
DEPTHS = (1, 3, 10)
PASSAGE_WORDS, PAGE_PASSAGES = 80, 10
RARE = 0.01  # a word is rare that at most so many of the passages have
BATCH = 32


@dataclass
class Passage:
    """A passage of the corpus while it is made."""

    page: int
    title: str
    paragraphs: list[str]


def texts() -> Iterator[tuple[str, str]]:
    """Titles and texts that every Python has."""
    for _, text in sorted(pydoc_data.topics.topics.items()):
        yield text.strip().split("\n")[0], text
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        nodes = ast.walk(ast.parse(path.read_bytes()))
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        found = [ast.get_docstring(node) for node in nodes if isinstance(node, kinds)]
        yield path.stem, "\n\n".join(text for text in found if text)


def corpus(count: int) -> list[Passage]:
    """Up to `count` passages, on pages of `PAGE_PASSAGES` or fewer where a text ends."""
    made: list[Passage] = []
    page = 0
    for title, text in texts():
        size, first = PASSAGE_WORDS, len(made)
        for paragraph in re.split(r"\n\s*\n", text.strip()):
            if size >= PASSAGE_WORDS:
                if len(made) == count:
                    return made
                here = page + (len(made) - first) // PAGE_PASSAGES
                made.append(Passage(here, title, []))
                size = 0
            made[-1].paragraphs.append(paragraph)
            size += len(paragraph.split())
        page = made[-1].page + 1
    return made


def plant(passages: Sequence[Passage], facts: Sequence[Any], seed: int) -> list[int]:
    """Put each fact into a passage of its own; the pages that they are on."""
    rng = random.Random(seed)
    homes = []
    for fact, passage in zip(facts, rng.sample(list(passages), len(facts)), strict=True):
        passage.paragraphs.insert(rng.randrange(len(passage.paragraphs) + 1), fact.sentence)
        homes.append(passage.page)
    return homes


def collection(passages: Sequence[Passage], embedder: Any) -> sqlite3.Connection:
    """What routing needs of a collection, in memory."""
    from kvgraft.context import dense, lexical

    db = sqlite3.connect(":memory:", isolation_level=None)
    db.execute("CREATE TABLE passages (id INTEGER PRIMARY KEY, page INTEGER NOT NULL)")
    lexical.migrate(db)
    dense.migrate(db)
    texts = []
    for id, passage in enumerate(passages):
        text = "\n\n".join(passage.paragraphs)
        db.execute("INSERT INTO passages VALUES (?,?)", (id, passage.page))
        lexical.add(db, id, passage.title, "", text)
        texts.append(dense.Text(id, text))
    for at in range(0, len(texts) if embedder else 0, BATCH):
        dense.add(db, embedder, texts[at : at + BATCH])
        print(f"\rembedding {at + BATCH} of {len(texts)} passages", end="", file=sys.stderr)
    return db


def asked(
    db: sqlite3.Connection, questions: Sequence[str], embedder: Any, homes: Sequence[int] = ()
) -> list[dict[str, Any]]:
    """For each question: the place of its page (None: not among the first ten), whether anything
    was said to be relevant, on what evidence, and the milliseconds."""
    from kvgraft.context.route import route

    rows = []
    for number, question in enumerate(questions):
        began = time.perf_counter()
        routing = route(db, question, count=max(DEPTHS), embedder=embedder)
        took = (time.perf_counter() - began) * 1_000
        pages = [one.page for one in routing.pages]
        home = homes[number] if homes else None
        rows.append(
            {
                "question": question,
                "place": pages.index(home) + 1 if home in pages else None,
                "relevant": routing.relevant,
                "share": routing.share,
                "similarity": routing.similarity,
                "milliseconds": took,
            }
        )
    return rows


def rare_words_shared(db: sqlite3.Connection, facts: Sequence[Any], passages: int) -> list[str]:
    """Rare words that a paraphrased question shares with its fact: there must be none."""
    from kvgraft.context import lexical

    alone = sqlite3.connect(":memory:", isolation_level=None)
    lexical.migrate(alone)
    found = []
    for number, fact in enumerate(facts):
        lexical.add(alone, number, "", "", fact.sentence)
        terms = lexical.terms(db, fact.paraphrased)
        for place in lexical.shared(alone, lexical.terms(alone, fact.paraphrased), [number])[0]:
            text = lexical.terms(alone, fact.paraphrased)[place].text
            counted = next(term.passages for term in terms if term.text == text)
            if counted <= RARE * passages:
                found.append(f"{text}: {fact.paraphrased}")
    return found


def measure(count: int, seed: int, embedder: Any) -> tuple[dict[str, float | None], dict[str, Any]]:
    """The figures, and every question's row."""
    planted, held = route_facts.facts(seed)
    passages = corpus(count)
    homes = plant(passages, planted, seed)
    db = collection(passages, embedder)
    shared = rare_words_shared(db, planted, len(passages))
    sets = {
        "literal": ([fact.literal for fact in planted], homes),
        "paraphrased": ([fact.paraphrased for fact in planted], homes),
        "answered": (route_facts.ANSWERED, ()),
        "absent": (route_facts.ABSENT + route_facts.FOREIGN, ()),
        "held_literal": ([fact.literal for fact in held], ()),
        "held_paraphrased": ([fact.paraphrased for fact in held], ()),
    }
    words = {name: asked(db, questions, None, pages) for name, (questions, pages) in sets.items()}
    both = {
        name: asked(db, questions, embedder, pages)
        for name, (questions, pages) in sets.items()
        if embedder is not None
    }
    figures: dict[str, float | None] = {"rare_words_shared": float(len(shared))}
    for kind in ("literal", "paraphrased"):
        for depth in DEPTHS:
            figures[f"{kind}_recall_at_{depth}"] = _recall(both.get(kind), depth)
    figures["words_only_literal_recall_at_1"] = _recall(words["literal"], 1)
    for name in ("answered", "literal", "paraphrased", "absent"):
        figures[f"{name}_relevant"] = _relevant(both.get(name))
    figures["words_only_answered_relevant"] = _relevant(words["answered"])
    figures["words_only_absent_relevant"] = _relevant(words["absent"])
    details = {
        "passages": len(passages),
        "pages": len({passage.page for passage in passages}),
        "words": sum(len(text.split()) for one in passages for text in one.paragraphs),
        "facts": len(planted),
        "rare_words_shared": shared,
        "milliseconds_words": median(row["milliseconds"] for row in words["literal"]),
        "milliseconds_both": median(row["milliseconds"] for row in both["literal"])
        if both
        else None,
        "held_relevant": {name: _relevant(both.get(name)) for name in sets if "held" in name},
        "rows": both,
        "rows_words_only": words,
    }
    return figures, details


def _recall(rows: Sequence[dict[str, Any]] | None, depth: int) -> float | None:
    if rows is None:
        return None
    return sum(row["place"] is not None and row["place"] <= depth for row in rows) / len(rows)


def _relevant(rows: Sequence[dict[str, Any]] | None) -> float | None:
    return None if rows is None else sum(row["relevant"] for row in rows) / len(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passages", type=int, default=640, help="of the corpus")
    parser.add_argument("--seed", type=int, help="of names, values and places; else drawn anew")
    parser.add_argument("--words-only", action="store_true", help="without the embedding model")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    seed = secrets.randbelow(10**9) if options.seed is None else options.seed
    embedder = None
    if not options.words_only:
        from kvgraft.context.embed import open_embedder

        embedder = open_embedder(say=print)
    figures, details = measure(options.passages, seed, embedder)
    command = f"python benchmarks/route_recall.py --passages {options.passages} --seed {seed}"
    print(file=sys.stderr)
    harness.report("routing", figures, TARGETS, {"seed": seed, **details}, options.json, command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
