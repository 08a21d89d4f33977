"""Deposits of solved problems, as a library holds them."""

from __future__ import annotations

from collections.abc import Iterable

from kvgraft.library.address import AddressSpace, RequestIdentity
from kvgraft.library.deposit import NewDeposit
from kvgraft.library.methods.trial import Instance
from kvgraft.library.records import Library
from kvgraft.library.verify.base import Verdict


def deposit(
    library: Library,
    text: str,
    answer: str,
    *,
    tenant: str = "public",
    system: str | None = None,
    supersede: bool = False,
) -> str:
    """The id of a deposit of a problem."""
    identity = RequestIdentity(
        problem=text, tenant=tenant, template_digest="t", tokenizer_digest="k", system=system
    )
    new = NewDeposit(
        identity=AddressSpace(identity).identity(text),
        model="m",
        fingerprint="f",
        prompt=text,
        trace=f"It is {answer}.",
        cue="\nAnswer:",
        token_ids=(1, 2),
        answer=answer,
        answer_ids=(3,),
        verdict=Verdict(True, "proved", answer, "exact", "1", {}),
        cost={},
        finished=True,
    )
    return library.deposit(new, supersede=supersede).id


def deposits(library: Library, made: Iterable[Instance], tenant: str = "public") -> list[str]:
    with library.batch():
        return [deposit(library, one.text, one.answer, tenant=tenant) for one in made]
