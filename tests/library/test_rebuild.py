"""States made again, for another fingerprint or another tokenizer, from what the library keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvgraft.engines.toy import ToyEngine, ToyShape, ToyTokenizer
from kvgraft.errors import InputError, RecordNotFound, StoreFull, VerifierError
from kvgraft.library import rebuild as module
from kvgraft.library.ask import ask
from kvgraft.library.deposit import Deposit, Grounds
from kvgraft.library.followup import follow_up
from kvgraft.library.problem import Problem
from kvgraft.library.rebuild import Rebuilt, rebuild
from kvgraft.library.records import Library
from kvgraft.library.reverify import Verifiers, reverify
from kvgraft.library.verify.exact import ExactVerifier
from kvgraft.library.workspace import Workspace
from kvgraft.prompt import CUES, encode
from kvgraft.store.check import reindex
from library.deposits import like
from library.scripted import (
    FOUR,
    QUESTION,
    SOLUTION,
    ScriptedEngine,
    opened,
    run,
    solving_engine,
    sound,
)

THREE = Problem("three", "What is 3 + 3?", expected="6")
TWELVE = Problem("twelve", "And for 6 + 6?", expected="12")
WORKED = "6 and 6 make 12.\nAnswer: 12"
TURNS = f"{SOLUTION}{CUES[0]} 4"


def all_in(workspace: Workspace, *ids: str) -> list[Rebuilt]:
    with Verifiers() as verifiers:
        chosen = ids or workspace.library.active_ids(workspace.tenant)
        return list(rebuild(workspace, chosen, verifiers))


def outcomes(seen: list[Rebuilt]) -> list[str]:
    return [one.outcome for one in seen]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def old(root: Path) -> Deposit:
    """A deposit of `FOUR` that the first engine made; one of `THREE` is there as text only."""
    engine = solving_engine()
    engine.on_problem(THREE.text, "Answer: 6")
    with opened(root, engine) as workspace:
        run(workspace, FOUR, THREE, judge=ExactVerifier())
        four, _ = reversed(workspace.library.list())
        assert four.replay == "replays"
        return four


class Bracketed(ToyTokenizer):
    """A model's tokenizer with another template, and pairs of letters as tokens."""

    template_digest = "brackets"
    digest = "pairs"

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for id in super().encode(text):
            if ids and (ids[-1], id) == (ord("m"), ord("a")):
                ids[-1] = 200
            else:
                ids.append(id)
        return ids

    def decode(self, ids: Any) -> str:
        spelled = [one for id in ids for one in ((ord("m"), ord("a")) if id == 200 else (id,))]
        return super().decode(spelled)

    def render(self, messages: Any) -> str:
        turns = "".join(f"[{message.role}: {message.content}]" for message in messages)
        return f"{turns}[assistant: "


def lose_states(workspace: Workspace) -> None:
    for name in list(workspace.chunks.blobs.names()):
        if name.endswith(".pack"):
            workspace.chunks.blobs.delete(name)
    reindex(workspace.chunks)


# --- another fingerprint --------------------------------------------------------------------------


def test_a_state_for_another_engine(root: Path, old: Deposit) -> None:
    engine = solving_engine(seed=1)
    with opened(root, engine) as workspace:
        assert ask(workspace, FOUR).exact is None  # computed anew each time, not exact
        seen = all_in(workspace)
        assert outcomes(seen) == ["replays", "text_only"]
        made = workspace.library.get(seen[0].made or "")
        assert workspace.library.get(old.id) == old
        assert sound(workspace)
        answer = ask(workspace, FOUR)
        assert (answer.how, answer.exact, answer.deposit_id) == ("replayed", True, made.id)
        assert answer.cost.prefill_tokens == 0
    assert (made.address, made.origin, made.source) == (old.address, old.id, "rebuild")
    assert (made.trace, made.cue, made.answer) == (old.trace, old.cue, "4")
    assert made.fingerprint == engine.fingerprint.hex != old.fingerprint
    assert (made.verdict.grade, made.verdict.verifier) == ("proved", "exact")
    assert made.verdict.evidence["solution"]["solution"]["gold"] == "4"
    assert made.grounds == old.grounds
    assert made.verified_at == old.verified_at < made.created_at
    assert made.provenance["rebuilt_from"] == old.id
    assert made.provenance["provenance"] == old.provenance
    assert made.provenance["provenance"]["seed"] is not None
    assert made.cost["decode_tokens"] is None  # not known is not 0
    assert made.cost["seconds"] > 0


