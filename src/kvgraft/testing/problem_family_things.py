"""Families whose parameters are units, words, graphs or lists."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

from kvgraft.testing.problem_family import Negative, Parameters, ProblemFamily

# --- units ----------------------------------------------------------------------------------------

_LENGTHS = {
    ("inches", "feet"): 12,
    ("inches", "yards"): 36,
    ("feet", "yards"): 3,
    ("feet", "miles"): 5280,
    ("yards", "miles"): 1760,
}


def _length(rng: random.Random) -> Parameters:
    small, large = rng.choice(list(_LENGTHS))
    return {"n": rng.randint(2, 60), "small": small, "large": large}


_UNITS = ProblemFamily(
    "unit conversion",
    (
        "How many {small} are there in {n} {large}?",
        "Convert a length of {n} {large} to {small}.",
        "A rope is {n} {large} long; what is that in {small}?",
    ),
    _length,
    lambda p: p["n"] * _LENGTHS[p["small"], p["large"]],
    (
        Negative("the other way", "How many {large} are there in {n} {small}?"),
        Negative("no such unit", "How many pounds are there in {n} {large}?"),
        Negative("another system", "How many metres are there in {n} {large}?"),
        Negative(
            "squares",
            "How many square {small} are there in {n} square {large}?",
            lambda p: p["n"] * _LENGTHS[p["small"], p["large"]] ** 2,
        ),
        Negative(
            "one unit",
            "How many {small} are there in {n} {small}?",
            lambda p: p["n"],
        ),
        Negative("nautical", "How many feet are there in {n} nautical miles?"),
        Negative("a rate", "How many {small} are there in {n} {large} an hour?"),
        Negative("feet that walk", "How many feet are there in {n} dogs?", lambda p: 4 * p["n"]),
        Negative("a sum", "How many {small} are there in {n} {large} and {n} {small}?"),
    ),
)

# --- words ----------------------------------------------------------------------------------------

_SPELLED = (
    *("anchor", "apple", "basket", "bottle", "bridge", "button", "candle", "carpet", "castle"),
    *("cherry", "circle", "copper", "corner", "cotton", "dragon", "engine", "falcon", "feather"),
    *("finger", "flower", "forest", "garden", "guitar", "hammer", "harbour", "honey", "island"),
    *("jacket", "kettle", "ladder", "lantern", "lemon", "letter", "magnet", "marble", "meadow"),
    *("mirror", "monkey", "mountain", "needle", "orange", "paper", "pencil", "pepper", "pillow"),
    *("planet", "pocket", "pumpkin", "rabbit", "ribbon", "river", "saddle", "silver", "spider"),
    *("summer", "table", "ticket", "tiger", "tunnel", "turtle", "velvet", "violin", "walnut"),
    *("window", "winter"),
)


def _word(rng: random.Random) -> Parameters:
    return {"word": rng.choice(_SPELLED)}


_STRING = ProblemFamily(
    "word backwards",
    (
        'Write the word "{word}" backwards in capital letters.',
        'What does "{word}" become when it is spelled backwards in capitals?',
        'Reverse the letters of "{word}" and make all of them upper case.',
    ),
    _word,
    lambda p: p["word"][::-1].upper(),
    (
        Negative(
            "small letters",
            'Write the word "{word}" backwards in small letters.',
            lambda p: p["word"][::-1],
        ),
        Negative(
            "forwards",
            'Write the word "{word}" forwards in capital letters.',
            lambda p: p["word"].upper(),
        ),
        Negative("sorted", 'Write the word "{word}" alphabetically in capital letters.'),
        Negative("in digits", 'Write the word "2024" backwards in capital letters.'),
        Negative("empty", 'Write the word "" backwards in capital letters.'),
        Negative("sharp s", 'Write the word "stra\u00dfe" backwards in capital letters.'),
        Negative(
            "a sentence",
            'Write the words "{word} and {word}" backwards in capital letters.',
        ),
        Negative(
            "several words", 'Write the word "the {word} of it" backwards in capital letters.'
        ),
        Negative(
            "without the first letter",
            'Write the word "{word}" without its first letter backwards in capital letters.',
        ),
        Negative("every other", 'Write the word "{word}" backwards in every other capital letter.'),
    ),
)

# --- graphs ---------------------------------------------------------------------------------------

_Edges = Sequence[tuple[str, str]]


def distance(edges: _Edges, start: str, end: str) -> int | None:
    """Edges of the shortest path; None where there is no path."""
    found = {start: 0}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for edge in edges:
            if node in edge:
                other = edge[1] if edge[0] == node else edge[0]
                if other not in found:
                    found[other] = found[node] + 1
                    queue.append(other)
    return found.get(end)


def _graph(rng: random.Random) -> Parameters:
    nodes = rng.sample("ABCDEFGH", rng.randint(6, 7))
    pairs = [(nodes[n], nodes[rng.randint(max(0, n - 2), n - 1)]) for n in range(1, len(nodes))]
    while len(pairs) < len(nodes) + 1:
        one, other = rng.sample(nodes, 2)
        if (one, other) not in pairs and (other, one) not in pairs:
            pairs.append((one, other))
    rng.shuffle(pairs)
    a, b = rng.sample(nodes, 2)
    return {
        **{"edges": ", ".join(map("-".join, pairs)), "pairs": pairs, "a": a, "b": b},
        **{"missing": "Z", "apart": ", ".join([*map("-".join, pairs), "X-Y"])},
    }


_GRAPH = ProblemFamily(
    "graph distance",
    (
        "A graph has the edges {edges}. How many edges has the shortest path from {a} to {b}?",
        "In the undirected graph with the edges {edges}, what is the distance of {a} and {b}?",
        "Roads join the towns {edges}. Over how many of them must one drive at least to get from "
        "{a} to {b}?",
    ),
    _graph,
    lambda p: distance(p["pairs"], p["a"], p["b"]),
    (
        Negative(
            "the longest",
            "A graph has the edges {edges}. How many edges has the longest path from {a} to {b}?",
        ),
        Negative(
            "its nodes",
            "A graph has the edges {edges}. How many nodes has the shortest path from {a} to {b}?",
            lambda p: (distance(p["pairs"], p["a"], p["b"]) or 0) + 1,
        ),
        Negative(
            "no such node",
            "A graph has the edges {edges}. How many edges has the shortest path from {a} to "
            "{missing}?",
        ),
        Negative(
            "no path",
            "A graph has the edges {apart}. How many edges has the shortest path from {a} to X?",
        ),
        Negative(
            "no way to go",
            "A graph has the edges {edges}. How many edges has the shortest path from {a} to {a}?",
            lambda p: 0,
        ),
        Negative(
            "arrows",
            "A digraph has the edges {edges}. How many edges has the shortest path from {a} to "
            "{b}?",
        ),
        Negative(
            "how many paths",
            "A graph has the edges {edges}. How many shortest paths are there from {a} to {b}?",
        ),
        Negative(
            "one edge more",
            "A graph has the edges {edges}. How many edges has the shortest path from {a} to {b} "
            "without the edge {a}-{b}?",
        ),
    ),
)

# --- medians --------------------------------------------------------------------------------------


class Listed(list[Any]):
    """A list that a format string spells: `{items:and}`, or with commas alone."""

    def __format__(self, spec: str) -> str:
        texts = list(map(str, self))
        if spec == "and":
            return ", ".join(texts[:-1]) + " and " + texts[-1]
        return ", ".join(texts)


def _values(rng: random.Random) -> Parameters:
    items = Listed(rng.sample(range(1, 100), rng.choice((5, 7, 9))))
    return {"items": items, "even": Listed(items[:-1])}


_MEDIAN = ProblemFamily(
    "median",
    (
        "What is the median of {items:and}?",
        "Sort the numbers {items}. Which one is in the middle?",
        "Half of the numbers {items:and} are not above which of them, and half not below it?",
    ),
    _values,
    lambda p: sorted(p["items"])[len(p["items"]) // 2],
    (
        Negative("the mean", "What is the mean of {items:and}?"),
        Negative(
            "the largest",
            "What is the largest of {items:and}?",
            lambda p: max(p["items"]),
        ),
        Negative("an even count", "What is the median of {even:and}?"),
        Negative("one number", "What is the median of 7?", lambda p: 7),
        Negative(
            "as it stands",
            "Take the numbers {items}. Which one is in the middle?",
            lambda p: p["items"][len(p["items"]) // 2],
        ),
        Negative("squares", "What is the median of the squares of {items:and}?"),
        Negative("repeated", "What is the median of 5, 5, 5, 5 and 5?", lambda p: 5),
        Negative(
            "negative numbers",
            "What is the median of -8, -3, -1, -9 and -4?",
            lambda p: -4,
        ),
        Negative("other commas", "What is the median of {items:and}, and 3?"),
    ),
)

THING_FAMILIES = (_UNITS, _STRING, _GRAPH, _MEDIAN)
