"""Figures from outcomes made by hand: what is counted, what is kept apart, what is not known."""

from __future__ import annotations

from typing import Any

import pytest

from kvgraft.library.problem import Problem
from kvgraft.meter import Cost
from kvgraft.study import figures
from kvgraft.study.items import GROUPS, HELD_OUT, NEW, RECURRING, Item
from kvgraft.study.outcomes import Outcomes, answer_cache, edit_ratio, outcomes
from kvgraft.study.statistics import mcnemar_counts, upper_bound, wilson

KEY = {f"p{n}": str(n) for n in range(6)}
TEXTS = [f"What is the number {n} when it is written down?" for n in range(6)]
ITEMS = [
    Item(Problem(f"p{n}", TEXTS[n]), "set", "odd" if n % 2 else "even", group)
    for n, group in enumerate([RECURRING, RECURRING, RECURRING, HELD_OUT, HELD_OUT, NEW])
]


class Exactly:
    """A scorer without mathematics."""

    def right(self, id: str, answer: str | None) -> bool:
        return answer == KEY[id]


def cost(tokens: int, seconds: float = 1.0, joules: float | None = None) -> dict[str, Any]:
    made = Cost(1, tokens, 0, 0, seconds, seconds, 0, joules, "rapl" if joules else None)
    return made.as_dict()


def row(n: int, answer: str | None, how: str = "fresh", grade: str = "none", **more: Any) -> Any:
    return {
        **{"id": f"p{n}", "group": ITEMS[n].group, "answer": answer, "how": how, "grade": grade},
        **{"text": f"Answer: {answer}", "logits_sha256": f"{how} {answer}", "cost": cost(100)},
        **more,
    }


def made(*rows: Any) -> Outcomes:
    return outcomes({one["id"]: one for one in rows}, ITEMS, Exactly())  # type: ignore[arg-type]


BARE = made(*(row(n, str(n) if n in (0, 5) else "9") for n in range(6)))


def test_groups_are_kept_apart_and_every_problem_counts() -> None:
    found = figures.groups(made(*(row(n, None if n == 1 else str(n)) for n in range(4))))
    recurring = found[RECURRING]
    interval = wilson(2, 3)
    assert (recurring["right"], recurring["problems"], recurring["without_answer"]) == (2, 3, 1)
    assert (recurring["low"], recurring["high"]) == (interval.low, interval.high)
    assert recurring["families"] == {
        "even": {"right": 2, "problems": 2},
        "odd": {"right": 0, "problems": 1},
    }
    assert (found[HELD_OUT]["right"], found[HELD_OUT]["problems"]) == (1, 1)
    assert found[NEW] is None
    assert set(found) == set(GROUPS)


def test_cost_per_right_answer_pays_for_the_wrong_ones_too() -> None:
    rows = [row(0, "0"), row(1, "9"), row(2, "2", cost=cost(300, 4.0))]
    found = figures.groups(made(*rows))[RECURRING]
    assert found["per_right"] == {
        "tokens": 250,
        "seconds": 3.0,
        "cpu_seconds": 3.0,
        "joules": None,  # not measured
    }
    metered = made(row(0, "0", cost=cost(1, joules=5.0)), row(1, "1", cost=cost(1, joules=7.0)))
    assert figures.groups(metered)[RECURRING]["per_right"]["joules"] == 6.0
    part = made(row(0, "0", cost=cost(1, joules=5.0)), row(1, "1"))
    assert figures.groups(part)[RECURRING]["per_right"]["joules"] is None
    none_right = figures.groups(made(row(0, "9")))[RECURRING]
    assert none_right["per_right"]["tokens"] is None


def test_what_is_vouched_for_is_more_than_a_guess() -> None:
    rows = [
        row(0, "9", "replayed", "agreed"),
        row(1, "9", "recorded", "agreed"),
        row(2, "9", "fresh", "proved"),
        row(3, "9", "transferred", "agreed"),
        row(4, "9"),
        row(5, "5", "replayed", "agreed"),
    ]
    found = figures.groups(made(*rows))
    assert found[RECURRING]["vouched_for_wrong"] == 3
    assert found[RECURRING]["from_store_wrong"] == 2
    assert (found[HELD_OUT]["vouched_for"], found[HELD_OUT]["vouched_for_wrong"]) == (1, 1)
    assert (found[NEW]["vouched_for"], found[NEW]["vouched_for_wrong"]) == (1, 0)


