"""The public calls that move data: `permute` and `plan_permute`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack, cast, overload

import torch

from weft.api.keywords import Equation, Function, MovingKeywords, PermuteKeywords, signed
from weft.api.lookup import Terms, notation_key, plan_of, said_call
from weft.base.arguments import addition, check_dimensions, describe_call
from weft.base.arrays import (
    Array,
    as_result,
    as_tensor,
    is_array,
    is_foreign,
    is_subclass,
    like,
    source_of,
    without_neg,
)
from weft.base.dispatch import as_operation, is_dynamo_compiling, outside_graphs
from weft.engine.calls import CALLS
from weft.engine.ways import Arguments, aside, asked, detached
from weft.errors import ArgumentError, DTypeError, NotationError, UnsupportedError, call_context
from weft.fn import trace
from weft.planner.options import Options, OutDtype
from weft.planner.request import Functions, Request
from weft.planner.schedule import Scalar
from weft.plans.checks import reject_gradient
from weft.plans.keywords import read_options
from weft.plans.permutation import PermutePlan
from weft.plans.resolving import served_by
from weft.spec import Label, Layout, Notation, parse
from weft.spec.contraction import Arithmetic
from weft.spec.dtypes import dtype_name
from weft.spec.notation import expand
from weft.spec.permutation import checked_extents, permutation_extents

_PLAIN = (float, int)  # of alpha and beta


@overload
def permute(x: Array, equation: Equation, **keywords: Unpack[MovingKeywords]) -> Array: ...
@overload
def permute(x: Any, equation: Any, *, reduce: Any = None, **keywords: Unpack[MovingKeywords]) -> Any: ...
@signed("permute", ("x", "equation"))
def permute(
    x: Any,
    equation: Any,
    *,
    fn: Function | None = None,
    c: Any = None,
    alpha: Scalar = 1.0,
    beta: Scalar | None = None,
    out: Any = None,
    extents: Mapping[Label, int] | None = None,
    reduce: Any = None,
    **options: Any,
) -> Any:
    """Rearrange the modes of a tensor: ``out = alpha * fn(permuted x) + beta * c``, in one pass over memory.

    The tensor and the equation may come in either order.

    `equation` names the modes of `x` and of the result: text (``"abc->cab"``, ``"...ab->...ba"``) or two sequences of
    hashable labels. A label that `x` repeats is its diagonal. A label of the result that `x` lacks, or has with extent
    1, is broadcast along; its extent comes from `extents` (``{"b": 5}``) or from `out`. A label that the result lacks
    is an error: `weft.einsum` sums.

    `x`: a torch tensor with any strides, or an array that speaks DLPack; elements of 1 to 16 bytes. `fn`: a Python
    function of torch operations, traced and fused, which sees values of `x`'s type. `out`: where the result goes, any
    strides, sharing no memory with `x`. `out_dtype`: the result's type, by default `out`'s, else that of `fn`'s
    results, else `x`'s; a cast costs no pass of its own. `c`: where it is given it is added, times `beta` (1): a tensor
    of the result's type and shape (an extent of 1 broadcasts). ``c=out``, or a `beta` without `c`, adds to what is
    there; a `c` of another layout than the result's costs a pass of its own. `alpha` and `beta` are applied in the
    wider of the two types, half precision by way of float32 and integers in int64; tensors of no dimensions have
    gradients. With ``beta == 0`` `c` is not read, with ``alpha == 0`` `x` is not, as in BLAS: NaN there does not
    spread.

    Where nothing is computed the bits of each element arrive as they are. A conjugate view is conjugated on the way; a
    negative view is resolved first.

    `reduce`: further results that keep some of the result's modes, by name, as for `contract`; the call then returns
    the result and a dictionary of them, and their functions take no operands.

    `workspace_limit`: most bytes to allocate besides the result. `backend`: ``"auto"``, ``"triton"``, ``"cpu"`` or
    ``"reference"``. `tune`, `specialize`, `schedule` and `promote` (`x` may be a list) as for `contract`.

    Returns the result, never a view of `x`, as the kind of array that `x` is; or `out` when that is given. Raises a
    `weft.WeftError` (`NotationError`, `ShapeError`, `DTypeError`, `FunctionError`, `ArgumentError`,
    `UnsupportedError`, `WorkspaceError`); nothing is written then.

    >>> import torch, weft
    >>> weft.permute(torch.tensor([[1, -2], [3, -4]]), "ab->ba", fn=torch.relu)
    tensor([[1, 3],
            [0, 0]])
    >>> weft.permute(torch.tensor([1.5, 2.5]), "a->ba", extents={"b": 2})
    tensor([[1.5000, 2.5000],
            [1.5000, 2.5000]])
    """
    if reduce is not None:
        given = {"fn": fn, "c": c, "alpha": alpha, "beta": beta, "out": out, "extents": extents, **options}
        return _reduced(x, equation, reduce, given)
    if is_dynamo_compiling():
        return as_operation("permute")(x, equation, fn, c, alpha, beta, out, extents, options)
    c, beta = (c, 1.0) if beta is None else addition(c, beta, out)
    if type(equation) is not str and is_array(equation) and not is_array(x):
        x, equation = equation, x
    tensors, place = (x,) if out is None else (x, out), None
    if c is None and extents is None and type(alpha) in _PLAIN and type(beta) in _PLAIN and alpha == 1 == beta:
        words, _ = said_call("permute", equation, () if fn is None else (fn,), options, out is not None)
        known, place = CALLS.find(words, tensors)
        if known is not None and (found := known.run(x, x, out=out)) is not None:
            return found
    with call_context(lambda: describe_call("permute", equation, x=x, c=c, out=out)):
        if out is None and c is None and is_foreign(x) and "promote" not in options:
            moved = permute(as_tensor("x", x), equation, fn=fn, alpha=alpha, extents=extents, **options)
            return like(source_of(x), moved)
        source, target, addend, read = _read("permute", x, c, out, fn, options)
        result, known = _moved(equation, source, read, addend, alpha, beta, target, extents)
    if not is_subclass(x):  # known calls have plain tensors as results
        CALLS.keep(place, tensors, known)
    return out if out is not None else like(source_of(x, c), result)


@outside_graphs
def _reduced(x: Any, equation: Any, reduce: Any, keywords: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A permutation and reductions of its result, by name."""
    if is_array(equation) and not is_array(x):
        x, equation = equation, x
    with call_context(lambda: describe_call("permute", equation, x=x)):
        key = _notation_key(equation)
        notation = parse(key, new_labels=True) if isinstance(key, str) else key
        labels = expand(notation, [as_tensor("x", x, True).dim()] * len(notation.inputs)).output
        reductions = as_operation("reductions")(reduce, labels)
        result = permute(x, equation, **keywords)
        return result, reductions.of(result)


