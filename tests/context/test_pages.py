"""Pages fit their budget and cover the text; passages are what is quoted of them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgraft.context.document import Document
from kvgraft.context.documents import read_document
from kvgraft.context.pages import Piece, pages, passages
from kvgraft.errors import UsageError

Count = Callable[[str], int]
_PIECES = re.compile(r" ?[^\W\d_]{1,6}|\d{1,3}|\s+(?!\S)|\s|[^\w\s]+|_+|.", re.DOTALL)


def _like_bpe(text: str) -> int:
    """Words in pieces, a space with what follows it, one BOS for every text."""
    return 1 + sum(1 for _ in _PIECES.finditer(text))


def _super_additive(text: str) -> int:
    """Together more than apart."""
    return len(text) + len(text) ** 2 // 500


COUNTS: dict[str, Count] = {
    "characters": len,
    "bytes": lambda text: len(text.encode()),
    "like bpe": _like_bpe,
    "words": lambda text: len(text.split()),
    "super-additive": _super_additive,
    "jumping": lambda text: len(text) + (7 if text[:1].isspace() else 0),
}


def _prose(characters: int, seed: int = 0) -> str:
    """Sentences in paragraphs, as manuals have them."""
    random_ = random.Random(seed)
    words = ["".join(random_.choices("etaoinshrdlu", k=random_.randint(1, 9))) for _ in range(500)]
    parts, length = [], 0
    while length < characters:
        sentences = [
            " ".join(random_.choices(words, k=random_.randint(5, 20))).capitalize() + "."
            for _ in range(random_.randint(2, 6))
        ]
        parts.append(" ".join(sentences))
        length += len(parts[-1]) + 2
    return "\n\n".join(parts) + "\n"


def _document(text: str, name: str = "a.txt") -> Document:
    return read_document(name, text.encode())


def _check(document: Document, budget: int, count: Count) -> list[Piece]:
    found = pages(document, budget, count)
    assert "".join(document.text[one.start : one.end] for one in found) == document.text
    assert all(one.start < one.end for one in found)
    assert all(count(document.text[one.start : one.end]) <= budget for one in found)
    return found


# --- pages ---------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    text=st.text(alphabet="ab. \n\n#\u0301\u200d😀字。", min_size=1, max_size=400).filter(
        str.strip
    ),
    budget=st.integers(20, 200),
    count=st.sampled_from(sorted(COUNTS)),
    name=st.sampled_from(["a.txt", "a.md", "a.py"]),
)
def test_pages_cover_the_text_and_none_is_over_the_budget(
    text: str, budget: int, count: str, name: str
) -> None:
    document = _document(text, name)
    found = _check(document, budget, COUNTS[count])
    for page in found:
        inside = passages(document, page)
        assert all(page.start <= one.start < one.end <= page.end for one in inside)
        quoted = "".join(document.text[one.start : one.end] for one in inside)
        assert quoted.split() == document.text[page.start : page.end].split()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("text", [_prose(20_000), "One.\n\n" * 500, "word\n" * 1_000])
def test_parts_that_count_more_together_still_fit(text: str, count: str) -> None:
    assert len(_check(_document(text), 300, COUNTS[count])) > 1


@pytest.mark.parametrize("count", ["characters", "like bpe", "bytes"])
@pytest.mark.parametrize("budget", [1_024, 4_096])
def test_running_text_fills_its_pages(count: str, budget: int) -> None:
    document = _document(_prose(100_000))
    found = _check(document, budget, COUNTS[count])
    tokens = [COUNTS[count](document.text[one.start : one.end]) for one in found[:-1]]
    assert sum(tokens) / len(tokens) >= 0.95 * budget


def test_every_character_is_counted_about_twice() -> None:
    counted = 0

    def count(text: str) -> int:
        nonlocal counted
        counted += len(text)
        return _like_bpe(text)

    document = _document(_prose(1_000_000))
    assert len(pages(document, 4_096, count)) > 10
    assert counted <= 2.1 * len(document.text)


def test_a_line_of_a_megabyte_is_cut_between_words_in_linear_time() -> None:
    counted = 0

    def count(text: str) -> int:
        nonlocal counted
        counted += len(text)
        return len(text)

    document = _document("word " * 200_000)
    found = pages(document, 5_000, count)
    assert all(document.text[one.start : one.start + 4] == "word" for one in found)
    assert counted <= 2.5 * len(document.text)


def test_a_page_ends_at_the_strongest_boundary_that_leaves_it_full_enough() -> None:
    chapter = "# One\n\n" + _prose(850) + "\n"
    document = _document(chapter + "# Two\n\n" + _prose(3_000), "a.md")
    first, second, *_ = pages(document, 1_050, len)
    assert (first.end, second.start) == (len(chapter), len(chapter))
    assert (first.heading, second.heading) == ("One", "Two")
    # A chapter that leaves most of the page empty is no end of it.
    small = "# One\n\n" + _prose(200) + "\n"
    document = _document(small + "# Two\n\n" + _prose(3_000), "a.md")
    assert pages(document, 1_050, len)[0].end > len(small)


@pytest.mark.parametrize("budget", range(300, 900, 37))
def test_no_page_ends_with_a_heading(budget: int) -> None:
    source = "".join(f"## Part {n}\n\n{_prose(150, n)}\n" for n in range(30))
    document = _document(source, "a.md")
    for page in _check(document, budget, len)[:-1]:
        last = document.text[page.start : page.end].rstrip().rsplit("\n", 1)[-1]
        assert not last.startswith("## ")


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("One is here. " * 100, lambda end: end.endswith(". ")),
        ("words " * 300, lambda end: end.endswith("words ")),
        ("line of it\n" * 300, lambda end: end.endswith("\n")),
        ("字" * 3_000, lambda end: True),
        ("e\u0301" * 2_000, lambda end: end.endswith("\u0301")),
        ("👩\u200d👧" * 1_000, lambda end: end.endswith("👧")),
        ("\u0301" * 5_000, lambda end: True),
    ],
    ids=["sentences", "words", "lines", "han", "accents", "families", "marks"],
)
def test_what_has_no_paragraphs_is_cut_at_the_best_place_there_is(
    text: str, fits: Callable[[str], bool]
) -> None:
    document = _document(text)
    found = _check(document, 331, len)
    assert all(fits(document.text[one.start : one.end]) for one in found[:-1])


def test_a_budget_that_holds_nothing_is_refused() -> None:
    document = _document("words")
    with pytest.raises(UsageError, match="no text"):
        pages(document, 0, len)
    with pytest.raises(UsageError, match="one character"):
        pages(document, 2, lambda text: 3 * len(text))


# --- passages ------------------------------------------------------------------------------------


def test_passages_of_prose_have_60_to_200_words() -> None:
    document = _document(_prose(30_000))
    for page in pages(document, 4_000, len):
        sizes = [
            len(document.text[one.start : one.end].split()) for one in passages(document, page)
        ]
        assert all(60 <= size <= 200 for size in sizes[:-1])
        assert sizes[-1] <= 200


def test_a_heading_stays_with_what_follows_it() -> None:
    source = "".join(
        f"# Head{n}\n\n{'word ' * words}\n\n" for n, words in enumerate((150, 199, 90))
    )
    document = _document(source, "a.md")
    quoted = passages(document, pages(document, 10_000, len)[0])
    texts = [document.text[one.start : one.end].strip() for one in quoted]
    assert not [text for text in texts if re.fullmatch(r"# Head\d", text.split("\n")[-1])]
    for number in range(3):
        (one,) = [
            one
            for one in quoted
            if one.heading == f"Head{number}" and "#" in document.text[one.start : one.end]
        ]
        assert document.text[one.start : one.end].startswith(f"# Head{number}\n\nword ")


def test_passages_look_at_their_own_page_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0

    class Breaks(tuple):  # type: ignore[type-arg]
        def __getitem__(self, at):  # type: ignore[no-untyped-def]
            nonlocal looked
            looked += 1 if isinstance(at, int) else len(range(*at.indices(len(self))))
            return super().__getitem__(at)

        def __iter__(self):  # type: ignore[no-untyped-def]
            nonlocal looked
            looked += len(self)
            return super().__iter__()

    document = _document(_prose(200_000))
    page = pages(document, 2_000, len)[50]
    object.__setattr__(document, "breaks", Breaks(document.breaks))
    assert passages(document, page)
    assert looked < len(document.breaks) / 4
