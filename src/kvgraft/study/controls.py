"""What must not help: libraries that are wrong in one known way, each a copy of the real one.

A control counts answers that are called replayed, recorded, transferred, agreed or proved and are
wrong. `always_yes` is no control of the library but of the verifier: it shows what is kept without
one, and is counted apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

from kvgraft.blob.payload import ChunkPlace, payload_head
from kvgraft.errors import ArtifactError
from kvgraft.library.answer import RECORDED, REPLAYED
from kvgraft.library.ask import ask
from kvgraft.library.deposit import ACTIVE, REPLAYS, Deposit, DepositContent, NewDeposit
from kvgraft.library.ladder import derived_seed
from kvgraft.library.problem import Problem
from kvgraft.library.replay import make_deposit
from kvgraft.library.verify.base import Case, Verdict
from kvgraft.library.verify.exact import ExactVerifier
from kvgraft.library.verify.extract import extract
from kvgraft.library.workspace import Workspace
from kvgraft.limits import MAX_LISTED_DEPOSITS, OBJECT_HEADER_BYTES
from kvgraft.meter import Cost
from kvgraft.prompt import problem_prompt
from kvgraft.state import Role
from kvgraft.store.chunks import ChunkStore
from kvgraft.store.index import IndexEntry
from kvgraft.study.bench import MAIN, Bench, copy_store, each
from kvgraft.study.conditions import ask_row, held_out_judge, library_row, solve_rows
from kvgraft.study.items import HELD_OUT, RECURRING, Item, of_group
from kvgraft.study.journal import Journal
from kvgraft.testing.near_misses import near_misses

_INTEGER = re.compile(r"[0-9]+")


class Fixed:
    """A verifier that says the same of every text that has an answer."""

    version = "1"
    needs: frozenset[str] = frozenset()

    def __init__(self, passes: bool) -> None:
        self._passes = passes
        self.name = self.spec = f"always-{'yes' if passes else 'no'}"

    def verify(self, case: Case, trace: str) -> Verdict:
        """The verdict, without a look at the answer."""
        found = extract(trace)
        passed = self._passes and found is not None
        answer = found.answer if found else None
        grade = "agreed" if passed else "none"
        return Verdict(passed, grade, answer, self.name, self.version, {"method": self.name})

    def close(self) -> None:
        """Nothing is held."""


# --- answers permuted ---------------------------------------------------------------------------


def shuffled_step(bench: Bench, journal: Journal) -> None:
    """Every deposit of the copy has another one's answer, well formed and signed anew; its state
    is its own."""
    copy_store(bench.store(MAIN), bench.store("shuffled"), with_library=False)
    with bench.workspace("shuffled") as space, bench.workspace(MAIN) as real:
        deposits = _all(real)
        if not _all(space):
            for deposit, other in zip(deposits, _others(deposits), strict=True):
                if other is not None:
                    space.library.deposit(_with_answer_of(deposit, other))
        kept = {deposit.problem for deposit in _all(space)}
        items = [item for item in of_group(bench.items, RECURRING) if item.problem.text in kept]
        each(bench, journal, bench.controlled(items), lambda item: ask_row(bench, space, item))


def _all(space: Workspace) -> list[Deposit]:
    """Active deposits, oldest first."""
    found = space.library.list(status=ACTIVE, limit=MAX_LISTED_DEPOSITS)
    return sorted(found, key=lambda deposit: deposit.id)


def _others(deposits: Sequence[Deposit]) -> list[Deposit | None]:
    """For each deposit the next one with another answer; None where all are alike."""
    count = len(deposits)
    return [
        next(
            (
                other
                for step in range(1, count)
                if (other := deposits[(n + step) % count]).answer.strip() != one.answer.strip()
            ),
            None,
        )
        for n, one in enumerate(deposits)
    ]


def _with_answer_of(deposit: Deposit, other: Deposit) -> NewDeposit:
    content: dict[str, Any] = {
        one.name: getattr(deposit, one.name) for one in fields(DepositContent)
    }
    # A deposit that replays needs answer tokens; another that keeps text only has none.
    ids = other.answer_ids or tuple(reversed(deposit.answer_ids))
    content["answer"] = other.answer
    content["answer_ids"] = ids if deposit.replay == REPLAYS else ()
    content["verdict"] = replace(deposit.verdict, answer=other.answer)
    return NewDeposit(**content, finished=True)


# --- another deposit's state --------------------------------------------------------------------


def wrong_block_step(bench: Bench, journal: Journal) -> None:
    """The last block of every deposit's state holds another deposit's rows, signed anew, so that
    nothing below the logits can notice."""
    copy_store(bench.store(MAIN), bench.store("wrong_block"), with_library=True)
    with bench.workspace("wrong_block") as space, bench.workspace(MAIN) as real:
        replaying = [one for one in _all(real) if one.replay == REPLAYS]
        pairs = list(zip(replaying, _others(replaying), strict=True))
        if not journal.rows:
            for deposit, other in pairs:
                if other is not None:
                    graft_wrongly(space, real.chunks, deposit, other)
        kept = {deposit.problem for deposit, other in pairs if other is not None}
        items = [item for item in of_group(bench.items, RECURRING) if item.problem.text in kept]
        each(bench, journal, bench.controlled(items), lambda item: ask_row(bench, space, item))


def graft_wrongly(space: Workspace, real: ChunkStore, deposit: Deposit, donor: Deposit) -> None:
    """Put the donor's rows, from the store `real`, into the last block of a deposit's state in
    `space`, as far as they go.

    Raises:
        ArtifactError: an object of either is not in the store.
    """
    assert deposit.artifact is not None
    assert donor.artifact is not None
    key = bytes.fromhex(deposit.artifact)
    given = real.find(bytes.fromhex(donor.artifact))
    payloads: list[tuple[Role, IndexEntry, bytearray]] = []
    for role, entry in space.chunks.find(key).items():
        if role not in given:
            raise ArtifactError("a stored object that a control needs is gone", where=key.hex())
        payload, source = _payload(space.chunks, entry), _payload(real, given[role])
        _overwrite(space, role, (entry, payload), (given[role], source))
        payloads.append((role, entry, payload))
    for _, entry, _ in payloads:
        space.chunks.index.remove(entry)
    capture = space.chunks.capture(space.engine.fingerprint)
    for role, entry, payload in payloads:
        place = (entry.object.start, entry.object.count, entry.object.rows)
        capture.add(role, key, place, [memoryview(payload)])
    capture.commit()


def _overwrite(
    space: Workspace,
    role: Role,
    target: tuple[IndexEntry, bytearray],
    donor: tuple[IndexEntry, bytearray],
) -> None:
    """Copy rows, tensor by tensor; the head and the token ids stay the target's own."""
    spec = space.engine.spec
    places = [ChunkPlace(e.object.start, e.object.count, e.object.rows) for e, _ in (target, donor)]
    at = [len(payload_head(spec, role, place)) for place in places]
    for number, (mine, theirs) in enumerate(
        zip(*(spec.tensors(role, place.count) for place in places), strict=True)
    ):
        if number:  # the first tensor is the token ids
            size = min(mine.size_bytes, theirs.size_bytes)
            target[1][at[0] : at[0] + size] = donor[1][at[1] : at[1] + size]
        at = [at[0] + mine.size_bytes, at[1] + theirs.size_bytes]