def test_the_cue_that_worked_is_tried_first(root: Path) -> None:
    first, second = solving_engine(), solving_engine(seed=1)
    first.script.pop()
    first.on(SOLUTION + CUES[1], " 4\n")
    second.on(SOLUTION + CUES[1], " 4\n")  # and behind the first cue as well
    with opened(root, first) as workspace:
        (outcome,) = run(workspace, FOUR, judge=ExactVerifier())
    with opened(root, second) as workspace:
        (seen,) = all_in(workspace)
        made = workspace.library.get(seen.made or "")
        assert (made.cue, made.replay) == (CUES[1], "replays")
        old = workspace.library.get(outcome.deposit_id or "")
        assert made.token_ids == old.token_ids


def test_a_copy_of_a_copy_names_the_first_and_ends_with_the_second(
    root: Path, old: Deposit
) -> None:
    with opened(root, solving_engine(seed=1)) as workspace:
        (copy,) = all_in(workspace, old.id)
        workspace.library.expire(copy.made or "", "2999-01-01")
        workspace.library.expire(old.id, None)
    with opened(root, solving_engine(seed=2)) as workspace:
        (seen,) = all_in(workspace, copy.made or "")
        made = workspace.library.get(seen.made or "")
        assert (made.origin, made.expires_at) == (old.id, "2999-01-01T00:00:00.000000+00:00")
        assert made.provenance["rebuilt_from"] == copy.made


def test_the_first_engine_finds_its_own_as_before(root: Path, old: Deposit) -> None:
    with opened(root, solving_engine(seed=1)) as workspace:
        all_in(workspace)
    with opened(root, solving_engine()) as workspace:
        answer = ask(workspace, FOUR)
        assert (answer.deposit_id, answer.exact) == (old.id, True)


def test_done_again_it_does_nothing(root: Path, old: Deposit) -> None:
    engine = solving_engine(seed=1)
    with opened(root, engine) as workspace:
        all_in(workspace)
        count = workspace.library.count(status=None)
        events = workspace.library.audit()
        engine.forwards.clear()
        # Originals and copies, all there already.
        assert outcomes(all_in(workspace)) == ["known"] * 4
        assert engine.forwards == []
        assert workspace.library.count(status=None) == count
        assert workspace.library.audit() == events
        first = next(event for event in events if event.event == "rebuild")
        assert (first.deposit, first.detail["outcome"]) == (old.id, "replays")


def test_it_goes_on_where_it_was_stopped(root: Path, old: Deposit) -> None:
    with opened(root, solving_engine(seed=1)) as workspace, Verifiers() as verifiers:
        making = rebuild(workspace, workspace.library.active_ids("public"), verifiers)
        assert next(making).outcome == "replays"
        making.close()
        assert outcomes(all_in(workspace)) == ["known", "text_only", "known"]


def test_what_is_said_otherwise_is_text_only(root: Path, old: Deposit) -> None:
    other = solving_engine(seed=1)
    other.script.pop()
    other.on(SOLUTION + CUES[0], " 5\n")
    with opened(root, other) as workspace:
        seen = all_in(workspace, old.id)
        assert outcomes(seen) == ["text_only"]
        assert "'5'" in seen[0].reason
        made = workspace.library.get(seen[0].made or "")
        assert (made.artifact, made.answer, made.answer_ids) == (None, "4", ())
        answer = ask(workspace, FOUR)
        assert (answer.how, answer.answer, answer.deposit_id) == ("recorded", "4", made.id)
        assert sound(workspace)
        # Its verdict is that of the original, and can be given again.
        with Verifiers() as verifiers:
            (one,) = reverify(workspace.library, [made.id], verifiers)
        assert (one.outcome, one.reason) == ("passed", "")


