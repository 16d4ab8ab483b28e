"""The plain form of a contraction over ranks: each label once and at its full extent, and each tensor's placement."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from weft.autograd.spec import Letters, Plain, check_differentiable, plain
from weft.distributed.gradient.layout import PassLayout
from weft.distributed.planned.placement import Places
from weft.distributed.planned.problem import RankProblem
from weft.errors import UnsupportedError
from weft.planner.request import Request
from weft.spec.notation import Label, label_text


def form_of(
    problem: RankProblem, at: tuple[int, ...], request: Request, c: tuple[tuple[int, ...], torch.dtype] | None,
    places: Mapping[str, Places], backend: str,
) -> tuple[Plain, PassLayout]:  # fmt: skip
    """The plain form, and where its tensors are.

    `request` is of the whole tensors, `c` the whole shape and the type of C, `places` are of operands by name.
    `DTypeError` where the result has no derivative, `UnsupportedError` where a tensor is repeated along a mode in a way
    that its parts do not tell.
    """
    letters = Letters(request).of
    _refuse_repeated(request, c[0] if c is not None else None, {"a": problem.a.places, "b": problem.b.places, **places})
    check_differentiable(request)
    found = plain(request, c, backend)
    placed = {"A": problem.a.places, "B": problem.b.places, "D": problem.d.places}
    placed |= {f"operand {name}": places[given] for (name, _), given in zip(
        found.spec.operands, found.given, strict=True)}  # fmt: skip
    layout = PassLayout(
        {letters[label]: extent for label, extent in problem.extents.items()}, problem.mesh, at,
        {name: _spelled(one, letters) for name, one in placed.items()},
    )  # fmt: skip
    return found, layout


def _spelled(places: Places, letters: Mapping[Label, str]) -> Places:
    return tuple(None if label is None else letters[label] for label in places)


def _refuse_repeated(request: Request, c: tuple[int, ...] | None, places: Mapping[str, Places]) -> None:
    """Refuse functions of tensors with an extent of 1 that stands for more: they may need the full extent."""
    extents, notation, names = request.extents, request.notation, request.functions.names
    terms = {each.name: each.term for each in request.named}
    given = {"a": (notation.inputs[0], request.a.shape, names[0]), "b": (notation.inputs[1], request.b.shape, names[1])}
    if c is not None:
        given["c"] = notation.output, c, names[2]
    for name, (term, shape, taken) in given.items():
        for label, extent in zip(term, shape, strict=True):
            if extent != 1 or extents.get(label, 1) == 1:
                continue
            reason = ""
            if label in places.get(name, ()):
                reason = "is placed by it: place it whole"
            elif any(label in terms[one] for one in taken):
                reason = "its function takes an operand that lies along it: expand it"
            if reason:
                raise UnsupportedError(
                    f"{name} has extent 1 along '{label_text(label)}', which is {extents[label]}, and {reason} to get "
                    "its gradient"
                )
