"""The few shape-generic kernels that ordinary contractions of a type take, compiled side by side at their first use.

With the pack of kernels built ahead, or once they are in weft's store, there is nothing to do. Else they would hold up
the first calls of a machine, one after the other, by more than a second each. Other processes compile them instead,
those first that are wanted first; a call whose kernel is among them waits for that one alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from concurrent.futures import Future
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from weft.base.log import log
from weft.planner import verdicts
from weft.planner.planner import Choice
from weft.planner.schedule import Description, Ranked, Target
from weft.planner.validity import here
from weft.selftest.cases import trials_of
from weft.spec import Contraction, Label, Layout, canonical, parse
from weft.spec.contraction import class_modes

FAMILY = "weft.gpu.generic.family"

# Contractions whose kernels nine of ten random ones of a type take, those of the most first, as
# `tools/at_hand_study.py kernels` counts them.
SHAPES = tuple((Path(__file__).parent.parent / "data" / "ordinary.txt").read_text().split("\n")[:-1])

_begun: dict[Hashable, dict[Hashable, Future[Any]]] = {}  # by target and type: what is compiled, by its structure
_lock = Lock()


def settle(choice: Choice) -> None:
    """Have the kernels of a shape-generic choice compiled before they are built, with the others of their type.

    Nothing is done where they are built ahead or stored, within the capture of a CUDA graph, and for what is not of the
    handful's family: such a kernel is compiled where it is built.
    """
    description, target = choice.description, choice.target
    family: Any = choice.best.family
    if target.kind != "cuda" or family.__name__ != FAMILY or not isinstance(description, Contraction):
        return
    key = target, description.a.dtype, description.b.dtype, description.d.dtype
    futures = _begun.get(key)
    if futures is None:
        with _lock:
            futures = _begun.get(key)
            if futures is None:
                futures = _begun[key] = {}
                if _is_wanted(choice):
                    _start(choice, futures)
    if futures:  # still
        for structure in family.structures(description, choice.best.schedule, target):
            if (future := futures.get(structure)) is not None:
                future.result()


def _is_wanted(choice: Choice) -> bool:
    """Whether the handful of a choice's types is to be compiled now: the last of it is not built ahead or stored."""
    from weft.gpu.common.cubins import is_kept
    from weft.gpu.common.launch import collected

    if not here(choice.target) or torch.cuda.is_current_stream_capturing():
        return False
    *_, (description, rank) = _others(choice)
    with collected() as made:
        rank.build(description, choice.target)
    return not all(map(is_kept, made))


def _start(choice: Choice, futures: dict[Hashable, Future[Any]]) -> None:
    """Compilers for a choice's own kernels, those of the self-test, which runs next, and the others.

    Returns when those of the self-test are there. `futures` is filled, and emptied when all is done.
    """
    from weft.tune.compile_pool import Compiler

    description, target = choice.description, choice.target
    family: Any = choice.best.family
    assert isinstance(description, Contraction)
    pool = Compiler(target, choice.backend)
    wanted = [(choice.description, choice.best), *_of_trials(choice)]
    awaited = len(wanted)
    wanted += _others(choice)
    left, lock = Counter({"open": 1}), Lock()

    def done(_: object = None) -> None:
        with lock:
            left["open"] -= 1
            if left["open"]:
                return
        futures.clear()
        pool.close()

    first: list[Future[Any]] = []
    for at, (each, rank) in enumerate(wanted):
        structures = family.structures(each, rank.schedule, target)
        if all(structure in futures for structure in structures):
            continue
        future = pool.submit(each, rank)
        futures.update(dict.fromkeys(structures, future))
        first += [future] * (0 < at < awaited)
        with lock:
            left["open"] += 1
        future.add_done_callback(done)
    log.info("%d kernels at hand are compiled side by side", len(futures))
    done()
    for future in first:
        future.result()


def _others(choice: Choice) -> Iterator[tuple[Description, Ranked]]:
    """Contractions of `SHAPES` that the chosen family supports, each with its best schedule."""
    assert isinstance(choice.description, Contraction)
    for description in shapes_of(choice.description):
        if choice.best.family.supports(description, choice.target) is None:
            yield description, _best(description, choice.best.family, choice.target)


def shapes_of(like: Contraction) -> Iterator[Contraction]:
    """The contractions of `SHAPES`, in the types and the arithmetic of another one."""
    types = like.a.dtype, like.b.dtype, like.d.dtype
    for line in SHAPES:
        equation, _, given = line.partition(" ")
        notation = parse(equation)
        extents: dict[Label, int] = {pair[0]: int(pair[2:]) for pair in given.split(",")}
        terms = (*notation.inputs, notation.output)
        a, b, d = (
            Layout.contiguous([extents[label] for label in term], dtype)
            for term, dtype in zip(terms, types, strict=True)
        )
        modes = class_modes(notation, a, b, None, d, extents)
        yield canonical(Contraction(modes, a, b, None, d, like.arithmetic, text=equation))


def _best(description: Contraction, family: Any, target: Target) -> Ranked:
    offered = family.schedules(description, target).schedules
    priced = [Ranked(schedule, family.predict(description, schedule, target), family) for schedule in offered]
    return min(priced, key=lambda rank: rank.seconds)


def _of_trials(choice: Choice) -> Iterator[tuple[Description, Ranked]]:
    """Schedules of the family's self-test that have not run on this machine, each with its contraction."""
    problems, runs = import_module("weft.selftest.problems"), import_module("weft.selftest.trials")
    known = verdicts.known(FAMILY, choice.backend, choice.target)
    for trial in trials_of(FAMILY, choice.backend):
        if trial.name in known:
            continue
        description = problems.problem(trial.case, torch.device("cpu")).description
        found = runs.schedules(trial, description, choice.backend, choice.target)
        if isinstance(found, Choice):
            yield description, found.best