@pytest.mark.parametrize(
    ("spec", "outcome"), [("exact", "text_only"), ("regex:[0-9.]+", "replays"), (None, "replays")]
)
def test_another_spelling_has_to_pass_the_verifier(
    root: Path, old: Deposit, spec: str | None, outcome: str
) -> None:
    """`4.0` is the answer `4`, but not to `exact`; where no verifier is known, it is enough."""
    other = solving_engine(seed=1)
    other.on(SOLUTION + CUES[0], " 4.0\n")
    with opened(root, other) as workspace:
        library = workspace.library
        grounds = None if spec is None else Grounds(spec, FOUR.case(), "", "4")
        again = library.deposit(like(old, grounds=grounds, fingerprint="x"))
        (seen,) = all_in(workspace, again.id)
        assert seen.outcome == outcome
        if outcome == "replays":
            assert library.get(seen.made or "").answer == "4.0"


def test_a_verifier_that_is_not_there_is_not_asked(root: Path, old: Deposit) -> None:
    class None_(Verifiers):
        def get(self, spec: str) -> Any:
            raise VerifierError("not here")

    with opened(root, solving_engine(seed=1)) as workspace:
        (seen,) = rebuild(workspace, [old.id], None_())
        assert seen.outcome == "replays"


def test_a_context_without_room_leaves_text(root: Path, old: Deposit) -> None:
    small = ScriptedEngine(seed=1, shape=ToyShape(context_tokens=100))
    with opened(root, small) as workspace:
        (seen,) = all_in(workspace, old.id)
    assert seen.outcome == "text_only"
    assert "64" in seen.reason


def test_random_models_leave_text_or_a_true_replay(tmp_path: Path) -> None:
    # The toy as it is: noise in, noise out; what is kept is true of it all the same.
    first, second = ToyEngine(1), ToyEngine(2)
    root = tmp_path / "store"
    with opened(root, solving_engine()) as workspace:
        run(workspace, FOUR, judge=ExactVerifier())
    for engine in (first, second):
        with opened(root, engine) as workspace:
            (seen, *_) = all_in(workspace)
            made = workspace.library.get(seen.made or "")
            assert made.fingerprint == engine.fingerprint.hex
            answer = ask(workspace, FOUR, max_new_tokens=4)
            assert answer.deposit_id == made.id
            assert answer.how == {"text_only": "recorded", "replays": "replayed"}[seen.outcome]
            assert answer.answer == "4"
            assert sound(workspace)
    assert first.fingerprint != second.fingerprint


# --- another model --------------------------------------------------------------------------------


def another_model() -> ScriptedEngine:
    engine = solving_engine(seed=2)
    engine.tokenizer = Bracketed()
    engine.on("Answer: 4" + CUES[0], " 4\n")  # what stands before it has other tokens
    return engine


def test_a_state_for_another_model(root: Path, old: Deposit) -> None:
    engine = another_model()
    with opened(root, engine) as workspace:
        assert ask(workspace, FOUR, max_new_tokens=4).how == "fresh"  # another address
        (seen,) = all_in(workspace, old.id)
        made = workspace.library.get(seen.made or "")
        assert (seen.outcome, made.replay, made.answer) == ("replays", "replays", "4")
        assert made.prompt == f"[user: {QUESTION}][assistant: "
        assert 200 in made.token_ids  # "make", by its own tokens
        text = made.prompt + made.trace + made.cue
        assert made.token_ids == encode(engine.tokenizer, text)
        assert made.address != old.address
        answer = ask(workspace, FOUR)
        assert (answer.how, answer.exact, answer.deposit_id) == ("replayed", True, made.id)
        assert all_in(workspace, old.id)[0] == Rebuilt(old.id, QUESTION, "known", made.id)
        assert sound(workspace)


