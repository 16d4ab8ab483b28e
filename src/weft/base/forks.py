"""A forked process computes on one thread: GNU's OpenMP, whose team torch uses too, does not survive a fork.

The child has its parent's account of the team and none of its threads: a call that asks for them waits for ever. One
thread asks for none.
"""

from __future__ import annotations

import os

import torch

_forked = False
_computes = False  # whether this process or one that it was forked from has computed on the CPU


def is_forked() -> bool:
    return _forked


def computing() -> None:
    """Say that this process is about to compute on the CPU."""
    global _computes
    if not _computes:
        _computes = True
        _settle()


def _settle() -> None:
    if _forked and _computes and torch.get_num_threads() > 1:
        torch.set_num_threads(1)


def _child() -> None:
    global _forked
    _forked = True
    _settle()


os.register_at_fork(after_in_child=_child)
