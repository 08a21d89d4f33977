"""The benchmark of routing, by words alone: what it plants, and how it counts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import route_facts
import route_recall as benchmark
from context.embedders import TinyEmbedder


def test_facts_are_the_seeds_own_and_no_question_tells_its_answer() -> None:
    planted, held = route_facts.facts(1)
    assert (len(planted), len(held)) == (120, 8)
    assert (planted, held) == route_facts.facts(1)
    others = {fact.value for fact in route_facts.facts(2)[0]}
    assert len({fact.value for fact in planted} & others) < 3
    for fact in planted + held:
        assert fact.value in fact.sentence
        assert fact.value not in fact.literal + fact.paraphrased
    for questions in zip(*((fact.literal, fact.paraphrased) for fact in planted), strict=True):
        assert len(set(questions)) == len(planted)


def test_every_passage_is_on_a_page_and_every_fact_on_its_own() -> None:
    passages = benchmark.corpus(150)
    planted, held = route_facts.facts(3)
    homes = benchmark.plant(passages, planted, 3)
    assert len(passages) == 150
    pages = [passage.page for passage in passages]
    assert pages == sorted(pages)
    assert max(pages.count(page) for page in pages) <= benchmark.PAGE_PASSAGES
    for fact, home in zip(planted, homes, strict=True):
        found = [one.page for one in passages if fact.sentence in one.paragraphs]
        assert found == [home]
    assert not [one for fact in held for one in passages if fact.sentence in one.paragraphs]


def test_words_alone_find_what_is_asked_literally() -> None:
    figures, details = benchmark.measure(150, 4, None)
    assert figures["words_only_literal_recall_at_1"] >= 0.9  # type: ignore[operator]
    assert figures["rare_words_shared"] == 0
    assert figures["literal_recall_at_1"] is None  # not measured, and not 0
    assert details["rows"] == {}
    assert all(row["place"] is None for row in details["rows_words_only"]["absent"])


def test_recall_counts_places(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"place": place} for place in (1, 2, None, 10)]
    assert [benchmark._recall(rows, depth) for depth in (1, 3, 10)] == [0.25, 0.5, 0.75]
    figures, _ = benchmark.measure(125, 5, TinyEmbedder())
    assert set(figures) == set(benchmark.TARGETS)
    assert figures["literal_recall_at_10"] >= 0.9  # type: ignore[operator]
    # A question that gives its fact's rare word away is told.
    planted = [route_facts.Fact("The zebra sleeps.", "zebra", "", "Does the zebra sleep?")]
    db = benchmark.collection(benchmark.corpus(20), None)
    told = benchmark.rare_words_shared(db, planted, 20)
    assert [one.partition(":")[0] for one in told] == ["zebra", "sleep"]