def _payload(chunks: ChunkStore, entry: IndexEntry) -> bytearray:
    payload = bytearray(entry.object.stored_length)
    reader = chunks.blobs.open(entry.pack)
    try:
        reader.read_into(entry.object.offset + OBJECT_HEADER_BYTES, [memoryview(payload)])
    finally:
        reader.close()
    return payload


# --- problems that look alike -------------------------------------------------------------------


def plant(space: Workspace, problem: Problem, answer: str) -> str:
    """Deposit `answer` for a problem, with a solution that nobody worked out; its id. Only
    controls do so, and the record's source says it."""
    verifier = ExactVerifier()
    keyed = replace(problem, expected=answer)
    trace = f"The answer is {answer}."
    verdict = verifier.verify(keyed.case(), trace)
    prompt = problem_prompt(space.engine.tokenizer, keyed.text, keyed.system)
    cost = Cost.nothing().as_dict()
    made = make_deposit(space, keyed, prompt, trace, verdict, verifier, cost, source="planted")
    return made.id


def decoys_step(bench: Bench, journal: Journal) -> None:
    """Beside the real deposits, near misses of the problems asked, planted with wrong answers."""
    copy_store(bench.store(MAIN), bench.store("decoys"), with_library=True)
    asked = bench.controlled(of_group(bench.items, RECURRING))
    asked += bench.controlled(of_group(bench.items, HELD_OUT))
    with bench.workspace("decoys") as space, held_out_judge(bench) as judge:
        planted = _plant_decoys(bench, space, asked)

        def make(item: Item) -> dict[str, Any]:
            row = library_row(bench, space, item, judge)
            return {**row, "from_decoy": row.get("deposit_id") in planted}

        each(bench, journal, asked, make)


