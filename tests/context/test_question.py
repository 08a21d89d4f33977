"""Questions to a collection: what is grafted, what is quoted, and when nothing is said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvgraft.context.about import collection_path
from kvgraft.context.collection import Collection
from kvgraft.context.files import find_files
from kvgraft.context.ingest import about_for, capture, take_in
from kvgraft.context.layout import Layout, titled
from kvgraft.context.question import EACH, PAGE, TEXT, TOGETHER, Reply, ask_collection
from kvgraft.context.space import Space
from kvgraft.engines.toy import ToyEngine, ToyShape
from kvgraft.errors import ContextTooLong, InputError, UsageError
from kvgraft.plan import PUBLIC_SALT
from kvgraft.prompt import encode
from kvgraft.store.check import open_local
from kvgraft.testing.grafting import DAMAGES, damage
from library.scripted import ScriptedEngine
from toys import memory_chunks

HARBOUR = "The harbour master of Quillport is named Ottoline Vesk. She was born on an island."
BRIDGE = "The bridge of Tarn was closed in the spring of 1904, because a barge had struck it."
FILLER = "\n\n".join(f"Here is said nothing but that {n} follows {n - 1}." for n in range(1, 30))
ASKED = "Who is the harbour master of Quillport?"


@pytest.fixture
def engine() -> ScriptedEngine:
    made = ScriptedEngine(shape=ToyShape(context_tokens=4_096))
    made.on(f"Question: {ASKED}<eos><assistant>", "Ottoline Vesk\nand more")
    return made


@pytest.fixture
def space(tmp_path: Path, engine: ScriptedEngine) -> Iterator[Space]:
    chunks = open_local(tmp_path / "store")
    yield Space(engine, chunks, "public", PUBLIC_SALT)
    chunks.close()


@pytest.fixture
def held(tmp_path: Path, space: Space) -> Iterator[Collection]:
    folder = tmp_path / "documents"
    folder.mkdir()
    for name, text in (("harbour", HARBOUR), ("bridge", BRIDGE), ("filler", FILLER)):
        (folder / f"{name}.txt").write_text(f"{text}\n\n{FILLER[:200]}")
    path = collection_path(tmp_path / "store", space.tenant, "notes")
    with Collection.create(path, about_for(space, "notes", 900)) as made:
        for _ in take_in(space, made, find_files([folder]), lambda stage, done, total: None):
            pass
        for _ in capture(space, made):
            pass
        yield made


def ask(space: Space, held: Collection, question: str = ASKED, **options: object) -> Reply:
    return ask_collection(space, held, question, **options)  # type: ignore[arg-type]


def test_the_page_is_grafted_whole_and_its_passage_quoted(
    space: Space, held: Collection, engine: ScriptedEngine
) -> None:
    engine.forwards.clear()
    reply = ask(space, held)
    assert (reply.way, reply.answer, reply.relevant) == (PAGE, "Ottoline Vesk", True)
    (source,) = reply.sources
    assert source.path.endswith("harbour.txt")
    assert source.holds_answer
    assert HARBOUR in source.passage
    (reuse,) = reply.reuse
    page = next(
        page
        for page in map(held.page, held.page_ids())
        if page.path == source.path and page.number == source.page
    )
    assert reuse.reused_tokens == len(page.ids) == reply.cost.reused_tokens
    assert reuse.captured_bytes == 0  # of a question nothing is kept
    assert max(engine.forwards) <= engine.form.block
    assert reply.cost.prefill_tokens == reuse.tokens - len(page.ids)
    assert len(f"Question: {ASKED}") <= reply.cost.prefill_tokens < 2 * len(ASKED)


def test_the_answer_has_the_bits_of_a_fresh_reading(space: Space, held: Collection) -> None:
    grafted = ask(space, held)
    cold_space = Space(space.engine, memory_chunks(), space.tenant, space.salt)
    cold = ask(cold_space, held)
    # The page is read, kept, and then grafted.
    read, asked = cold.reuse
    assert (read.reused_tokens, read.computed_tokens) == (0, asked.reused_tokens)
    assert grafted.reuse[0].reused_tokens == asked.reused_tokens > 0
    assert grafted.logits_sha256 == cold.logits_sha256
    again = ask(cold_space, held)
    assert len(again.reuse) == 1
    assert again.cost.prefill_tokens == grafted.cost.prefill_tokens
    assert again.logits_sha256 == cold.logits_sha256


def test_nothing_relevant_asks_no_model(
    space: Space, held: Collection, engine: ScriptedEngine
) -> None:
    engine.forwards.clear()
    reply = ask(space, held, "Which colour had zebras on Mars?")
    assert (reply.relevant, reply.answer, reply.text, reply.sources) == (False, None, "", ())
    assert reply.why
    assert engine.forwards == []
    assert reply.cost.decode_tokens == 0
    engine.on("on Mars?<eos><assistant>", "Not in the document.\n")
    anyway = ask(space, held, "Which colour had zebras on Mars?", anyway=True)
    assert (anyway.answer, anyway.sources) == (None, ())
    if anyway.reuse:
        assert anyway.text == "Not in the document."


def test_several_pages_together_are_exact_behind_the_first(
    space: Space, held: Collection, engine: ScriptedEngine
) -> None:
    question = "What do Quillport's harbour master and the bridge of Tarn have in common?"
    engine.on(f"Question: {question}<eos><assistant>", "Nothing\n")
    reply = ask(space, held, question, way=TOGETHER, pages=2)
    assert (reply.way, reply.answer, len(reply.sources)) == (TOGETHER, "Nothing", 2)
    (reuse,) = reply.reuse
    pages = [held.page(id) for id in held.page_ids()]
    first = next(page for page in pages if page.path == reply.sources[0].path)
    assert reuse.reused_tokens == len(first.ids)
    cold = ask(
        Space(engine, memory_chunks(), "public", PUBLIC_SALT), held, question, way=TOGETHER, pages=2
    )
    assert cold.logits_sha256 == reply.logits_sha256


def test_together_leaves_out_what_does_not_fit(space: Space, held: Collection) -> None:
    reply = ask(space, held, "harbour bridge follows", way=TOGETHER, pages=16, max_new_tokens=2_000)
    (reuse,) = reply.reuse
    assert reuse.tokens + 2_000 <= space.engine.context_tokens


def test_each_page_by_itself_and_then_their_answers(
    space: Space, held: Collection, engine: ScriptedEngine
) -> None:
    question = "Name the harbour master of Quillport and the bridge that was closed."
    engine.on(f"Question: {question}<eos><assistant>", "Vesk, Tarn\n")
    reply = ask(space, held, question, way=EACH, pages=2)
    assert reply.answer == "Vesk, Tarn"
    assert len(reply.sources) == 2
    assert [one.reused_tokens > 0 for one in reply.reuse] == [True, True, False]
    assert reply.cost.attempts == 3


def test_passages_as_text_use_no_state(space: Space, held: Collection) -> None:
    before = space.chunks.index.totals()
    reply = ask(space, held, way=TEXT)
    assert (reply.way, reply.answer) == (TEXT, "Ottoline Vesk")
    assert reply.sources[0].path.endswith("harbour.txt")
    assert reply.cost.reused_tokens == 0
    assert space.chunks.index.totals() == before


def test_a_question_that_cannot_be_put(space: Space, held: Collection) -> None:
    for empty in ("", " \n"):
        with pytest.raises(InputError):
            ask(space, held, empty)
    with pytest.raises(UsageError, match="no way"):
        ask(space, held, way="guess")
    with pytest.raises(UsageError, match="1 to 16"):
        ask(space, held, pages=17)
    with pytest.raises(ContextTooLong, match="question"):
        ask(space, held, ASKED + " harbour Quillport" * 300)


def test_a_model_that_the_pages_do_not_fit_is_refused(space: Space, held: Collection) -> None:
    class Other(type(ToyEngine().tokenizer)):  # type: ignore[misc]
        digest = "another"

    other = ToyEngine()
    other.tokenizer = Other()
    with pytest.raises(UsageError, match="another tokenizer"):
        ask(Space(other, space.chunks, "public", PUBLIC_SALT), held)


def test_another_engine_of_the_same_tokenizer_reads_the_page_again(
    space: Space, held: Collection
) -> None:
    other = Space(ToyEngine(3, ToyShape(context_tokens=4_096)), space.chunks, "public", PUBLIC_SALT)
    reply = ask(other, held, max_new_tokens=4)
    read, asked = reply.reuse
    assert (read.reused_tokens, read.computed_tokens) == (0, asked.reused_tokens)
    again = ask(other, held, max_new_tokens=4)
    assert again.reuse[0].computed_tokens == 0
    assert again.logits_sha256 == reply.logits_sha256


def test_a_damaged_state_is_computed_again(space: Space, held: Collection) -> None:
    good = ask(space, held)
    entry = next(
        entry
        for entry in space.chunks.index.all_entries()
        if entry.object.key == held.page(held.page_ids()[-1]).key
    )
    for kind in DAMAGES:
        damage(space.chunks, entry, kind)
        again = ask(space, held)
        assert (again.answer, again.logits_sha256) == (good.answer, good.logits_sha256)


# --- the layout -----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["Plain words.", "Ends in a space ", "", "ünï ćödé\n\n- list"])
def test_every_question_begins_with_the_page(text: str) -> None:
    tokenizer, layout = ToyEngine().tokenizer, Layout()
    document = titled("Title", "Part > One", text)
    page = layout.page_ids(tokenizer, document)
    for question in ("A", "0", "Why is it so?", "\n\nWhy?"):
        prompt = layout.prompt(tokenizer, [document], question, page)
        assert prompt.ids == encode(tokenizer, prompt.text)
        assert prompt.ids[: len(page)] == page
        assert prompt.cuts == (len(page),)
        more = layout.prompt(tokenizer, [document, "Another."], question, page)
        assert more.cuts == (len(page),)
    assert layout.prompt(tokenizer, [document], "Why?").cuts == ()
    assert layout.prompt(tokenizer, ["Other."], "Why?", page).cuts == ()