def moved(
    equation: Terms,
    x: torch.Tensor,
    options: Options,
    c: torch.Tensor | None = None,
    alpha: Scalar = 1.0,
    beta: Scalar = 1.0,
    out: torch.Tensor | None = None,
    extents: Mapping[Label, int] | None = None,
    *,
    said: Any = None,
) -> torch.Tensor:
    """The result of `weft.permute` on tensors, of options that are read: its function is the first of theirs.

    `said`: `Options.said` of the options, where that is known already.
    """
    tensors, place = (x,) if out is None else (x, out), None
    if c is None and extents is None and type(alpha) in _PLAIN and type(beta) in _PLAIN and alpha == 1 == beta:
        said = options.said() if said is None else said
        known, place = CALLS.find(None if said is None else ("moved", equation, said, len(tensors)), tensors)
        if known is not None and (found := known.run(x, x, out=out)) is not None:
            return cast(torch.Tensor, found)
    result, known = _moved(equation, x, options, c, alpha, beta, out, extents)
    CALLS.keep(place, tensors, known)
    return result


def _moved(
    equation: Terms, x: torch.Tensor, options: Options, c: torch.Tensor | None, alpha: Scalar, beta: Scalar,
    out: torch.Tensor | None, extents: Mapping[Label, int] | None,
) -> tuple[torch.Tensor, Any]:  # fmt: skip
    """The result of a call that is not known, and what makes that of later ones that add and scale nothing."""
    call = Arguments(x, None, c, out, alpha, beta)
    if (seen := aside("permutation", equation, call, options, extents)) is not None:
        return seen
    return find_permutation(equation, x, out, options, extents).run_known(call)