def test_a_template_that_refuses_is_a_reason(root: Path, old: Deposit) -> None:
    class Refusing(Bracketed):
        def render(self, messages: Any) -> str:
            raise InputError("the template takes no such turns")

    engine = another_model()
    engine.tokenizer = Refusing()
    with opened(root, engine) as workspace:
        (seen,) = all_in(workspace, old.id)
        assert (seen.outcome, seen.made) == ("failed", None)
        assert "no such turns" in seen.reason
        event = workspace.library.audit(old.id)[-1]
        assert (event.event, event.detail["outcome"]) == ("rebuild", "failed")
        assert workspace.library.count() == 2


# --- follow-ups -----------------------------------------------------------------------------------


@pytest.fixture
def child(root: Path, old: Deposit) -> str:
    """A follow-up of `old`."""
    engine = solving_engine()
    engine.on(f"{TURNS}<eos><user>{TWELVE.text}<eos><assistant>", WORKED)
    engine.on(WORKED + CUES[0], " 12\n")
    with opened(root, engine) as workspace:
        done = follow_up(workspace, old.id, TWELVE, verifier=ExactVerifier(), keep=True)
        assert done.answer.kept is not None
        return done.answer.kept


def test_a_follow_up_goes_on_from_the_copy_of_its_parent(
    root: Path, old: Deposit, child: str
) -> None:
    engine = another_model()
    engine.on("Answer: 12" + CUES[0], " 12\n")
    with opened(root, engine) as workspace:
        seen = {one.id: one for one in all_in(workspace)}
        assert (seen[old.id].outcome, seen[child].outcome) == ("replays", "replays")
        parent, made = seen[old.id].made or "", workspace.library.get(seen[child].made or "")
        assert (made.parent, made.origin) == (parent, child)
        assert made.prompt.startswith(f"[user: {QUESTION}][assistant: {SOLUTION}")
        assert made.cuts == (len(workspace.library.get(parent).token_ids),)
        # Who asks the copy is answered from the copy.
        done = follow_up(workspace, parent, TWELVE)
        assert (done.answer.how, done.answer.deposit_id) == ("replayed", made.id)
        assert done.answer.exact is True
        assert outcomes(all_in(workspace)) == ["known"] * len(list(seen)) + ["known"] * 3
        # The whole family falls together.
        revoked = workspace.library.revoke(made.id, "wrong")
        assert set(revoked) == {child, made.id}
        assert set(workspace.library.revoke(old.id, "wrong")) == {old.id, parent}


def test_a_follow_up_of_another_solution_stays_with_its_own_parent(
    root: Path, old: Deposit, child: str
) -> None:
    """The engine has solved the parent's problem itself, in its own way: "step 2" is another."""
    engine = solving_engine(seed=1)
    with opened(root, engine) as workspace:
        (own,) = run(workspace, FOUR, judge=ExactVerifier())
        assert own.deposit_id != old.id
        (seen,) = all_in(workspace, child)
        assert workspace.library.get(seen.made or "").parent == old.id


# --- the engine's own states ----------------------------------------------------------------------


def test_states_that_were_lost_are_made_again(root: Path, old: Deposit) -> None:
    engine = solving_engine()
    engine.forwards.clear()
    with opened(root, engine) as workspace:
        assert outcomes(all_in(workspace)) == ["known", "known"]
        assert engine.forwards == []
        lose_states(workspace)
        assert all_in(workspace, old.id) == [Rebuilt(old.id, QUESTION, "replays", old.id)]
        engine.forwards.clear()
        answer = ask(workspace, FOUR)
        assert (answer.deposit_id, answer.exact, answer.cost.prefill_tokens) == (old.id, True, 0)
        assert workspace.library.get(old.id) == old
        assert sound(workspace)


