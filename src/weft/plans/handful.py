"""The handful of kernels at hand that ordinary contractions of a type take, compiled side by side at their first use.

One after the other they would hold up the first calls of a machine by more than a second each. Other processes compile
them instead, those first that are wanted first; a call whose kernel is among them waits for that one alone. What they
leave in Triton's cache serves every later process, and a note in weft's own says that it is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from importlib import import_module
from threading import Lock
from typing import Any

import torch

from weft.base.log import log
from weft.cases import from_letters
from weft.machine.store import Store
from weft.planner.code_digest import of_family
from weft.planner.planner import Choice
from weft.planner.schedule import Description, Ranked, Target
from weft.planner.validity import environment, here
from weft.spec import Contraction, Layout

ROOM = "handfuls"  # of the store
FAMILY = "weft.gpu.at_hand.contraction.family"

# Contractions whose kernels nine of ten random ones of a type take, those of the most first, as
# `tools/at_hand_study.py kernels` counts them.
SHAPES = (
    "ckl,hcal->lahk k=2,a=2,c=2,l=2,h=2",
    "akgh,algk->hl h=3,l=2,k=2,a=2,g=2",
    "afeg,le->lgfa a=2,l=16,e=2,g=16,f=2",
    "fagi,gkdf->difak a=5,k=2,g=2,f=5,i=5,d=24",
    "aihg,hcia->ihcg g=24,c=12,a=2,i=24,h=3",
    "dfka,kfj->ajd d=24,j=3,k=2,f=48,a=12",
    "cgak,alkg->lc c=24,l=24,g=24,a=48,k=3",
    "ealh,alfkh->hfek e=48,k=5,a=48,f=8,h=5,l=48",
    "hclkg,fgklc->fh h=3,f=24,c=5,k=24,l=24,g=24",
    "ghde,dhig->ei e=12,i=3,h=24,d=48,g=12",
    "chkdbig,diclbh->glk k=2,l=2,c=3,i=4,b=2,g=2,d=16,h=2",
    "jkbdf,kjfdg->jgkb b=12,g=8,d=48,f=24,k=3,j=8",
    "ca,dlce->elda a=2,l=16,c=3,e=8,d=3",
    "bfaec,jb->acjfe a=3,j=3,b=48,e=5,c=48,f=8",
    "jg,fjcb->cbgf g=3,c=16,j=4,f=2,b=16",
)

_begun: dict[Hashable, dict[Hashable, Future[Any]]] = {}  # by target and type: what is compiled, by its structure
_lock = Lock()


def settle(choice: Choice) -> None:
    """Have the kernels of a choice at hand compiled before they are built, with the others of their type.

    Nothing is done where they lie in a cache already, within the capture of a CUDA graph, and for what is not of the
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
                if _is_wanted(description, target):
                    futures.update(_started(choice, futures.clear))
    if futures:  # still
        for structure in family.structures(description, choice.best.schedule, target):
            if (future := futures.get(structure)) is not None:
                future.result()


def note(description: Contraction, target: Target) -> None:
    """Keep on disk that the handful of a contraction's types lies in Triton's cache."""
    if here(target):
        Store(ROOM).save(_place(description, target), {"shapes": len(SHAPES)})


def _place(description: Contraction, target: Target) -> dict[str, Any]:
    types = [str(layout.dtype) for layout in (description.a, description.b, description.d)]
    return {
        "what": "handful", "environment": environment(target), "types": types, "code": of_family(FAMILY),
        "folder": os.environ.get("TRITON_CACHE_DIR", ""),
    }  # fmt: skip


def _is_wanted(description: Contraction, target: Target) -> bool:
    """Whether the handful of these types is to be compiled now."""
    if not here(target) or torch.cuda.is_current_stream_capturing():
        return False
    return Store(ROOM).load(_place(description, target)) is None


def _started(choice: Choice, report: Callable[[], None]) -> dict[Hashable, Future[Any]]:
    """Compilers for a choice's own kernels, those of the self-test, and the others.

    They end when all is done, which `report` hears of.
    """
    from weft.tune.compile_pool import Compiler

    description, target = choice.description, choice.target
    assert isinstance(description, Contraction)
    pool = Compiler(target, choice.backend)
    found: dict[Hashable, Future[Any]] = {}
    open_ = 1
    lock = Lock()

    def done(_: object = None) -> None:
        nonlocal open_
        with lock:
            open_ -= 1
            last = open_ == 0
        if last:
            note(description, target)
            report()
            pool.close()

    family: Any = choice.best.family
    for wanted, rank in _wanted(choice):
        structures = family.structures(wanted, rank.schedule, target)
        if not all(structure in found for structure in structures):
            future = pool.submit(wanted, rank)
            found.update(dict.fromkeys(structures, future))
            with lock:
                open_ += 1
            future.add_done_callback(done)
    log.info("%d kernels at hand are compiled side by side", len(found))
    done()
    return found


def _wanted(choice: Choice) -> Iterator[tuple[Description, Ranked]]:
    """Those that a first call waits for come first."""
    from weft.selftest.cases import trials_of

    yield choice.description, choice.best
    yield from _of_trials(trials_of(FAMILY, choice.backend), choice)
    assert isinstance(choice.description, Contraction)
    for description in shapes_of(choice.description):
        if choice.best.family.supports(description, choice.target) is None:
            yield description, _best(description, choice.best.family, choice.target)


def shapes_of(like: Contraction) -> Iterator[Contraction]:
    """The contractions of `SHAPES`, in the types of another one."""
    problems = import_module("weft.selftest.problems")
    types = like.a.dtype, like.b.dtype, like.d.dtype
    for line in SHAPES:
        equation, _, given = line.partition(" ")
        extents: dict[str, Any] = {pair[0]: int(pair[2:]) for pair in given.split(",")}
        case = from_letters(equation, equation, dtypes=types, **extents)
        shapes = (*case.shapes, case.d_shape)
        a, b, d = (Layout.contiguous(shape, dtype) for shape, dtype in zip(shapes, types, strict=True))
        yield replace(problems.contraction_of(case, a, b, None, d), arithmetic=like.arithmetic)


def _best(description: Contraction, family: Any, target: Target) -> Ranked:
    offered = family.schedules(description, target).schedules
    priced = [Ranked(schedule, family.predict(description, schedule, target), family) for schedule in offered]
    return min(priced, key=lambda rank: rank.seconds)


def _of_trials(trials: Iterable[Any], choice: Choice) -> Iterator[tuple[Description, Ranked]]:
    """What the self-test of the family will run."""
    problems, runs = import_module("weft.selftest.problems"), import_module("weft.selftest.trials")
    for trial in trials:
        description = problems.problem(trial.case, torch.device("cpu")).description
        found = runs.schedules(trial, description, choice.backend, choice.target)
        if isinstance(found, Choice):
            yield description, found.best
