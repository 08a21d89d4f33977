"""Families whose parameters are numbers: modular powers, choices, linear systems, bases, interest,
common multiples, sums."""

from __future__ import annotations

import math
import random

from kvgraft.testing.problem_family import Negative, Parameters, ProblemFamily

# --- modular powers -------------------------------------------------------------------------------


def _power(rng: random.Random) -> Parameters:
    return {"a": rng.randint(2, 40), "e": rng.randint(5, 60), "m": rng.randint(7, 97)}


_POWER = ProblemFamily(
    "modular power",
    (
        "What is the remainder when {a}^{e} is divided by {m}?",
        "Divide {a}^{e} by {m}. What remainder is left?",
        "The number {a} is raised to the power {e}. What is the result modulo {m}?",
    ),
    _power,
    lambda p: pow(p["a"], p["e"], p["m"]),
    (
        Negative(
            "the quotient",
            "What is the quotient when {a}^{e} is divided by {m}?",
            lambda p: p["a"] ** p["e"] // p["m"],
        ),
        Negative(
            "a product",
            "What is the remainder when {a}*{e} is divided by {m}?",
            lambda p: p["a"] * p["e"] % p["m"],
        ),
        Negative(
            "a sum inside",
            "What is the remainder when {a}^{e} + {m} is divided by {m}?",
            lambda p: pow(p["a"], p["e"], p["m"]),
        ),
        Negative("by zero", "What is the remainder when {a}^{e} is divided by 0?"),
        Negative("by one", "What is the remainder when {a}^{e} is divided by 1?", lambda p: 0),
        Negative(
            "a tower",
            "What is the remainder when {a}^{e}^{e} is divided by {m}?",
            lambda p: pow(p["a"], p["e"] ** p["e"], p["m"]),
        ),
        Negative(
            "roles swapped",
            "What is the remainder when {m} is divided by {a}^{e}?",
            lambda p: p["m"] % p["a"] ** p["e"],
        ),
        Negative("a fraction", "What is the remainder when 1/{a}^{e} is divided by {m}?"),
    ),
)

# --- choices --------------------------------------------------------------------------------------


def _choice(rng: random.Random) -> Parameters:
    return {"k": rng.randint(2, 6), "n": rng.randint(8, 20)}


_CHOICE = ProblemFamily(
    "choices",
    (
        "In how many ways can {k} people be chosen from a group of {n} people?",
        "How many committees of {k} members can be formed by a club of {n} members?",
        "There are {n} books on a shelf. How many different sets of {k} of them are there?",
    ),
    _choice,
    lambda p: math.comb(p["n"], p["k"]),
    (
        Negative(
            "in order",
            "In how many ways can {k} people be seated from a group of {n} people?",
            lambda p: math.perm(p["n"], p["k"]),
        ),
        Negative(
            "more than there are",
            "In how many ways can {n} people be chosen from a group of {k} people?",
            lambda p: 0,
        ),
        Negative(
            "at least",
            "In how many ways can at least {k} people be chosen from a group of {n} people?",
            lambda p: sum(math.comb(p["n"], k) for k in range(p["k"], p["n"] + 1)),
        ),
        Negative(
            "one of them fixed",
            "In how many ways can {k} people be chosen from a group of {n} people if Ann is one?",
            lambda p: math.comb(p["n"] - 1, p["k"] - 1),
        ),
        Negative(
            "the chance",
            "With what chance can {k} people be chosen from a group of {n} people?",
        ),
        Negative(
            "with a leader",
            "How many committees of {k} members and a chair can a club of {n} members form?",
        ),
        Negative(
            "no one",
            "In how many ways can 0 people be chosen from a group of {n} people?",
            lambda p: 1,
        ),
        Negative(
            "in a row",
            "In how many rows can {k} people be chosen from a group of {n} people?",
        ),
    ),
)

# --- linear systems -------------------------------------------------------------------------------


def _system(rng: random.Random) -> Parameters:
    while True:
        a, b, d, e = (rng.randint(2, 9) for _ in range(4))
        if a * e != b * d:
            break
    x, y = rng.randint(1, 12), rng.randint(1, 12)
    return {
        **{"a": a, "b": b, "c": a * x + b * y, "d": d, "e": e, "f": d * x + e * y},
        **{"x": x, "y": y, "twice_a": 2 * a, "twice_b": 2 * b, "off": 2 * (a * x + b * y) + 1},
    }


