"""`return_arg=True`: what an algebra selected, and where it stands along the reduced modes.

Operands are packed as (batch, k, m) and (batch, k, n), functions applied on the way; the backend's kernel finds values
and places; and one more pass applies the epilogue, or converts, where that is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple, cast

import torch

from weft.algebra import NAMED
from weft.api.lookup import Terms, find_plan, one_of, read_notation
from weft.base.memory import check_room
from weft.engine.calls import CALLS
from weft.engine.ways import Arguments
from weft.errors import AccuracyError, UnsupportedError, WorkspaceError
from weft.planner.options import Options
from weft.planner.registry import need_triton
from weft.planner.request import HOOKS, Request, Results
from weft.plans.checks import check_addend, check_outputs, check_unscaled
from weft.plans.resolving import resolved
from weft.spec import Label, Layout
from weft.spec.contraction import mode_strides, output_shape
from weft.spec.dtypes import value_type

INDEX = torch.int64  # of places
_ROOMS = {"triton": "weft.gpu.selection", "cpu": "weft.cpu.selection", "reference": "weft.oracle.judgement"}


@dataclass(frozen=True, slots=True)
class SelectionRoles:
    """Labels by where they stand; reduced ones in the order in which they first do."""

    batch: tuple[Label, ...]
    m: tuple[Label, ...]
    n: tuple[Label, ...]
    k: tuple[Label, ...]


def selected(equation: Terms, call: Arguments, options: Options, validate: bool) -> tuple[Any, KnownSelection | None]:
    """D and the index along each reduced mode, a tensor where one is reduced, else a tuple; and the call as later ones
    are known, None where there is more to it than A and B."""
    a, b, c, out, alpha, beta, _ = call
    planned = _planned(equation, a, b, options)
    request, roles, extents, shape, largest, (along, order) = planned
    assert request.algebra is not None
    check_unscaled(request.algebra.name, alpha, beta)
    check_room(request.device, math.prod(shape) * (request.d_dtype.itemsize + 8))  # of values and of places
    if out is not None:
        inputs = {"a": a, "b": b, **{f"operand '{name}'": tensor for name, tensor in options.tensors.items()}}
        check_outputs(out, shape, (request.d_dtype,), False, request.device, inputs, c)
    if c is not None:
        check_addend(c, shape, request.arithmetic.accumulate, request.device)
    _check_workspace(roles, extents, request, options)
    values, places = _values_and_places(a, b, request, roles, extents, options, largest)
    values, places = (each.reshape(along).permute(order).contiguous() for each in (values, places))
    if c is not None:
        values, places = _with_addend(values, places, c, request, options, largest)
    read = c if c is None or not validate else c.clone()  # C may be stored where D goes
    result = _finished(values, request, options, out)
    if validate:
        _validate(equation, a, b, read, result, options)
    bare = c is None and out is None and all(each is None for each in options.functions) and not options.operands
    return (result, _each_or_one(places, request, roles)), _known(planned, a, b) if bare else None


class _Planned(NamedTuple):
    """The facts that a call is known by before it runs."""

    request: Request
    roles: SelectionRoles
    extents: dict[Label, int]
    shape: tuple[int, ...]  # of D
    largest: bool  # whether the larger of two values is selected
    turn: tuple[list[int], list[int]]  # from matrices (batch, m, n) to D: extents, and their order


def _planned(equation: Terms, a: torch.Tensor, b: torch.Tensor, options: Options) -> _Planned:
    """The facts of such a call, found again by its words and the layouts of its tensors."""
    said, tensors = options.said(), (a, b, *options.tensors.values())
    known, place = CALLS.find(None if said is None else ("return_arg", equation, said), tensors)
    if known is None:
        notation = read_notation(equation)
        request = resolved(notation, str(notation), a, b, options)
        largest, extents = check_selected(request, added=False), request.extents
        roles, shape = _roles(request), output_shape(request.notation, extents)
        order = (*roles.batch, *roles.m, *roles.n)
        turn = [extents[label] for label in order], [order.index(label) for label in request.notation.output]
        known = _Planned(request, roles, extents, shape, largest, turn)
        CALLS.keep(place, tensors, known)
    return cast(_Planned, known)


class KnownSelection(NamedTuple):
    """The known call of A and B alone, without C and functions. Others are `KnownCall`."""

    planned: _Planned
    views: tuple[tuple[Any, Any, Any], ...]  # of A and B: shape and strides as they are packed, shape of the matrices

    def run(
        self, a: Any, b: Any, c: Any = None, alpha: Any = 1.0, beta: Any = 1.0, out: Any = None,
        operands: Any = (),
    ) -> Any:  # fmt: skip
        """D and its places, or None where the call must be read in full."""
        if c is not None or out is not None or type(alpha) is not float or alpha != 1 or type(beta) is not float:
            return None
        request, product = self.planned.request, self.planned.request.arithmetic.product
        assert request.algebra is not None
        x, y = (
            each.as_strided(shape, strides).to(product).to(request.arithmetic.accumulate).contiguous().view(matrices)
            for each, (shape, strides, matrices) in zip((a, b), self.views, strict=True)
        )
        found = import_module(_ROOMS[request.backend]).select(x, y, request.algebra, self.planned.largest)
        extents, order = self.planned.turn
        values, places = (each.view(extents).permute(order).contiguous() for each in found)
        return values.to(request.d_dtype), _each_or_one(places, request, self.planned.roles)


def _known(planned: _Planned, a: torch.Tensor, b: torch.Tensor) -> KnownSelection | None:
    """The known call of one that has been run; None for what is made in another way in each call."""
    roles, extents = planned.roles, planned.extents
    if 0 in extents.values() or planned.request.backend == "reference" or a.is_conj() or b.is_conj():
        return None
    views = []
    for tensor, term, own in zip((a, b), planned.request.notation.inputs, (roles.m, roles.n), strict=True):
        order, strides = (*roles.batch, *roles.k, *own), mode_strides(term, Layout.of(tensor), extents)
        matrices = tuple([math.prod([extents[label] for label in group]) for group in (roles.batch, roles.k, own)])
        views.append(([extents[label] for label in order], [strides.get(label, 0) for label in order], matrices))
    return KnownSelection(planned, tuple(views))


def _each_or_one(
    places: torch.Tensor, request: Request, roles: SelectionRoles
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """The index along each reduced mode, alone where there is one."""
    return places if len(roles.k) == 1 else tuple(along_each(places, request))


def check_selected(request: Request, added: bool) -> bool:
    """Whether the larger of two values is selected; `UnsupportedError` for a request that finds no places.

    `added`: whether a C is given to a call that takes none.
    """
    largest = _selects(request)
    if added:
        raise UnsupportedError("return_arg finds a pair of A and B: c has no place along a reduced mode")
    if request.outputs is not None:
        raise UnsupportedError("return_arg is for an epilogue of one value")
    if request.invariant:
        raise UnsupportedError("return_arg takes no invariant=: what selects is exact whatever the extents")
    return largest


def reduced_labels(request: Request) -> tuple[Label, ...]:
    """The labels along which places are found, in the order of the indices."""
    return _roles(request).k


def _selects(request: Request) -> bool:
    """Whether the algebra keeps the larger of two values, or (False) the smaller; `UnsupportedError` for any other."""
    accumulate = request.arithmetic.accumulate
    if request.algebra is not None and not accumulate.is_complex and accumulate is not torch.bool:
        for name, largest in (("max_plus", True), ("min_plus", False)):
            if request.algebra.reduce == _reduce(name, accumulate):
                return largest
    name = request.algebra.name if request.algebra is not None else "plus_times"
    raise UnsupportedError(
        f"return_arg is for algebras that select, of max_plus, min_plus, max_times, min_max and max_min; {name} makes "
        "one value of several"
    )


@lru_cache
def _reduce(name: str, accumulate: torch.dtype) -> Any:
    return NAMED[name].traced(accumulate).reduce


def _roles(request: Request) -> SelectionRoles:
    (first, second), output = request.notation.inputs, request.notation.output
    return SelectionRoles(
        batch=tuple(label for label in output if label in first and label in second),
        m=tuple(label for label in output if label in first and label not in second),
        n=tuple(label for label in output if label not in first),
        k=tuple(label for label in dict.fromkeys((*first, *second)) if label not in output),
    )


def _values_and_places(
    a: torch.Tensor, b: torch.Tensor, request: Request, roles: SelectionRoles, extents: dict[Label, int],
    options: Options, largest: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Both as (batch, m, n)."""
    groups = (roles.batch, roles.m, roles.n, roles.k)
    batch, m, n, k = (math.prod(extents[label] for label in group) for group in groups)
    accumulate = request.arithmetic.accumulate
    assert request.algebra is not None
    if 0 in (batch, m, n, k):
        values = torch.full((batch, m, n), request.algebra.identity, dtype=accumulate, device=request.device)
        return values, torch.full((batch, m, n), -1, dtype=INDEX, device=request.device)
    x = _packed("a_fn", a, 0, (*roles.batch, *roles.k, *roles.m), request, extents, options).reshape(batch, k, m)
    y = _packed("b_fn", b, 1, (*roles.batch, *roles.k, *roles.n), request, extents, options).reshape(batch, k, n)
    if request.backend == "triton":
        need_triton("return_arg runs on a GPU")
    found: tuple[torch.Tensor, torch.Tensor] = import_module(_ROOMS[request.backend]).select(
        x, y, request.algebra, largest
    )
    return found


