"""The handful of kernels at hand that ordinary contractions of a type take, compiled side by side at their first use.

One after the other they would hold up the first calls of a machine by more than a second each. Other processes compile
them instead, those first that are wanted first; a call whose kernel is among them waits for that one alone. What they
leave in Triton's cache serves every later process, and a note in weft's own says that it is there.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Hashable, Iterator
from concurrent.futures import Future
from importlib import import_module
from threading import Lock
from typing import Any

import torch

from weft.base.log import log
from weft.machine.store import Store
from weft.planner import verdicts
from weft.planner.code_digest import of_family
from weft.planner.planner import Choice
from weft.planner.schedule import Description, Ranked, Target
from weft.planner.validity import environment, here
from weft.selftest.cases import trials_of
from weft.spec import Contraction, Label, Layout, canonical, parse
from weft.spec.contraction import class_modes

ROOM = "handfuls"  # of the store
FAMILY = "weft.gpu.generic.family"

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
    "algbk,lbdkha->khdg g=3,h=2,b=12,l=24,a=12,d=3,k=5",
    "kie,ijf->ekfj e=12,f=48,i=24,k=12,j=12",
    "bfaj,elj->lfeab b=24,e=5,j=2,l=8,f=8,a=48",
    "ecdjab,fciel->dalijfbc b=2,i=2,e=2,j=2,a=2,l=2,d=2,c=3,f=8",
    "chjk,chbk->jb j=3,b=3,k=3,h=48,c=5",
    "cdfahb,fbedag->chaegb h=2,g=24,f=2,c=12,d=3,a=5,e=8,b=24",
    "ejbagdc,cdfgjba->feb e=2,f=8,j=2,d=3,a=16,c=16,b=2,g=2",
    "aejl,edl->jald a=48,d=48,e=3,l=12,j=5",
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
                    _start(choice, futures)
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
        note(description, target)
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
    """What `SHAPES` take."""
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
    """What the self-test of the family will run, unless it has on this machine."""
    problems, runs = import_module("weft.selftest.problems"), import_module("weft.selftest.trials")
    known = verdicts.known(FAMILY, choice.backend, choice.target)
    for trial in trials_of(FAMILY, choice.backend):
        if trial.name in known:
            continue
        description = problems.problem(trial.case, torch.device("cpu")).description
        found = runs.schedules(trial, description, choice.backend, choice.target)
        if isinstance(found, Choice):
            yield description, found.best