_SYSTEM = ProblemFamily(
    "linear system",
    (
        "Solve {a}x + {b}y = {c} and {d}x + {e}y = {f}. What is x?",
        "If {a}x + {b}y = {c} and {d}x + {e}y = {f}, what is the value of x?",
        "Two numbers satisfy {a}x + {b}y = {c} and {d}x + {e}y = {f}; find the number x.",
    ),
    _system,
    lambda p: p["x"],
    (
        Negative(
            "the other one",
            "Solve {a}x + {b}y = {c} and {d}x + {e}y = {f}. What is y?",
            lambda p: p["y"],
        ),
        Negative(
            "the sum",
            "Solve {a}x + {b}y = {c} and {d}x + {e}y = {f}. What is x + y?",
            lambda p: p["x"] + p["y"],
        ),
        Negative("a minus", "Solve {a}x - {b}y = {c} and {d}x + {e}y = {f}. What is x?"),
        Negative(
            "names swapped",
            "Solve {a}y + {b}x = {c} and {d}y + {e}x = {f}. What is x?",
            lambda p: p["y"],
        ),
        Negative(
            "no solution",
            "Solve {a}x + {b}y = {c} and {twice_a}x + {twice_b}y = {off}. What is x?",
        ),
        Negative("one line twice", "Solve {a}x + {b}y = {c} and {a}x + {b}y = {c}. What is x?"),
        Negative("a square", "Solve {a}x^2 + {b}y = {c} and {d}x + {e}y = {f}. What is x?"),
        Negative("inequality", "Solve {a}x + {b}y < {c} and {d}x + {e}y = {f}. What is x?"),
        Negative("or", "Solve {a}x + {b}y = {c} or {d}x + {e}y = {f}. What is x?"),
    ),
)

# --- bases ----------------------------------------------------------------------------------------


def digits(number: int, base: int) -> str:
    """The digits of a positive number in a base up to ten."""
    out = ""
    while number:
        number, digit = divmod(number, base)
        out = str(digit) + out
    return out


def _base(rng: random.Random) -> Parameters:
    return {"n": rng.randint(10, 500), "b": rng.randint(2, 9)}


_BASE = ProblemFamily(
    "number base",
    (
        "Write the number {n} in base {b}.",
        "What is {n} in base {b}?",
        "Which digits does the decimal number {n} have when it is written to base {b}?",
    ),
    _base,
    lambda p: digits(p["n"], p["b"]),
    (
        Negative(
            "the other way",
            "Write the base {b} number 11 in base ten.",
            lambda p: p["b"] + 1,
        ),
        Negative(
            "how many digits",
            "How many digits has {n} in base {b}?",
            lambda p: len(digits(p["n"], p["b"])),
        ),
        Negative(
            "the last digit",
            "Write the last digit of the number {n} in base {b}.",
            lambda p: p["n"] % p["b"],
        ),
        Negative("base sixteen", "Write the number {n} in base 16.", lambda p: f"{p['n']:X}"),
        Negative("base one", "Write the number {n} in base 1."),
        Negative("base zero", "Write the number {n} in base 0."),
        Negative("negative base", "Write the number {n} in base -{b}."),
        Negative(
            "from another base",
            "Write the base 12 number {n} in base {b}.",
            lambda p: digits(int(str(p["n"]), 12), p["b"]),
        ),
        Negative("two bases", "Write the number {n} in base {b} and in base {b}."),
    ),
)

# --- interest -------------------------------------------------------------------------------------


def _interest(rng: random.Random) -> Parameters:
    return {"p": 100 * rng.randint(2, 50), "r": rng.randint(2, 9), "t": rng.randint(2, 12)}


_INTEREST = ProblemFamily(
    "simple interest",
    (
        "A deposit of {p} dollars earns {r}% simple interest a year. "
        "How many dollars of interest does it earn in {t} years?",
        "How much simple interest, in dollars, is paid on {p} dollars at {r}% a year "
        "after {t} years?",
        "At {r}% a year, without compounding, how many dollars does a loan of {p} dollars cost "
        "over {t} years?",
    ),
    _interest,
    lambda p: p["p"] * p["r"] * p["t"] // 100,
    (
        Negative(
            "compound",
            "A deposit of {p} dollars earns {r}% compound interest a year. "
            "How many dollars of interest does it earn in {t} years?",
        ),
        Negative(
            "months",
            "A deposit of {p} dollars earns {r}% simple interest a year. "
            "How many dollars of interest does it earn in {t} months?",
        ),
        Negative(
            "a month",
            "A deposit of {p} dollars earns {r}% simple interest a month. "
            "How many dollars of interest does it earn in {t} years?",
            lambda p: 12 * p["p"] * p["r"] * p["t"] // 100,
        ),
        Negative(
            "the balance",
            "A deposit of {p} dollars earns {r}% simple interest a year. "
            "How many dollars is it worth in {t} years?",
            lambda p: p["p"] + p["p"] * p["r"] * p["t"] // 100,
        ),
        Negative(
            "cents",
            "A deposit of {p} dollars earns {r}% simple interest a year. "
            "How many cents of interest does it earn in {t} years?",
            lambda p: p["p"] * p["r"] * p["t"],
        ),
        Negative(
            "from then on",
            "A deposit of {p} dollars earns {r}% simple interest a year. "
            "How many dollars of interest does it earn after {t} years?",
        ),
        Negative(
            "half a year",
            "A deposit of {p} dollars earns {r}% simple interest half a year. "
            "How many dollars of interest does it earn in {t} years?",
        ),
    ),
)