def test_comparisons_are_paired() -> None:
    library = made(*(row(n, str(n)) for n in range(3)))
    found = figures.paired(library, BARE, RECURRING)
    assert found is not None
    assert (found["only_first"], found["only_second"], found["problems"]) == (2, 0, 3)
    assert found["p"] == mcnemar_counts(2, 0)
    assert found["difference"] == pytest.approx(2 / 3)
    assert figures.paired(library, BARE, NEW) is None  # the library was not asked these
    back = figures.paired(BARE, library, RECURRING)
    assert back is not None
    assert (back["only_first"], back["only_second"]) == (0, 2)


def kept(n: int, answer: str | None, **more: Any) -> Any:
    known = answer is not None
    return {
        **{"id": f"p{n}", "group": RECURRING, "state": "solved" if known else "unsolved"},
        **{"answer": answer, "grade": "agreed" if known else None},
        **{"deposit_id": f"d{n}" if known else None, "replays": known or None},
        **{"cost": cost(1000, 10.0), "cost_with_capture": cost(1100, 12.0), **more},
    }


def test_deposits_and_each_wrong_one_by_name() -> None:
    rows = {"p0": kept(0, "0"), "p1": kept(1, "7", replays=False), "p2": kept(2, None)}
    found = figures.deposits(rows, {"p0": True, "p1": False})
    assert (found["problems"], found["deposited"]) == (3, 2)
    assert (found["replaying"], found["text_only"]) == (1, 1)
    assert found["wrong"] == [{"id": "p1", "answer": "7", "grade": "agreed"}]
    assert found["wrong_upper"] == upper_bound(1, 2)
    assert found["cost"]["prefill_tokens"] == 3000  # what was not solved is paid for too
    assert found["cost_with_capture"]["seconds"] == 36.0
    rows["p0"]["cost_with_capture"] = None
    assert figures.deposits(rows, {"p0": True, "p1": True})["cost_with_capture"] is None
    nothing = figures.deposits({"p2": kept(2, None)}, {})
    assert (nothing["wrong_share"], nothing["wrong_upper"]) == (None, None)


def test_recalling_against_solving() -> None:
    replay = Cost(0, 0, 50, 4, 0.5, 0.5, 0).as_dict()
    library = made(
        row(0, "0", "replayed", "agreed", cost=replay),
        row(1, "1", "replayed", "agreed", cost=replay),
        row(2, "2", "replayed", "agreed", cost=replay),
        row(3, "9"),
    )
    found = figures.recurrence(library, BARE, {f"p{n}": kept(n, str(n)) for n in range(3)})
    assert (found["replayed"], found["replayed_right"]) == (3, 3)
    assert found["replay_decode_tokens_median"] == 4
    assert found["failed_first"] == 2  # the bare model has p0 right, p1 and p2 wrong
    assert found["ratios"]["tokens"]["ratio"] == 3000 / 12
    assert found["ratios"]["seconds"]["ratio"] == 20.0
    assert found["ratios"]["joules"] is None
    assert found["ratios_failed_first"]["tokens"]["ratio"] == 250
    nothing = figures.recurrence(BARE, BARE, {})
    assert nothing["replay_decode_tokens_median"] is None
    assert nothing["ratios"]["tokens"] is None


def test_break_even_counts_rounds_and_knows_never_from_unknown() -> None:
    deposits = figures.deposits({f"p{n}": kept(n, str(n)) for n in range(2)}, {"p0": 1, "p1": 1})
    reuse, without = Cost(1, 8, seconds=1.0), Cost(1, 200, seconds=0.5)
    found = figures.break_even(deposits, reuse, without)
    # 2,200 tokens once and 8 a round, against 200 a round.
    assert found == {"tokens": 12, "seconds": "never", "cpu_seconds": None, "joules": None}
    unknown = figures.break_even({"cost_with_capture": None}, reuse, without)
    assert set(unknown.values()) == {None}


