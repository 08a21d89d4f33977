"""Deposits made of deposits."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from kvgraft.library.deposit import Deposit, DepositContent, NewDeposit


def like(deposit: Deposit, **changes: Any) -> NewDeposit:
    """The same deposit, but for `changes`, to be kept a second time."""
    content = {one.name: getattr(deposit, one.name) for one in fields(DepositContent)}
    return NewDeposit(**{**content, **changes}, finished=True)
