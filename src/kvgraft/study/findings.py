"""What a study found, in plain sentences that are computed from its figures, good or bad."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvgraft.study.items import HELD_OUT, NEW, RECURRING

LEVEL = 0.05
_GROUPS = {
    RECURRING: "problems that were deposited and asked again",
    HELD_OUT: "held-out problems of the same families",
    NEW: "new problems",
}

_CACHED = {
    RECURRING: "to recurring problems. It gives {cache} without any decoding, and the library",
    HELD_OUT: "to held-out problems. It has none, and leaves {cache} to the model alone; with"
    " grafted solutions",
}


def findings(data: Mapping[str, Any]) -> list[str]:
    """The sentences; the first is the headline."""
    return [
        line
        for label, model in data["models"].items()
        if model["library"]
        for line in _of_model(data, label, model)
    ]


def _of_model(data: Mapping[str, Any], label: str, model: Mapping[str, Any]) -> Iterator[str]:
    for group in _GROUPS:
        if line := _compared(label, model, group):
            yield line
    yield from _siblings(data, label, model)
    yield _kept(data, model)
    yield _again(model)
    yield from _over_a_cache(label, model)
    if model["controls"]:
        yield _controlled(model)
    if near := model.get("near_misses"):
        yield _near_misses(near)


def _compared(label: str, model: Mapping[str, Any], group: str) -> str:
    """The library against the bare model, on one group."""
    ours = model["conditions"]["library"][group]
    theirs = model["conditions"]["greedy"][group]
    if ours is None:
        return ""
    test = pair(model, f"{label} greedy", group)
    assert test is not None  # both are asked all problems
    head = (
        f"{_GROUPS[group].capitalize()}: with its library {label} answers {of(ours)} right, alone"
        f" {of(theirs)}"
    )
    if group == NEW:
        return f"{head}. A library has nothing to say of them."
    return f"{head}: {judged(test)}."


def judged(test: Mapping[str, Any]) -> str:
    """A paired test in words."""
    difference, p = test["only_first"] - test["only_second"], test["p"]
    number = f"p = {p:.2g}, McNemar's exact test"
    if p >= LEVEL:
        return f"no difference is shown ({number})"
    return f"{'better' if difference > 0 else 'WORSE'} ({number})"


def _gained(test: Mapping[str, Any]) -> str:
    """What a paired test shows of the first condition."""
    difference = test["only_first"] - test["only_second"]
    if difference <= 0:
        return "LOST against" if test["p"] < LEVEL else "Not gained over"
    return "Gained over" if test["p"] < LEVEL else "Not shown to be gained over"


def of(figure: Mapping[str, Any]) -> str:
    """`12 of 30`."""
    return f"{figure['right']:,} of {figure['problems']:,}"


def pair(model: Mapping[str, Any], second: str, group: str) -> Mapping[str, Any] | None:
    """The paired comparison of the library with another condition."""
    return next(
        (one for one in model["paired"] if (one["second"], one["group"]) == (second, group)), None
    )


def _siblings(data: Mapping[str, Any], label: str, model: Mapping[str, Any]) -> Iterator[str]:
    for other, theirs in data["models"].items():
        if other == label:
            continue
        test = pair(model, f"{other} greedy", RECURRING)
        ours = model["conditions"]["library"][RECURRING]
        if test is not None:
            found = theirs["conditions"]["greedy"][RECURRING]
            yield (
                f"Recurring problems against another model: {label} with its library {of(ours)},"
                f" {other} alone {of(found)}: {judged(test)}."
            )


def _kept(data: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    kept = model["deposits"]
    sees = data["registration"]["protocol"]["verifier_sees_key"]
    how = "which saw the key" if sees else "which saw no key"
    head = f"The verifier, {how}, let {kept['deposited']:,} of {kept['problems']:,} problems in"
    if not kept["deposited"]:
        return f"{head}: there was nothing to recall."
    wrong = len(kept["wrong"])
    bound = 100 * kept["wrong_upper"]
    return (
        f"{head}; {wrong:,} of these deposits {'is' if wrong == 1 else 'are'} wrong by the key"
        f" (at most {bound:.0f} % with 95 % confidence)."
    )


def _again(model: Mapping[str, Any]) -> str:
    found = model["recurrence"]
    if not found["replayed"]:
        return "Nothing was replayed."
    line = (
        f"{found['replayed_right']:,} of {found['replayed']:,} replayed answers are right; a replay"
        f" decodes {found['replay_decode_tokens_median']:g} tokens in the median"
    )
    ratio = found["ratios"]["tokens"]
    if ratio is not None:
        line += f", and solving them had taken {ratio['ratio']:,.0f} times the tokens"
    return f"{line}."


def _over_a_cache(label: str, model: Mapping[str, Any]) -> Iterator[str]:
    """What was gained over a plain answer cache, and what was not."""
    cache = model["conditions"].get("answer_cache")
    if cache is None:
        return
    library = model["conditions"]["library"]
    for group, words in _CACHED.items():
        test = pair(model, f"{label} answer_cache", group)
        if test is not None:
            said = words.format(cache=of(cache[group]))
            yield (
                f"{_gained(test)} a plain answer cache: right answers {said} {of(library[group])}."
            )
    shuffled = model["controls"].get("shuffled")
    if shuffled and shuffled["problems"]:
        yield (
            f"Gained over a plain answer cache: a wrong record is noticed. With answers permuted,"
            f" {shuffled['noticed']:,} of {shuffled['problems']:,} were refused; a plain cache"
            f" would have given out all of them."
            if shuffled["noticed"]
            else "Not gained over a plain answer cache: no permuted answer was noticed."
        )


def _controlled(model: Mapping[str, Any]) -> str:
    wrong = {
        name: one["verified_wrongly"]
        for name, one in model["controls"].items()
        if name != "always_yes" and one["verified_wrongly"]
    }
    asked = sum(one["problems"] for n, one in model["controls"].items() if n != "always_yes")
    if not wrong:
        return (
            f"Controls: of {asked:,} questions to libraries that were wrong on purpose, none got a"
            " wrong answer called replayed, transferred, agreed or proved."
        )
    named = ", ".join(f"{name} {count}" for name, count in wrong.items())
    line = f"CONTROLS FAILED: wrong answers that were vouched for: {named}."
    recorded = sum(model["controls"][name]["recorded_wrongly"] for name in wrong)
    if recorded:
        line += f" {recorded:,} of them came from deposits that keep text only."
    return line


def _near_misses(near: Mapping[str, Any]) -> str:
    line = (
        f"Near misses: {near['from_library']:,} of {near['asked']:,} were answered from the library"
    )
    worst = max((one["wrong"] for one in near["similarity_caches"]), default=0)
    return f"{line}; a cache by similarity would have answered up to {worst:,} of them wrongly."
