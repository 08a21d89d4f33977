"""Learning methods from solved problems.

Problems are put together by their phrasing. A phrasing that an active method explains is taken up
by it, without a model: its programs have to give every verified answer. For any other phrasing a
model writes programs from a few of the problems; the rest, which it never sees, decides. A method
needs two programs that differ in how they come to their answers, or a checker that can refute one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import combinations

from kvgraft.errors import ContextTooLong, InputError
from kvgraft.library.address import canonical_text
from kvgraft.library.attempts import Model
from kvgraft.library.deposit import ACTIVE, Deposit
from kvgraft.library.methods.answers import form_of
from kvgraft.library.methods.checker import Checker, blind_spot
from kvgraft.library.methods.domain import join, observe
from kvgraft.library.methods.method import Evidence, Method, NewEvidence, NewMethod
from kvgraft.library.methods.records import Methods
from kvgraft.library.methods.skeleton import CLOSED, Skeleton, phrasings
from kvgraft.library.methods.source import Program, memorises
from kvgraft.library.methods.trial import (
    Binding,
    Instance,
    Run,
    answers_of,
    arguments_in,
    bindings,
    bound,
    fault,
    run_sandboxed,
)
from kvgraft.library.methods.trust import standing
from kvgraft.library.methods.writing import NAMES, WritingEffort, Written, write_programs
from kvgraft.library.records import Library
from kvgraft.library.workspace import PUBLIC
from kvgraft.limits import (
    MAX_LISTED_DEPOSITS,
    MAX_METHOD_INSTANCES,
    METHOD_ADOPTED,
    METHOD_ANSWERS,
    METHOD_HELD_BACK,
    METHOD_SHOWN,
)
from kvgraft.meter import Cost, Stopwatch

LEARNED, EXTENDED, KNOWN = "learned", "extended", "known"
NOT_LEARNED, CONTRADICTED = "not_learned", "contradicted"
ENOUGH = METHOD_SHOWN + METHOD_HELD_BACK


@dataclass(frozen=True)
class Learned:
    """What became of a phrasing. `state`: learned (a new method), extended (a method took it up),
    known (nothing new in it), not_learned, or contradicted (a verified answer is another than a
    method's, which was revoked). `method`: its id. `programs`: how many a model wrote that gave
    every answer. `detail` says why."""

    state: str
    phrasing: str
    instances: int
    method: str | None
    programs: int
    detail: str
    cost: Cost


@dataclass(frozen=True)
class Learner:
    """Where methods are kept, who writes programs, and how much is spent on it. Without a `model`
    phrasings are taken up by methods that are there, and no method is made. `library`: of the
    deposits among the instances."""

    methods: Methods
    library: Library | None
    model: Model | None
    tenant: str = PUBLIC
    effort: WritingEffort = field(default_factory=WritingEffort)
    checker: Checker | None = None
    run: Run = run_sandboxed

    def learn(
        self,
        instances: Iterable[Instance],
        on_outcome: Callable[[Learned], None] = lambda outcome: None,
    ) -> tuple[Learned, ...]:
        """What becomes of each phrasing among `instances`, those with the most of them first.

        Raises:
            InputError: a text that no problem may be.
            SandboxUnavailable: this system cannot hold a program.
            StoreError: the methods cannot be read or written.
        """
        known = _distinct(instances)
        out = []
        for skeleton, texts in phrasings(known, ENOUGH).items():
            mine = tuple(known[text] for text in texts[:MAX_METHOD_INSTANCES])
            out.append(self._learn_phrasing(skeleton, mine))
            on_outcome(out[-1])
        return tuple(out)

    def _learn_phrasing(self, skeleton: Skeleton, mine: tuple[Instance, ...]) -> Learned:
        watch = Stopwatch()

        def told(
            state: str, method: str | None, detail: str, programs: int = 0, cost: Cost | None = None
        ) -> Learned:
            spent = cost or Cost(model_flops=0)
            spent.seconds = watch.seconds
            named = skeleton.named(NAMES)
            return Learned(state, named, len(mine), method, programs, detail, spent)

        for method in self.methods.list(self.tenant, status=ACTIVE):
            evidence, _ = standing(method, self.library, self.tenant)
            if not evidence:
                continue
            if any(one.skeleton == skeleton for one in evidence):
                return told(*self._more_of_the_same(method, evidence, skeleton, mine))
            if self._take_up(method, skeleton, mine):
                return told(EXTENDED, method.id, "its programs give every answer")
        if self.model is None:
            return told(NOT_LEARNED, None, "no method explains it, and no model was given")
        if len(mine) < ENOUGH:
            return told(NOT_LEARNED, None, f"{len(mine)} solved problems, {ENOUGH} are needed")
        if why := _too_alike(mine):
            return told(NOT_LEARNED, None, why)
        return self._write(self.model, skeleton, mine, told)

    # --- with programs that are there ---------------------------------------------------------

    def _more_of_the_same(
        self,
        method: Method,
        evidence: Sequence[Evidence],
        skeleton: Skeleton,
        mine: Sequence[Instance],
    ) -> tuple[str, str, str]:
        """State, id and detail for problems of a phrasing that the method has."""
        own = [one for one in evidence if one.skeleton == skeleton]
        seen = {instance.text for one in own for instance in one.instances}
        new = [instance for instance in mine if instance.text not in seen]
        if not new:
            return KNOWN, method.id, "every problem was known"
        orders = set.intersection(*(set(one.bindings) for one in own))
        domain = join([one.domain for one in evidence])
        inside = [
            instance
            for instance in new
            for arguments in [arguments_in(skeleton, instance)]
            if all(domain.refusal(bound(arguments, order)) is None for order in orders)
        ]
        if inside and all(self._contradicts(method, skeleton, inside, one) for one in orders):
            reason = f"contradicted by a verified answer to {inside[0].text[:120]!r}"
            self.methods.revoke(method.id, reason)
            return CONTRADICTED, method.id, "a verified answer is another: it was revoked"
        left = orders & set(self._bindings(method, skeleton, new))
        if not left:
            return KNOWN, method.id, "its programs do not give every new answer"
        self.methods.extend(method.id, _evidence(skeleton, method.types, sorted(left), new))
        return EXTENDED, method.id, f"{len(new)} more problems"

    def _contradicts(
        self, method: Method, skeleton: Skeleton, inside: Sequence[Instance], order: Binding
    ) -> bool:
        """Whether a program gave another answer than a verified one. One that came to none, on a
        busy machine perhaps, has said nothing."""
        rows = [bound(arguments_in(skeleton, one), order) for one in inside]
        return any(
            isinstance(given, str) and given != one.answer
            for source in method.programs
            for given, one in zip(
                answers_of(source, rows, method.form, self.run), inside, strict=True
            )
        )

    def _take_up(self, method: Method, skeleton: Skeleton, mine: Sequence[Instance]) -> bool:
        """Whether a method has taken up another phrasing."""
        if len(mine) < METHOD_ADOPTED or _too_alike(mine):
            return False
        orders = self._bindings(method, skeleton, mine)
        if not orders:
            return False
        if method.checker is not None:
            cases = [
                (instance, _named(skeleton, instance, order))
                for order in orders
                for instance in mine
            ]
            if blind_spot(method.checker, cases) is not None:
                return False
        self.methods.extend(method.id, _evidence(skeleton, method.types, orders, mine))
        return True

    def _bindings(
        self, method: Method, skeleton: Skeleton, mine: Sequence[Instance]
    ) -> tuple[Binding, ...]:
        return bindings(skeleton, method.types, mine, method.programs, method.form, self.run)

    # --- with a model -------------------------------------------------------------------------

    def _write(
        self,
        model: Model,
        skeleton: Skeleton,
        mine: tuple[Instance, ...],
        told: Callable[..., Learned],
    ) -> Learned:
        shown, held_back = _split(skeleton, mine)
        tried = [*shown, *held_back]
        rows = [arguments_in(skeleton, instance) for instance in tried]
        answers = [instance.answer for instance in tried]
        form = form_of(answers)
        identity = tuple(range(len(skeleton.types)))
        checker = self.checker
        if checker is not None:
            cases = [(instance, _named(skeleton, instance, identity)) for instance in tried]
            if why := blind_spot(checker, cases):
                return told(NOT_LEARNED, None, f"the checker cannot be believed: {why}")
        passing: list[Program] = []
        faults: Counter[str] = Counter()

        def judge(program: Program) -> bool:
            if memorises(program, zip(rows, answers, strict=True)):
                faults["holds the problems that it was shown"] += 1
            elif why := fault(program.source, rows, answers, form, self.run):
                faults[why] += 1
            else:
                passing.append(program)
            return _chosen(passing, checker) is not None

        examples = list(zip(rows, answers, strict=True))[: len(shown)]
        try:
            written = write_programs(model, skeleton, examples, form, self.effort, judge)
        except ContextTooLong as error:
            return told(NOT_LEARNED, None, f"the examples do not fit the model: {error}")
        chosen = _chosen(passing, checker)
        if chosen is None:
            why = _why_none(passing, faults, written)
            return told(NOT_LEARNED, None, why, len(passing), written.cost)
        detail = {
            "shown": len(shown),
            "held_back": len(held_back),
            "attempts": written.cost.attempts,
            "seed": self.effort.sampling.seed,
            "passing": len(passing),
            "faults": dict(faults.most_common(8)),
            "no_programs": dict(Counter(written.refused).most_common(8)),
        }
        new = NewMethod(
            self.tenant,
            model.name,
            skeleton.types,
            form,
            tuple(program.source for program in chosen),
            checker,
            "agreed",
            written.cost.as_dict(),
            detail,
        )
        method = self.methods.add(new, _evidence(skeleton, skeleton.types, [identity], tried))
        return told(LEARNED, method.id, "", len(passing), written.cost)


def instances_of(
    library: Library, tenant: str, ids: Sequence[str] | None = None
) -> tuple[Instance, ...]:
    """Active deposits of `tenant` as instances, those of `ids` or all: plain problems alone,
    without a system text, tools, images or an earlier turn, which a method knows nothing of.

    Raises:
        RecordNotFound: the tenant has no deposit of such an id.
        InputError: one of `ids` is no plain problem, or is not active.
    """
    if ids is None:
        found = library.list(tenant=tenant, status=ACTIVE, limit=MAX_LISTED_DEPOSITS)
        return tuple(_instance(one) for one in found if _is_plain(one))
    named = [library.get(id) for id in ids]
    for one in named:
        if one.tenant != tenant or one.status != ACTIVE or not _is_plain(one):
            raise InputError(
                f"tenant {tenant!r} has no active plain problem of this id", where=one.id
            )
    return tuple(map(_instance, named))


def _is_plain(deposit: Deposit) -> bool:
    asked = deposit.identity
    others = (asked.system, asked.parent, asked.tools_digest, asked.tool_choice)
    bare = all(one is None for one in (*others, asked.images_digest))
    return bare and not asked.extra and not asked.stop


def _instance(deposit: Deposit) -> Instance:
    answer = deposit.answer.strip()
    return Instance(deposit.problem, answer, deposit.verdict.grade, deposit.id)


def _distinct(instances: Iterable[Instance]) -> dict[str, Instance]:
    """One instance for each text; none for a text that has two answers."""
    found: dict[str, Instance] = {}
    doubtful = set()
    for one in instances:
        text = canonical_text(one.text)
        first = found.setdefault(text, Instance(text, one.answer.strip(), one.grade, one.deposit))
        if first.answer != one.answer.strip():
            doubtful.add(text)
    return {text: one for text, one in found.items() if text not in doubtful and one.answer}


def _too_alike(mine: Sequence[Instance]) -> str:
    """Why a constant could pass for a program, or nothing."""
    count = len({instance.answer for instance in mine})
    return "" if count >= METHOD_ANSWERS else f"all problems have one of {count} answers"


def _split(skeleton: Skeleton, mine: Sequence[Instance]) -> tuple[list[Instance], list[Instance]]:
    """The instances that a model sees, and the rest. Which ones follows from their texts alone;
    those come first whose words were not shown together yet."""
    left = sorted(mine, key=lambda one: blake2b(one.text.encode("utf-8", "replace")).digest())
    shown: list[Instance] = []
    seen: set[tuple[str, ...]] = set()
    while len(shown) < METHOD_SHOWN:
        new = (one for one in left if _words(skeleton, one) not in seen)
        shown.append(next(new, left[0]))
        seen.add(_words(skeleton, shown[-1]))
        left.remove(shown[-1])
    return shown, left


def _words(skeleton: Skeleton, instance: Instance) -> tuple[str, ...]:
    texts = skeleton.match(instance.text) or ()
    return tuple(text for kind, text in zip(skeleton.kinds, texts, strict=True) if kind in CLOSED)


def _named(skeleton: Skeleton, instance: Instance, order: Binding) -> Mapping[str, str]:
    texts = skeleton.match(instance.text) or ()
    return dict(zip(NAMES, (texts[slot] for slot in order), strict=False))


def _evidence(
    skeleton: Skeleton,
    types: Sequence[str],
    orders: Sequence[Binding],
    mine: Sequence[Instance],
) -> NewEvidence:
    rows = [bound(arguments_in(skeleton, one), order) for order in orders for one in mine]
    return NewEvidence(skeleton, tuple(orders), observe(types, rows), tuple(mine))


def _chosen(passing: Sequence[Program], checker: Checker | None) -> tuple[Program, ...] | None:
    """Two programs that differ in how they come to their answers; one, where a checker judges."""
    for one, other in combinations(passing, 2):
        if one.differs(other):
            return one, other
    return (passing[0],) if checker is not None and passing else None


def _why_none(passing: Sequence[Program], faults: Counter[str], written: Written) -> str:
    if passing:
        return "the model wrote one derivation only, and nothing checks it"
    counts = (faults + Counter(written.refused)).most_common(3)
    said = "; ".join(f"{count} x {why}" for why, count in counts)
    return f"no program gave every answer ({said})" if said else "the model wrote no program"