def test_a_follow_ups_lost_state_is_made_again(root: Path, old: Deposit, child: str) -> None:
    engine = solving_engine()
    engine.on(WORKED + CUES[0], " 12\n")
    with opened(root, engine) as workspace:
        deposit = workspace.library.get(child)
        assert deposit.cuts
        for entry in list(workspace.chunks.index.all_entries()):
            workspace.chunks.index.remove(entry)
        (seen,) = all_in(workspace, child)
        assert (seen.outcome, seen.reason) == ("replays", "")
        done = follow_up(workspace, old.id, TWELVE)
    assert (done.answer.how, done.answer.exact) == ("replayed", True)


def test_a_lost_state_that_comes_out_otherwise_is_told(root: Path, old: Deposit) -> None:
    engine = solving_engine()
    engine.drift = type(engine.drift)(0.5)
    with opened(root, engine) as workspace:
        lose_states(workspace)
        (seen,) = all_in(workspace, old.id)
        assert seen.outcome == "failed"
        assert "another digest" in seen.reason


# --- what is not made again -----------------------------------------------------------------------


def test_what_does_not_hold_is_not_made_again(root: Path, old: Deposit) -> None:
    with opened(root, solving_engine(seed=1)) as workspace:
        workspace.library.expire(old.id, "2020-01-01")
        assert all_in(workspace, old.id)[0].outcome == "failed"
        workspace.library.expire(old.id, "2999-01-01")
        made = workspace.library.get(all_in(workspace, old.id)[0].made or "")
        assert made.expires_at is not None
        assert made.expires_at.startswith("2999-01-01")
        workspace.library.revoke(old.id, "wrong")
        assert not workspace.library.is_active(made.id)
        assert "revoked" in all_in(workspace, old.id)[0].reason
        assert old.id not in workspace.library.active_ids("public")
        with pytest.raises(RecordNotFound):
            all_in(workspace, "nobody")


def test_a_revocation_meanwhile_counts(
    root: Path, old: Deposit, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(root, solving_engine(seed=1)) as workspace:
        with_replay = module.with_replay

        def revoked_meanwhile(*given: Any, **named: Any) -> Any:
            with Library.open(workspace.library.path) as elsewhere:
                elsewhere.revoke(old.id, "the key was wrong")
            return with_replay(*given, **named)

        monkeypatch.setattr(module, "with_replay", revoked_meanwhile)
        (seen,) = all_in(workspace, old.id)
        assert (seen.outcome, seen.made) == ("failed", None)
        assert "revoked" in seen.reason
        assert ask(workspace, FOUR, max_new_tokens=4).how == "fresh"


def test_another_tenants_deposit_is_not_made_again(root: Path, old: Deposit) -> None:
    with opened(root, solving_engine(seed=1), tenant="ann") as workspace:
        assert outcomes(all_in(workspace, old.id)) == ["failed"]
        assert list(workspace.library.active_ids("ann")) == []


def test_a_request_with_images_is_not_made_again(root: Path, old: Deposit) -> None:
    with opened(root, solving_engine(seed=1)) as workspace:
        pictured = like(old, identity=replace(old.identity, images_digest="i"))
        (seen,) = all_in(workspace, workspace.library.deposit(pictured).id)
        assert (seen.outcome, "images" in seen.reason) == ("failed", True)


def test_a_damaged_record_does_not_stop_the_others(root: Path, old: Deposit) -> None:
    with opened(root, solving_engine(seed=1)) as workspace:
        sql = "UPDATE deposits SET answer = '5' WHERE id = ?"
        workspace.library._connection.execute(sql, (old.id,))
        seen = all_in(workspace)
        assert outcomes(seen) == ["failed", "text_only"]
        assert "damaged" in seen[0].reason


def test_a_library_that_cannot_be_written_ends_it(
    root: Path, old: Deposit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object, **named: object) -> None:
        raise StoreFull("no space left")

    with opened(root, solving_engine(seed=1)) as workspace:
        monkeypatch.setattr(Library, "deposit", full)
        with pytest.raises(StoreFull):
            all_in(workspace)
        assert workspace.library.count(status=None) == 2
