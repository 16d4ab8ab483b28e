"""A forked process: it has its parent's memory, and of its threads the one that forked.

GNU's OpenMP, whose team torch uses too, does not survive that: the child has its parent's account of the team, and a
call that asks for its threads waits for ever. One thread asks for none, so a child computes on one. A lock that another
thread held stays locked for ever, unless it is made free.
"""

from __future__ import annotations

import os
from typing import Any, TypeVar
from weakref import WeakSet

import torch

_forked = False
_locks: WeakSet[Any] = WeakSet()  # that are free in a child
Lock = TypeVar("Lock")
_computes = False  # whether this process or one that it was forked from has computed on the CPU


def is_forked() -> bool:
    return _forked


def computing() -> None:
    """Say that this process is about to compute on the CPU."""
    global _computes
    if not _computes:
        _computes = True
        _settle()


def free_in_child(lock: Lock) -> Lock:
    """That lock; a child finds it free where another thread held it. What it guards is whole after each statement."""
    _locks.add(lock)
    return lock


def _settle() -> None:
    if _forked and _computes and torch.get_num_threads() > 1:
        torch.set_num_threads(1)


def _child() -> None:
    global _forked
    _forked = True
    for lock in list(_locks):
        if not (hasattr(lock, "_is_owned") and lock._is_owned()):  # by the thread that forked
            lock._at_fork_reinit()  # as those of `threading` and `logging` are
    _settle()


os.register_at_fork(after_in_child=_child)
