"""Near misses: problems that look like a stored one and are another one, generated from a seed.

No library may answer them from the stored problem, whether or not their answer happens to be the
same. `similarity_cache_hits` says, for comparison only, how many of them caches that go by
similarity would have answered, and how many of those wrongly; nothing of kvgraft answers like that.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kvgraft.errors import UsageError
from kvgraft.library.address import canonical_text

COSINE, EDIT_RATIO = 0.95, 0.9  # usual thresholds of caches that go by similarity


@dataclass(frozen=True)
class Posed:
    """A problem and its right answer; None where it has none, or more than one reading."""

    text: str
    answer: str | None


@dataclass(frozen=True)
class NearMiss:
    """`asked` is `stored` after one edit of `kind`; `answer` is the right one of `asked`."""

    kind: str
    stored: Posed
    asked: str
    answer: str | None

    @property
    def differs(self) -> bool | None:
        """Whether the stored answer is wrong here; None where the right one is not known."""
        return None if self.answer is None else self.answer != self.stored.answer


@dataclass(frozen=True)
class SimilarityHits:
    """What a cache by similarity would have done: of `asked` questions, `differing` of them with
    another right answer than the problem they were made of, it `answered` some: `wrong` of them
    with an answer known to be wrong, `right` with one known to be right."""

    measure: str
    threshold: float
    asked: int
    differing: int
    answered: int
    wrong: int
    right: int


def near_misses(seed: int = 0, problems: int = 60) -> tuple[NearMiss, ...]:
    """At least 10 near misses of each of `problems` generated problems, all questions different
    and none of them stored. Equal for equal arguments.

    Raises:
        UsageError: `problems` is not from 1 to 1,000.
    """
    if not 1 <= problems <= 1000:
        raise UsageError(f"near misses are made of 1 to 1,000 problems, not {problems}")
    rng = random.Random(seed)
    made: dict[str, _Made] = {}
    while len(made) < problems:
        stored, edits = _FAMILIES[len(made) % len(_FAMILIES)](rng)
        made.setdefault(stored.text, (stored, edits))
    seen = set(made)
    out = []
    for stored, edits in made.values():
        for kind, asked in {**edits, **dict(_spellings(stored, rng))}.items():
            text = canonical_text(asked.text)
            if text not in seen:  # another stored problem is answered from its own deposit
                seen.add(text)
                out.append(NearMiss(kind, stored, text, asked.answer))
    return tuple(out)


# --- problems, each with edits that change what is asked ------------------------------------------

_NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana")
_THINGS = ("apples", "pencils", "stamps", "marbles", "tickets", "shells")
_Made = tuple[Posed, dict[str, Posed]]


def _posed(text: str, answer: object) -> Posed:
    return Posed(text, None if answer is None else str(answer))


def _shop(rng: random.Random) -> _Made:
    a, b, thing = rng.randint(11, 99), rng.randint(11, 99), rng.choice(_THINGS)

    def pose(a: int, b: int, tail: str = "in total", middle: str = "and then {b} more") -> str:
        first = f"A shop sells {a} {thing} in the morning"
        return f"{first} {middle.format(b=b)}. How many {thing} does it sell {tail}?"

    return _posed(pose(a, b), a + b), {
        "number": _posed(pose(a, b + 1), a + b + 1),
        "digits swapped": _posed(pose(a, _swapped(b)), a + _swapped(b)),
        "word removed": _posed(pose(a, b).replace(" more", ""), a + b),
        "word added": _posed(pose(a, b, middle="and then not {b} more"), None),
        "asks for a part": _posed(pose(a, b, "in the morning"), a),
        "reworded": _posed(pose(a, b, "altogether"), a + b),
        "clauses reordered": _posed(
            f"How many {thing} does a shop sell in total, if it sells {a} {thing} in the morning "
            f"and then {b} more?",
            a + b,
        ),
    }


def _coins(rng: random.Random) -> _Made:
    one, other = rng.sample(_NAMES, 2)
    a, b, c = rng.randint(30, 60), rng.randint(3, 20), rng.randint(61, 99)

    def pose(one: str, other: str, who: str, verb: str = "gives", noun: str = "coins") -> str:
        return (
            f"{one} has {a} {noun} and {other} has {c}. {one} {verb} {other} {b} of them. "
            f"How many {noun} does {who} have now?"
        )

    return _posed(pose(one, other, one), a - b), {
        "names swapped": _posed(pose(other, one, one), c + b),
        "other name asked": _posed(pose(one, other, other), c + b),
        "negation": _posed(pose(one, other, one, "does not give"), a),
        "word changed": _posed(pose(one, other, one, noun="notes"), a - b),
    }


def _arithmetic(rng: random.Random) -> _Made:
    a, b = rng.randint(120, 999), rng.randint(12, 99)

    def pose(a: int, sign: str, b: int) -> str:
        return f"What is {a} {sign} {b}?"

    return _posed(pose(a, "-", b), a - b), {
        "operator": _posed(pose(a, "+", b), a + b),
        "number": _posed(pose(a + 1, "-", b), a + 1 - b),
        "order of operands": _posed(pose(b, "-", a), b - a),
        "hyphen or minus": _posed(pose(a, "\u2212", b), a - b),
        "hyphen or dash": _posed(pose(a, "\u2013", b), None),
        "minus dropped": _posed(f"What is {a} {b}?", None),
        "digits swapped": _posed(pose(a, "-", _swapped(b)), a - _swapped(b)),
    }


def _negative(rng: random.Random) -> _Made:
    a, b = rng.randint(2, 40), rng.randint(50, 99)
    text = f"What is -{a} + {b}?"
    return _posed(text, b - a), {
        "minus dropped": _posed(f"What is {a} + {b}?", a + b),
        "hyphen or minus": _posed(f"What is \u2212{a} + {b}?", b - a),
        "operator": _posed(f"What is -{a} * {b}?", -a * b),
        "number": _posed(f"What is -{a + 10} + {b}?", b - a - 10),
    }


def _power(rng: random.Random) -> _Made:
    x, n, c = rng.randint(3, 15), rng.choice((2, 3)), rng.randint(3, 99)

    def pose(term: str) -> str:
        return f"Let x = {x}. What is {term} + {c}?"

    return _posed(pose(f"x^{n}"), x**n + c), {
        "exponent flattened": _posed(pose(f"x{n}"), None),
        "exponent raised": _posed(pose("x" + "\u00b2\u00b3"[n - 2]), x**n + c),
        "operator": _posed(pose(f"x*{n}"), x * n + c),
        "minus added": _posed(pose(f"-x^{n}"), c - x**n),
        "number": _posed(pose(f"x^{n + 1}"), x ** (n + 1) + c),
        "case of a variable": _posed(pose(f"X^{n}"), None),
    }


def _bound(rng: random.Random) -> _Made:
    n, k = rng.randint(50, 99), rng.randint(5, 40)

    def pose(bound: str, k: int = k) -> str:
        return f"How many of the whole numbers from 1 to {n} are {bound} {k}?"

    return _posed(pose("at least"), n - k + 1), {
        "bound": _posed(pose("at most"), k),
        "strict or not": _posed(pose("more than"), n - k),
        "negation": _posed(pose("not at least"), k - 1),
        "number": _posed(pose("at least", k + 1), n - k),
    }


def _divisible(rng: random.Random) -> _Made:
    n, d = rng.randint(50, 300), rng.randint(3, 9)

    def pose(rule: str, d: int) -> str:
        return f"How many whole numbers from 1 to {n} are {rule} {d}?"

    return _posed(pose("divisible by", d), n // d), {
        "negation": _posed(pose("not divisible by", d), n - n // d),
        "number": _posed(pose("divisible by", d + 1), n // (d + 1)),
        "word changed": _posed(pose("divisors of", n), None),
        "word added": _posed(pose("odd and divisible by", d), (n // d + 1) // 2 if d % 2 else 0),
    }


def _units(rng: random.Random) -> _Made:
    a = rng.randint(11, 99)

    def pose(to: str, a: object, of: str) -> str:
        return f"How many {to} are {a} {of}?"

    return _posed(pose("minutes", a, "hours"), 60 * a), {
        "unit": _posed(pose("seconds", a, "hours"), 3600 * a),
        "unit given": _posed(pose("minutes", a, "days"), 1440 * a),
        "units swapped": _posed(pose("hours", a * 60, "minutes"), a),
        "decimal point": _posed(pose("minutes", f"{a // 10}.{a % 10}", "hours"), 6 * a),
        "number": _posed(pose("minutes", a + 1, "hours"), 60 * (a + 1)),
    }


def _steps(rng: random.Random) -> _Made:
    n, k = rng.randint(30, 99), rng.randint(2, 20)
    text = f"Take {n}. First subtract {k}, then double it. What do you get?"
    return _posed(text, 2 * (n - k)), {
        "clauses reordered": _posed(
            f"Take {n}. First double it, then subtract {k}. What do you get?", 2 * n - k
        ),
        "word changed": _posed(text.replace("subtract", "add"), 2 * (n + k)),
        "word removed": _posed(text.replace("First ", ""), 2 * (n - k)),
        "negation": _posed(text.replace("then double", "then do not double"), n - k),
    }


def _letters(rng: random.Random) -> _Made:
    big, small = rng.sample(range(11, 99), 2)

    def pose(letter: str, rule: str = "plus") -> str:
        return f"Let N be {big} and n be {small}. What is {letter} {rule} 7?"

    return _posed(pose("N"), big + 7), {
        "case of a variable": _posed(pose("n"), small + 7),
        "word changed": _posed(pose("N", "minus"), big - 7),
        "names swapped": _posed(f"Let n be {big} and N be {small}. What is N plus 7?", small + 7),
    }


_FAMILIES: tuple[Callable[[random.Random], _Made], ...] = (
    *(_shop, _coins, _arithmetic, _negative, _power),
    *(_bound, _divisible, _units, _steps, _letters),
)


def _swapped(number: int) -> int:
    """A number of two digits with its digits swapped; where they are equal, with another one."""
    tens, ones = divmod(number, 10)
    return 10 * ones + tens if tens != ones else number + 2


# --- edits of the spelling: they fit any problem, and its right answer stays ---------------------

_HOMOGLYPHS = {"a": "\u0430", "e": "\u0435", "o": "\u043e", "i": "\u0456", "c": "\u0441"}


def _spellings(stored: Posed, rng: random.Random) -> Iterator[tuple[str, Posed]]:
    text = stored.text

    def edited(changed: str) -> Posed:
        return Posed(changed, stored.answer)

    gaps = [at for at, character in enumerate(text) if character == " "]
    at = rng.choice(gaps)
    yield "two spaces inside", edited(text[:at] + " " + text[at:])
    yield "no-break space", edited(text[:at] + "\u00a0" + text[at + 1 :])
    yield "line break inside", edited(text[:at] + "\n" + text[at + 1 :])
    yield "space in front", edited(" " + text)
    likes = [at for at, character in enumerate(text) if character in _HOMOGLYPHS]
    at = rng.choice(likes)
    yield "homoglyph", edited(text[:at] + _HOMOGLYPHS[text[at]] + text[at + 1 :])
    yield "zero-width space", edited(text[:at] + "\u200b" + text[at:])
    digits = [at for at, character in enumerate(text) if character.isdigit()]
    at = rng.choice(digits)
    yield "full-width digit", edited(text[:at] + chr(ord(text[at]) + 0xFEE0) + text[at + 1 :])
    yield "letter case", edited(text[0].lower() + text[1:])
    yield "end dropped", edited(text[:-1])
    yield "politeness added", edited(f"Please say: {text}")


# --- the comparison: caches that go by similarity -------------------------------------------------


def similarity_cache_hits(misses: Sequence[NearMiss]) -> tuple[SimilarityHits, ...]:
    """What two similarity caches that hold every stored problem would have answered: one by the
    cosine of TF-IDF vectors over character trigrams (Salton and Buckley, 1988), one by edit
    distance (Levenshtein, 1966). Each answers from the most similar problem, if that reaches its
    threshold. For comparison only; empty where nothing was asked."""
    if not misses:
        return ()
    stored = list(dict.fromkeys(miss.stored for miss in misses))
    asked = [miss.asked for miss in misses]
    texts = [posed.text for posed in stored]
    measures = (
        ("TF-IDF cosine", COSINE, _cosines(texts, asked)),
        ("edit distance ratio", EDIT_RATIO, _edit_ratios(texts, asked)),
    )
    out = []
    for name, threshold, scores in measures:
        hits = [
            (stored[int(row.argmax())].answer, miss.answer)
            for row, miss in zip(scores, misses, strict=True)
            if row.max() >= threshold
        ]
        known = [(said, right) for said, right in hits if right is not None]
        wrong = sum(said != right for said, right in known)
        differing = sum(miss.differs is True for miss in misses)
        counts = (len(misses), differing, len(hits), wrong, len(known) - wrong)
        out.append(SimilarityHits(name, threshold, *counts))
    return tuple(out)


def _cosines(stored: Sequence[str], asked: Sequence[str]) -> np.ndarray:
    """float64 `[asked, stored]`; weights and document frequencies are the stored texts'."""
    grams = [Counter(_trigrams(text)) for text in stored]
    numbers = {gram: n for n, gram in enumerate(dict.fromkeys(g for one in grams for g in one))}
    frequency = np.zeros(len(numbers) + 1)
    for one in grams:
        frequency[[numbers[gram] for gram in one]] += 1
    weights = np.log((1 + len(stored)) / (1 + frequency)) + 1

    def vectors(texts: Sequence[str]) -> np.ndarray:
        rows = np.zeros((len(texts), len(numbers) + 1))  # the last column is for unknown trigrams
        for row, text in zip(rows, texts, strict=True):
            for gram, count in Counter(_trigrams(text)).items():
                row[numbers.get(gram, len(numbers))] += count
        rows *= weights
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))

    return np.asarray(vectors(asked) @ vectors(stored).T)


