"""Skeletons: what problems of one phrasing have in common, with a slot wherever they differ.

A skeleton comes from solved problems by comparing them token by token; no model has a part in it.
A text matches where every other token is the same, every slot holds a value of its kind, and the
skeleton with these values in it is the text, character by character.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from kvgraft.errors import StoreError
from kvgraft.library.methods.lex import KINDS, SIGN, WORD, tokens
from kvgraft.limits import MAX_METHOD_SLOTS, MAX_METHOD_WORD_SLOTS

# Signs that may stand in one another's place; a full stop and a question mark may not.
_OPERATORS = frozenset("+-*/^<>=%&|\u00d7\u00f7\u00b7\u2212\u2264\u2265")
# What a program gets for these is the text itself, and only texts that were seen.
CLOSED = (WORD, SIGN)


@dataclass(frozen=True)
class Part:
    """A token that has to be there (`text`), or the slot number `slot`."""

    kind: str
    text: str | None = None
    slot: int | None = None


@dataclass(frozen=True)
class Skeleton:
    """Parts in the order of the text; slots are numbered in the order of their first place. A slot
    with several places holds the same text in each."""

    parts: tuple[Part, ...]

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of each slot."""
        first = {part.slot: part.kind for part in reversed(self.parts) if part.slot is not None}
        return tuple(first[number] for number in sorted(first))

    @property
    def types(self) -> tuple[str, ...]:
        """Of what a program gets for each slot."""
        return tuple(type_of(kind) for kind in self.kinds)

    @property
    def shape(self) -> str:
        """Equal to `shape_of` every text that matches."""
        return _shape(part.kind for part in self.parts)

    def match(self, text: str) -> tuple[str, ...] | None:
        """The text in each slot, or None where `text` is not of this skeleton."""
        found = tokens(text)
        slots: dict[int, str] = {}
        if len(found) != len(self.parts):
            return None
        for part, token in zip(self.parts, found, strict=True):
            if part.kind != token.kind:
                return None
            if part.slot is None:
                if part.text != token.text:
                    return None
            elif slots.setdefault(part.slot, token.text) != token.text:
                return None
        texts = tuple(slots[number] for number in range(len(slots)))
        # A second reading, the other way round: nothing of the text may be left unread.
        return texts if self.spell(texts) == text else None

    def spell(self, texts: Sequence[str]) -> str:
        """The text with these texts in its slots; values are parsed and spelled on the way.

        Raises:
            ValueError: one of them is no value of its slot's kind.
        """
        return "".join(
            (part.text or "") if part.slot is None else _spelled(part.kind, texts[part.slot])
            for part in self.parts
        )

    def arguments(self, texts: Sequence[str]) -> tuple[Any, ...]:
        """What a program gets for the texts in the slots.

        Raises:
            ValueError: one of them is no value of its slot's kind.
        """
        return tuple(map(argument, self.kinds, texts))

    def named(self, names: Sequence[str]) -> str:
        """The text with `{name}` in each slot, for people and models to read."""
        return "".join(
            (part.text or "") if part.slot is None else f"{{{names[part.slot]}}}"
            for part in self.parts
        )

    def as_json(self) -> list[list[Any]]:
        return [[part.kind, part.text, part.slot] for part in self.parts]


def from_json(rows: Sequence[Sequence[Any]]) -> Skeleton:
    """Inverse of `as_json`.

    Raises:
        StoreError: these are not the rows of a skeleton.
    """
    try:
        parts = tuple(Part(kind, text, slot) for kind, text, slot in rows)
        numbers = {part.slot for part in parts if part.slot is not None}
        whole = all((part.text is None) != (part.slot is None) for part in parts)
        known = all(type_of(part.kind) for part in parts if part.slot is not None)
        if not (parts and whole and known and numbers == set(range(len(numbers)))):
            raise ValueError("its parts do not fit together")
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"a skeleton is damaged: {error}") from error
    return Skeleton(parts)


def shape_of(text: str) -> str:
    """A digest of the kinds of a text's tokens: what skeletons are looked up by."""
    return _shape(token.kind for token in tokens(text))


def type_of(kind: str) -> str:
    """What a program gets for a slot of this kind.

    Raises:
        KeyError: no slot is of this kind.
    """
    return kind if kind in CLOSED else KINDS[kind].type


def argument(kind: str, text: str) -> Any:
    """The value that `text` spells, as plain data.

    Raises:
        ValueError: it spells none.
    """
    if kind in CLOSED:
        return text
    return KINDS[kind].argument(KINDS[kind].parse(text))


def _spelled(kind: str, text: str) -> str:
    return text if kind in CLOSED else KINDS[kind].spell(KINDS[kind].parse(text))


def _shape(kinds: Iterable[str]) -> str:
    return blake2b("\n".join(kinds).encode(), digest_size=16).hexdigest()


# --- from solved problems -------------------------------------------------------------------------


def phrasings(texts: Iterable[str], enough: int) -> dict[Skeleton, tuple[str, ...]]:
    """The skeletons behind `texts`, each with the texts that it was made of, most of them first.

    Texts with the same words belong together. Those of which there are fewer than `enough` are put
    together across words, where the rest of them agrees: their words become slots. What fits
    nowhere is left out.
    """
    shapes: dict[str, list[str]] = defaultdict(list)
    for text in dict.fromkeys(texts):
        shapes[shape_of(text)].append(text)
    found: list[tuple[Skeleton, tuple[str, ...]]] = []
    for alike in shapes.values():
        by_words: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for text in alike:
            by_words[_fixed(text)].append(text)
        few: list[str] = []
        for same in by_words.values():
            skeleton = induce(same) if len(same) >= enough else None
            if skeleton is None:
                few += same
            else:
                found.append((skeleton, tuple(same)))
        mixed = induce(few)
        if mixed is not None:
            found.append((mixed, tuple(few)))
        else:
            apart = ((induce(same), same) for same in by_words.values() if same[0] in few)
            found += [(one, tuple(same)) for one, same in apart if one is not None]
    found.sort(key=lambda pair: (-len(pair[1]), pair[1]))
    return dict(found)


def induce(texts: Sequence[str]) -> Skeleton | None:
    """The skeleton of `texts`, which are of one shape and all different; None where they have none:
    fewer than two texts, too many slots, or a difference that no slot may hold."""
    if len(set(texts)) < 2:
        return None
    columns = list(zip(*(tokens(text) for text in texts), strict=True))
    slots: dict[tuple[str, tuple[str, ...]], int] = {}
    parts = []
    for column in columns:
        kind, seen = column[0].kind, tuple(token.text for token in column)
        if len(set(seen)) == 1:
            parts.append(Part(kind, text=seen[0]))
            continue
        if not _may_differ(kind, seen):
            return None
        parts.append(Part(kind, slot=slots.setdefault((kind, seen), len(slots))))
    words = sum(kind in CLOSED for kind, _ in slots)
    if len(slots) > MAX_METHOD_SLOTS or words > MAX_METHOD_WORD_SLOTS:
        return None
    if 2 * words > sum(part.kind == WORD for part in parts):  # too little that they share
        return None
    return Skeleton(tuple(parts))


def _may_differ(kind: str, seen: Sequence[str]) -> bool:
    if kind == SIGN:
        return _OPERATORS.issuperset(seen)
    return kind == WORD or kind in KINDS


def _fixed(text: str) -> tuple[str, ...]:
    """What no value can be: two texts that agree in it have the same words."""
    return tuple(token.text for token in tokens(text) if token.kind not in KINDS)
