"""Times of the library: UTC, ISO 8601, in microseconds, so that they sort as text."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from kvgraft.errors import InputError
from kvgraft.limits import MAX_EXPIRY_DAYS


def now() -> str:
    """This moment."""
    return _written(datetime.now(timezone.utc))


def days_ago(days: float) -> str:
    """`days` before now, after it where they are negative.

    Raises:
        InputError: more than `limits.MAX_EXPIRY_DAYS` either way, or no number.
    """
    if not -MAX_EXPIRY_DAYS <= days <= MAX_EXPIRY_DAYS:  # not a number is neither
        raise InputError(f"{days:g} days are more than {MAX_EXPIRY_DAYS:,}, or no number")
    return _written(datetime.now(timezone.utc) - timedelta(days=days))


def as_utc(text: str) -> str:
    """A date or time as people write it, in the library's form. Without a zone it is UTC.

    Raises:
        InputError: it is none, or out of the years 1 to 9999.
    """
    plain = text.strip()
    try:
        # Python 3.10 does not know "Z".
        moment = datetime.fromisoformat(plain[:-1] + "+00:00" if plain[-1:] in "zZ" else plain)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=timezone.utc)
        return _written(moment.astimezone(timezone.utc))
    except (ValueError, OverflowError):
        raise InputError(
            "this is no date or time", where=text[:60], hint="2027-01-31 or 2027-01-31T12:00+01:00"
        ) from None


def coming(text: str) -> str:
    """A date or time to come, in the library's form.

    Raises:
        InputError: as `as_utc`, or it is over.
    """
    moment = as_utc(text)
    if moment <= now():
        raise InputError("this is over already", where=text[:60], hint="give a time to come")
    return moment


def _written(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds")
