"""Families whose parameters are dates or times of day."""

from __future__ import annotations

import random
from datetime import date, timedelta

from kvgraft.testing.problem_family import Negative, Parameters, ProblemFamily

# --- weekdays -------------------------------------------------------------------------------------

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_FIRST_DAY, _LAST_DAY = date(1950, 1, 1), date(2049, 12, 31)


def _day(rng: random.Random) -> Parameters:
    span = (_LAST_DAY - _FIRST_DAY).days
    return {"day": _FIRST_DAY + timedelta(rng.randint(0, span - 1))}


def _weekday(day: date) -> str:
    return _DAYS[day.weekday()]


_WEEKDAY = ProblemFamily(
    "weekday",
    (
        "On which day of the week does {day:%Y-%m-%d} fall?",
        "What day of the week is {day:%B} {day.day}, {day.year}?",
        "Name the weekday of {day.day} {day:%B} {day.year}.",
    ),
    _day,
    lambda p: _weekday(p["day"]),
    (
        Negative(
            "of the year",
            "On which day of the year does {day:%Y-%m-%d} fall?",
            lambda p: p["day"].timetuple().tm_yday,
        ),
        Negative(
            "of the month",
            "On which day of the month does {day:%Y-%m-%d} fall?",
            lambda p: p["day"].day,
        ),
        Negative(
            "the day after",
            "On which day of the week does the day after {day:%Y-%m-%d} fall?",
            lambda p: _weekday(p["day"] + timedelta(1)),
        ),
        Negative("no date", "On which day of the week does {day.year}-02-30 fall?"),
        Negative("month 13", "On which day of the week does {day.year}-13-01 fall?"),
        Negative("another order", "On which day of the week does {day:%d-%m-%Y} fall?"),
        Negative("the week", "In which week of the year does {day:%Y-%m-%d} fall?"),
        Negative(
            "how many until",
            "How many days are left in the week of {day:%Y-%m-%d}?",
        ),
        Negative(
            "long ago",
            "On which day of the week does 1492-10-12 fall?",
            lambda p: _weekday(date(1492, 10, 12)),
        ),
    ),
)

# --- days between dates ---------------------------------------------------------------------------


def _span(rng: random.Random) -> Parameters:
    first = _day(rng)["day"]
    days = rng.randint(20, 700)
    return {"a": first, "b": first + timedelta(days), "days": days}


_BETWEEN = ProblemFamily(
    "days between",
    (
        "How many days are there from {a:%Y-%m-%d} to {b:%Y-%m-%d}?",
        "How many days after {a:%B} {a.day}, {a.year} is {b:%B} {b.day}, {b.year}?",
        "A loan runs from {a.day} {a:%B} {a.year} until {b.day} {b:%B} {b.year}. For how many "
        "days does it run?",
    ),
    _span,
    lambda p: p["days"],
    (
        Negative(
            "both counted",
            "How many days are there from {a:%Y-%m-%d} to {b:%Y-%m-%d}, both included?",
            lambda p: p["days"] + 1,
        ),
        Negative(
            "the day of the week",
            "Which day of the week is there from {a:%Y-%m-%d} to {b:%Y-%m-%d}?",
        ),
        Negative("backwards", "How many days are there from {b:%Y-%m-%d} to {a:%Y-%m-%d}?"),
        Negative(
            "hours",
            "How many hours are there from {a:%Y-%m-%d} to {b:%Y-%m-%d}?",
            lambda p: 24 * p["days"],
        ),
        Negative("weeks", "How many weeks are there from {a:%Y-%m-%d} to {b:%Y-%m-%d}?"),
        Negative(
            "working days",
            "How many working days are there from {a:%Y-%m-%d} to {b:%Y-%m-%d}?",
        ),
        Negative("no date", "How many days are there from {a:%Y-%m-%d} to {b.year}-02-30?"),
        Negative(
            "the same day",
            "How many days are there from {a:%Y-%m-%d} to {a:%Y-%m-%d}?",
            lambda p: 0,
        ),
        Negative(
            "before",
            "How many days before {a:%B} {a.day}, {a.year} is {b:%B} {b.day}, {b.year}?",
        ),
    ),
)

# --- times of day ---------------------------------------------------------------------------------


def _clock(minutes: int) -> str:
    return f"{minutes // 60 % 24:02d}:{minutes % 60:02d}"


def _trip(rng: random.Random) -> Parameters:
    start = rng.randint(0, 24 * 60 - 1)
    return {"t": _clock(start), "m": rng.randint(15, 400), "start": start}


_TIME = ProblemFamily(
    "time of day",
    (
        "A train leaves at {t} and travels for {m} minutes. At what time does it arrive?",
        "What time is it {m} minutes after {t}?",
        "The clock shows {t} now; what will it show when {m} minutes have passed?",
    ),
    _trip,
    lambda p: _clock(p["start"] + p["m"]),
    (
        Negative(
            "hours",
            "A train leaves at {t} and travels for {m} hours. At what time does it arrive?",
            lambda p: _clock(p["start"] + 60 * p["m"]),
        ),
        Negative(
            "before",
            "What time is it {m} minutes before {t}?",
            lambda p: _clock(p["start"] - p["m"]),
        ),
        Negative(
            "when did it leave",
            "A train arrives at {t} and travels for {m} minutes. At what time does it leave?",
            lambda p: _clock(p["start"] - p["m"]),
        ),
        Negative(
            "no time of day",
            "A train leaves at 25:10 and travels for {m} minutes. At what time does it arrive?",
        ),
        Negative(
            "a delay",
            "A train leaves at {t} and travels for {m} minutes. At what time does it arrive if it "
            "is late?",
        ),
        Negative(
            "seconds",
            "A train leaves at {t}:30 and travels for {m} minutes. At what time does it arrive?",
        ),
        Negative(
            "afternoon",
            "A train leaves at {t} pm and travels for {m} minutes. At what time does it arrive?",
        ),
        Negative(
            "stops",
            "A train leaves at {t} and stops for {m} minutes. At what time does it arrive?",
        ),
    ),
)

DATE_FAMILIES = (_WEEKDAY, _BETWEEN, _TIME)