def _plant_decoys(bench: Bench, space: Workspace, items: Iterable[Item]) -> set[str]:
    planted = set()
    for item in items:
        number = derived_seed(bench.protocol.seed, "decoy", item.id) % 900 + 100
        decoy = replace(item.problem, text=decoy_text(item.problem.text))
        planted.add(plant(space, decoy, str(number)))
    return planted


def decoy_text(text: str) -> str:
    """`text` with its first whole number one larger; without a number, with one word more."""
    found = _INTEGER.search(text)
    if found is None:
        return f"{text} Not?"
    return f"{text[: found.start()]}{int(found[0]) + 1}{text[found.end() :]}"


def near_miss_step(bench: Bench, journal: Journal) -> None:
    """Generated problems are planted, and near misses of them asked. No attempt is worth making:
    all that counts is whether one is answered from the library."""
    misses = near_misses(bench.protocol.seed, bench.protocol.near_misses)
    done = {row["id"] for row in journal.rows}
    with bench.workspace("near_misses") as space:
        for text, answer in {miss.stored.text: miss.stored.answer for miss in misses}.items():
            problem = Problem("", text)
            known = space.library.lookup(space.space(None).address(problem.text), space.tenant)
            if known is None and answer is not None:
                plant(space, problem, answer)
        for number, miss in enumerate(misses):
            if (id := str(number)) not in done:
                answered = ask(space, Problem(id, miss.asked), max_new_tokens=1)
                journal.append(
                    {
                        "id": id,
                        "kind": miss.kind,
                        "differs": miss.differs,
                        "how": answered.how,
                        "from_library": answered.how in (REPLAYED, RECORDED),
                    }
                )
            bench.follow(journal.name, number + 1, len(misses))


# --- verifiers that do not look -----------------------------------------------------------------


def always_no_step(bench: Bench, journal: Journal) -> None:
    """A verifier that passes nothing: nothing is kept, and the answers are the bare model's."""
    _fixed_step(bench, journal, "always_no", passes=False)


def always_yes_step(bench: Bench, journal: Journal) -> None:
    """A verifier that passes everything: what is replayed then is as right as a first sample."""
    _fixed_step(bench, journal, "always_yes", passes=True)


def _fixed_step(bench: Bench, journal: Journal, name: str, *, passes: bool) -> None:
    items = bench.controlled(of_group(bench.items, RECURRING))
    solving = bench.journal(f"{name}.deposit")
    with bench.workspace(name) as space:
        if not solving.finished:
            solve_rows(bench, solving, space, Fixed(passes), items, name)
            solving.finish()
        each(bench, journal, items, lambda item: ask_row(bench, space, item))