@signed("plan_permute", ("x", "equation"), PermutePlan)
@outside_graphs
def plan_permute(
    x: Any,
    equation: Any,
    *,
    fn: Function | None = None,
    c: Any = None,
    alpha: Scalar = 1.0,
    beta: Scalar | None = None,
    out: Any = None,
    extents: Mapping[Label, int] | None = None,
    **options: Unpack[PermuteKeywords],
) -> PermutePlan:
    """Plan a permutation without running it; arguments and errors as for `permute`.

    The plan holds for tensors with the layout of `x`. The variant for `c`, `out`, `alpha` and `beta` is prepared; those
    for other values are prepared when a call first brings them.

    >>> import torch, weft
    >>> x = torch.rand(8, 5, 7)
    >>> p = weft.plan_permute(x, "abc->cba")
    >>> torch.equal(p(x), x.permute(2, 1, 0))
    True
    """
    c, beta = addition(c, beta, out)
    if is_array(equation) and not is_array(x):
        x, equation = equation, x
    with call_context(lambda: describe_call("plan_permute", equation, x=x, c=c, out=out)):
        source, target, addend, read = _read("plan_permute", x, c, out, fn, options)
        gradient = asked(source, addend)
        alpha, beta = _planned("alpha", alpha), _planned("beta", beta)
        if gradient:
            source, addend = detached(source), None if addend is None else detached(addend)
        found = find_permutation(equation, source, target, read, extents)
        found = found.prepare(Arguments(source, None, addend, target, alpha, beta))
        return found.differentiated((True,)) if gradient else found


def _planned(name: str, factor: Any) -> Any:
    """A factor to plan for; a tensor's value belongs to the call."""
    if not isinstance(factor, torch.Tensor):
        return factor
    check_dimensions(name, factor)
    return 1.0


def _read(
    call: str, x: Any, c: Any, out: Any, fn: Function | None, keywords: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, Options]:
    """The operand, the place for the result, what is added, and the options."""
    target = as_result(out) if out is not None else None
    options = read_options(call, keywords, target)
    if isinstance(x, str):
        raise ArgumentError(f"{call} takes a tensor and an equation: 'x', {x!r}; a second text stands for the tensor")
    if fn is not None:
        options = replace(options, functions=(fn, None, None, None))
    source = without_neg(as_tensor("x", x, options.promote))
    addend = None if c is None else target if c is out else as_tensor("c", c, options.promote)
    return source, target, addend, options


def find_permutation(
    equation: Terms, x: torch.Tensor, out: torch.Tensor | None, options: Options, extents: Mapping[Label, int] | None
) -> PermutePlan:
    """The plan for this request, remembered by everything it depends on."""
    shape, given = None if out is None else tuple(out.shape), checked_extents(extents) if extents is not None else {}
    return plan_of(PermutePlan, requested(_notation_key(equation), x, shape, given, options), options)


def requested(
    equation: str | Notation, x: torch.Tensor, out_shape: tuple[int, ...] | None, extents: Mapping[Label, int],
    options: Options,
) -> Request:  # fmt: skip
    """Check everything that does not need the result but its shape."""
    notation = parse(equation, new_labels=True) if isinstance(equation, str) else equation
    if len(notation.inputs) != 1:
        raise NotationError(f"permute takes one operand, '{notation}' names {len(notation.inputs)}")
    notation = expand(notation, [x.dim()])
    found = permutation_extents(notation, x.shape, extents, out_shape)
    (term,), output = notation.inputs, notation.output
    have = dict(zip(term, x.shape, strict=True))
    new = tuple(label for label in output if have.get(label) != found[label])
    reject_gradient("x", x)
    fn = options.functions[0]
    traced = trace(fn, (x.dtype,), hook="fn") if fn is not None else None
    value = x.dtype if traced is None else traced.result
    if isinstance(value, tuple):
        raise UnsupportedError(f"fn returns {len(value)} values: several outputs are not supported yet")
    service = served_by(options, x.device)
    return Request(
        notation=Notation((term, new), output),
        text=str(equation),
        a=Layout.of(x),
        b=Layout(tuple(found[label] for label in new), (0,) * len(new), x.dtype),
        conjugate=(x.is_conj(), False),
        arithmetic=Arithmetic(x.dtype, value),
        d_dtype=_result_type(value, options.out_dtype),
        functions=Functions(traced, raw=options.functions),
        moves=True,
        **service,
    )


def _result_type(value: torch.dtype, out_dtype: OutDtype) -> torch.dtype:
    if out_dtype is None:
        return value
    if isinstance(out_dtype, tuple):
        raise DTypeError(f"out_dtype names {len(out_dtype)} types, a permutation has one result")
    if not torch.can_cast(value, out_dtype):
        raise DTypeError(f"values of type {dtype_name(value)} cannot be stored as {dtype_name(out_dtype)}")
    return out_dtype


def _notation_key(equation: Terms) -> str | Notation:
    return notation_key(equation, "two sequences (modes of x, modes of the result)", 2, new_labels=True)