def test_risk_over_coverage_of_votes() -> None:
    shares = [1.0, 0.5, 0.5, None, 0.25, 1.0]
    votes = made(*(row(n, str(n) if n != 1 else "9", share=shares[n]) for n in range(6)))
    found = figures.risk_curve(votes)
    assert [(p["threshold"], p["accepted"], p["wrong"]) for p in found] == [
        (0.25, 5, 1),
        (0.5, 4, 1),
        (1.0, 2, 0),
    ]
    assert found[-1]["coverage"] == 2 / 6
    assert found[-1]["risk_upper"] == upper_bound(0, 2)
    assert figures.risk_curve({}) == []


def test_a_control_counts_what_it_broke_itself() -> None:
    library = made(row(0, "9", "replayed", "agreed"), *(row(n, str(n)) for n in range(1, 6)))
    seen = made(
        row(0, "9", "replayed", "agreed"),  # as wrong without the control
        row(1, "9", "replayed", "agreed"),
        row(2, "9", "recorded", "agreed"),
        row(3, "9", reasons=["not_reproduced: the replay says otherwise"]),
        row(4, "4", "replayed", "agreed", from_decoy=True),
        row(5, "5", reasons=["no_deposit: nothing"]),
    )
    found = figures.control(seen, BARE, library)
    assert found["problems"] == 6
    assert found["verified_wrongly"] == 2
    assert found["recorded_wrongly"] == 1
    assert found["wrong_in_the_library_too"] == 1
    assert found["noticed"] == 1
    assert found["from_decoy"] == 1
    assert found["same_as_bare"] == 2  # p3 and p5: the same text and the same logits
    assert found["how"] == {"replayed": 3, "recorded": 1, "fresh": 2}


def test_the_same_text_from_other_logits_is_not_the_bare_model() -> None:
    seen = made(row(5, "5", logits_sha256="others"), row(0, "0", logits_sha256=None))
    assert figures.control(seen, BARE, BARE)["same_as_bare"] == 0


def test_near_misses_by_kind() -> None:
    rows = {
        str(n): {"id": str(n), "kind": kind, "differs": differs, "from_library": stored}
        for n, (kind, differs, stored) in enumerate(
            [("negation", True, False), ("negation", None, True), ("number", False, False)]
        )
    }
    found = figures.near_miss_table(rows)
    assert (found["asked"], found["from_library"]) == (3, 1)
    assert found["upper"] == upper_bound(1, 3)
    assert found["kinds"]["negation"] == {"asked": 2, "differing": 1, "from_library": 1}


def test_an_answer_cache_goes_by_exact_texts() -> None:
    deposits = {"p0": kept(0, "0"), "p1": kept(1, "8"), "p2": kept(2, None)}
    found = answer_cache(BARE, deposits, Exactly())  # type: ignore[arg-type]
    assert [found[f"p{n}"].how for n in range(3)] == ["cached", "cached", "fresh"]
    assert [found[f"p{n}"].right for n in range(3)] == [True, False, False]
    assert found["p1"].vouched_for  # it hands on the grade that it was given
    assert found["p0"].cost == Cost.nothing()
    assert found["p2"] == BARE["p2"]
    assert found["p3"].how == "fresh"


def test_a_similarity_cache_answers_what_it_should_not() -> None:
    deposits = {"p0": kept(0, "0")}
    assert edit_ratio(TEXTS[0], TEXTS[3]) == pytest.approx(1 - 1 / len(TEXTS[0]))
    assert edit_ratio("", "") == 1
    wide = answer_cache(BARE, deposits, Exactly(), 0.9)  # type: ignore[arg-type]
    assert (wide["p3"].how, wide["p3"].answer, wide["p3"].right) == ("cached", "0", False)
    narrow = answer_cache(BARE, deposits, Exactly(), 0.99)  # type: ignore[arg-type]
    assert narrow["p3"] == BARE["p3"]
    assert answer_cache(BARE, {"p2": kept(2, None)}, Exactly(), 0.5) == BARE  # type: ignore[arg-type]