def _packed(
    hook: str, tensor: torch.Tensor, operand: int, order: tuple[Label, ...], request: Request,
    extents: dict[Label, int], options: Options,
) -> torch.Tensor:  # fmt: skip
    """An operand along these labels, contiguous, in the accumulator's type, its function applied."""
    term = request.notation.inputs[operand]
    function = options.functions[HOOKS.index(hook)]
    if function is not None:
        tensor = tensor.to(value_type(tensor.dtype, request.arithmetic.product))
        own = tuple(dict.fromkeys(term))
        tensor = _computed(hook, (term, (), own), tensor, request, options, precision=options.precision)
        term = own
    strides = mode_strides(term, Layout.of(tensor), extents)
    view = tensor.as_strided(
        [extents[label] for label in order], [strides.get(label, 0) for label in order], int(tensor.storage_offset())
    )
    if function is None and request.arithmetic.product != view.dtype:
        view = view.to(request.arithmetic.product)  # rounded before anything is computed
    return view.to(request.arithmetic.accumulate).contiguous()


def _with_addend(
    values: torch.Tensor, places: torch.Tensor, c: torch.Tensor, request: Request, options: Options, largest: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The better of each value and C's; the place is -1 where that is C's. Of equal ones the pair counts."""
    accumulate, output = request.arithmetic.accumulate, request.notation.output
    added = c.resolve_conj().resolve_neg().to(accumulate).expand(values.shape)
    if options.functions[HOOKS.index("c_fn")] is not None:
        added = _computed("c_fn", (output, (), output), added.contiguous(), request, options)
    better = added > values if largest else added < values
    if accumulate.is_floating_point:
        better |= added.isnan() & ~values.isnan()
    return torch.where(better, added, values), torch.where(better, -1, places)


def _finished(values: torch.Tensor, request: Request, options: Options, out: Results | None) -> torch.Tensor:
    """D of the selected values: through the epilogue, in its type, in `out` where that is given."""
    assert not isinstance(out, tuple)
    if options.functions[HOOKS.index("epilogue")] is None:
        return values.to(request.d_dtype) if out is None else out.copy_(values)
    output = request.notation.output
    return _computed("epilogue", (output, (), output), values, request, options, out, out_dtype=request.d_dtype)


def _computed(
    hook: str, equation: Any, values: torch.Tensor, request: Request, options: Options,
    out: torch.Tensor | None = None, **said: Any,
) -> torch.Tensor:  # fmt: skip
    """One function of a tensor's elements, with the operands and indices that it takes: the tensor's product with one.
    The result is of the type of sums where nothing else is `said`."""
    place = HOOKS.index(hook)
    names = request.functions.names[place]
    operands = {name: pair for name, pair in options.operands.items() if name in names}
    indices = {name: label for name, label in options.indices.items() if name in names}
    said = {"out_dtype": request.arithmetic.accumulate, **said}
    asked = Options(operands=operands, indices=indices, backend=request.backend, **said)
    asked = asked.having(**{"epilogue" if hook == "epilogue" else "a_fn": options.functions[place]})
    one = one_of(values.dtype, values.device)
    found = find_plan(equation, values, one, asked).run(Arguments(values, one, out=out, operands=asked.tensors))
    assert isinstance(found, torch.Tensor), "a function of one result"
    return found


def along_each(places: torch.Tensor, request: Request) -> list[torch.Tensor]:
    """The index along each reduced mode, of the index along all of them; -1 stays -1."""
    reduced, of_label, run = reduced_labels(request), request.extents, 1
    if len(reduced) == 1:
        return [places]
    extents, found = [of_label[label] for label in reduced], []
    for extent in reversed(extents):
        index = torch.div(places, run, rounding_mode="floor") % max(extent, 1)
        found.append(torch.where(places < 0, places, index))
        run *= max(extent, 1)
    return found[::-1]


def _check_workspace(roles: SelectionRoles, extents: dict[Label, int], request: Request, options: Options) -> None:
    sides = ((roles.batch, roles.k, roles.m), (roles.batch, roles.k, roles.n))
    elements = [math.prod(extents[label] for group in side for label in group) for side in sides]
    needed = sum(elements) * request.arithmetic.accumulate.itemsize
    if options.workspace_limit is not None and needed > options.workspace_limit:
        raise WorkspaceError(
            f"return_arg packs both operands into {needed} bytes of workspace, the limit is {options.workspace_limit}"
        )


def _validate(
    equation: Terms, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, result: torch.Tensor, options: Options
) -> None:
    """`AccuracyError` where D is not what the validated contraction without places finds."""
    expected = find_plan(equation, a, b, replace(options, out_dtype=result.dtype)).run_validated(
        Arguments(a, b, c, operands=options.tensors)
    )
    assert isinstance(expected, torch.Tensor), "an epilogue of one result"
    if not torch.equal(torch.nan_to_num(result), torch.nan_to_num(expected)):
        raise AccuracyError("return_arg selects other values than the contraction without it")