def _trigrams(text: str) -> Iterator[str]:
    padded = f"  {text.lower()} "
    return (padded[at : at + 3] for at in range(len(padded) - 2))


def _edit_ratios(stored: Sequence[str], asked: Sequence[str]) -> np.ndarray:
    """float64 `[asked, stored]`: 1 less the distance over the longer text's length."""
    rows = [
        [1 - edit_distance(one, other) / max(len(one), len(other)) for other in stored]
        for one in asked
    ]
    return np.asarray(rows)


def edit_distance(one: str, other: str) -> int:
    """Levenshtein distance in characters, by bit-parallel columns (Myers, 1999; Hyyro, 2003)."""
    if not one:
        return len(other)
    places: dict[str, int] = {}
    for at, character in enumerate(one):
        places[character] = places.get(character, 0) | 1 << at
    last, mask = 1 << len(one) - 1, (1 << len(one)) - 1
    plus, minus, distance = mask, 0, len(one)
    for character in other:
        equal = places.get(character, 0)
        across = (((equal & plus) + plus) ^ plus) | equal | minus
        up, down = minus | ~(across | plus), plus & across
        distance += bool(up & last) - bool(down & last)
        up, down = up << 1 | 1, down << 1
        plus, minus = (down | ~(across | up)) & mask, up & across & mask
    return distance