# --- common multiples -----------------------------------------------------------------------------


def _multiple(rng: random.Random) -> Parameters:
    a, b = rng.sample(range(4, 61), 2)
    return {"a": a, "b": b}


_MULTIPLE = ProblemFamily(
    "common multiple",
    (
        "What is the least common multiple of {a} and {b}?",
        "Which is the smallest positive number that is divisible by both {a} and {b}?",
        "One bell rings every {a} minutes, another every {b} minutes; after how many minutes do "
        "they ring together again?",
    ),
    _multiple,
    lambda p: math.lcm(p["a"], p["b"]),
    (
        Negative(
            "the divisor",
            "What is the greatest common divisor of {a} and {b}?",
            lambda p: math.gcd(p["a"], p["b"]),
        ),
        Negative("the greatest", "What is the greatest common multiple of {a} and {b}?"),
        Negative("three", "What is the least common multiple of {a}, {b} and {a}?"),
        Negative(
            "either",
            "Which is the smallest positive number that is divisible by either {a} or {b}?",
            lambda p: min(p["a"], p["b"]),
        ),
        Negative("zero", "What is the least common multiple of {a} and 0?"),
        Negative("a multiple", "What is the second least common multiple of {a} and {b}?"),
        Negative(
            "the same twice",
            "What is the least common multiple of {a} and {a}?",
            lambda p: p["a"],
        ),
        Negative("odd", "Which is the smallest odd number that is divisible by both {a} and {b}?"),
        Negative(
            "not divisible",
            "Which is the smallest positive number that is divisible by neither {a} nor {b}?",
            lambda p: 1,
        ),
    ),
)

# --- sums of sequences ----------------------------------------------------------------------------


def _sum(rng: random.Random) -> Parameters:
    return {"a": rng.randint(2, 30), "d": rng.randint(2, 15), "n": rng.randint(5, 40)}


_SUM = ProblemFamily(
    "arithmetic sum",
    (
        "What is the sum of the first {n} terms of the arithmetic sequence that starts with {a} "
        "and grows by {d}?",
        "An arithmetic sequence begins with {a}, and each term is {d} more than the one before. "
        "What do its first {n} terms add up to?",
        "Each of {n} rows has {d} seats more than the row before it, the first has {a}. How many "
        "seats are there?",
    ),
    _sum,
    lambda p: p["n"] * (2 * p["a"] + (p["n"] - 1) * p["d"]) // 2,
    (
        Negative(
            "geometric",
            "What is the sum of the first {n} terms of the geometric sequence that starts with "
            "{a} and grows by {d}?",
        ),
        Negative(
            "the last term",
            "What is the last of the first {n} terms of the arithmetic sequence that starts with "
            "{a} and grows by {d}?",
            lambda p: p["a"] + (p["n"] - 1) * p["d"],
        ),
        Negative(
            "shrinks",
            "What is the sum of the first {n} terms of the arithmetic sequence that starts with "
            "{a} and shrinks by {d}?",
            lambda p: p["n"] * (2 * p["a"] - (p["n"] - 1) * p["d"]) // 2,
        ),
        Negative(
            "the product",
            "What is the product of the first {n} terms of the arithmetic sequence that starts "
            "with {a} and grows by {d}?",
        ),
        Negative(
            "from the second on",
            "What is the sum of the next {n} terms of the arithmetic sequence that starts with "
            "{a} and grows by {d}?",
        ),
        Negative(
            "no terms",
            "What is the sum of the first 0 terms of the arithmetic sequence that starts with {a} "
            "and grows by {d}?",
            lambda p: 0,
        ),
    ),
)

NUMBER_FAMILIES = (_POWER, _CHOICE, _SYSTEM, _BASE, _INTEREST, _MULTIPLE, _SUM)
