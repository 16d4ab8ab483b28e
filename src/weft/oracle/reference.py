"""The oracle: what a contraction means, and a permutation, computed the plain way in wide types.

    D = epilogue(alpha * sum over k of a_fn(A) * b_fn(B) + beta * c_fn(C))
    D = epilogue(reduce(reduce over k of combine(a_fn(A), b_fn(B)), c_fn(C)))

Every value becomes float64, complex128 or int64 first, functions are evaluated as they are given, and every label is
one dimension: see `weft.oracle.sums`. Nothing is shared with the backends but the reading of the equation and of
functions' signatures. Operands of functions become float64 or complex128 where they are not whole numbers;
coordinates, and integers and truth values, keep their type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from weft.algebra import Algebra, find
from weft.base.arguments import addition, is_zero
from weft.base.memory import check_room
from weft.errors import DTypeError, NotationError, ShapeError
from weft.fn.binding import bind
from weft.oracle.arguments import (
    addend_of,
    as_value,
    called,
    check_places,
    factor_of,
    operand,
    read_aux,
    read_pair,
    several,
    spread,
    stored,
)
from weft.oracle.sums import AuxValues, Read, aligned, reduced, simplified, source, sum_of_products
from weft.planner.request import HOOKS, Request
from weft.spec.contraction import read_modes, summed
from weft.spec.dtypes import NARROW, asked_types, read_dtype, read_types, results_of, sum_type
from weft.spec.notation import Label, Notation, expand, from_sequences, label_text, parse, terms_of
from weft.spec.permutation import checked_extents, permutation_extents

if TYPE_CHECKING:
    from weft.planner.schedule import AuxTensors, PermutationLaunch, Scalar
    from weft.spec import Contraction

Function: TypeAlias = Callable[..., Any]
Equation: TypeAlias = str | Sequence[Sequence[Label]] | Notation

_WIDE = (torch.float64, torch.complex128)  # of real and complex values


def contract(
    equation: Equation,
    a: Any,
    b: Any,
    *,
    c: Any = None,
    alpha: Scalar = 1.0,
    beta: Scalar | None = None,
    out: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
    out_dtype: torch.dtype | tuple[torch.dtype | None, ...] | None = None,
    precision: str | torch.dtype | None = None,
    accumulate: torch.dtype | None = None,
    a_fn: Function | None = None,
    b_fn: Function | None = None,
    c_fn: Function | None = None,
    epilogue: Function | None = None,
    operands: Mapping[str, tuple[Any, Any]] | None = None,
    indices: Mapping[str, Label] | None = None,
    algebra: str | Algebra = "plus_times",
) -> Any:
    """The contraction of `a` and `b`, as exact as float64 makes it.

    Arguments mean what they mean for `weft.contract`. The result is float64, complex128 or int64, or `out_dtype`
    where that is given: one rounding at the end. A dtype as `precision` rounds the values of A and B to it before
    their functions see them; "tf32" and "tf32x3" change nothing here. `accumulate` matters for integers alone: sums
    wrap around as that type does, by default the one that `weft.contract` adds in for `out_dtype` or `out`. Functions
    of whole numbers see them in their own types, and wrap around as well. `beta=0` does not read `c`. Of an epilogue
    that yields several values the result is a tuple. In an algebra other than plus-times integers and bool are held in
    the accumulator's own type (bool where bool is stored), all else in wide ones.

    >>> import torch
    >>> contract("ij,j->i", torch.tensor([[1, 2], [3, 4]]), torch.tensor([10, 1]))
    tensor([12, 34])
    """
    a, b = operand("a", a), operand("b", b)
    c, beta = addition(c, beta, out)
    out_dtype, precision, accumulate = read_types(out_dtype, precision, accumulate)
    notation = read_equation(equation, (a.ndim, b.ndim))
    extents = label_extents(notation, (a.shape, b.shape))
    shape = tuple(extents[label] for label in notation.output)
    check_room(a.device, 8 * math.prod(shape))
    if c is not None:
        c = addend_of(c, shape)
    check_places(out, shape)
    alpha, beta = factor_of("alpha", alpha), factor_of("beta", beta)
    other = find(algebra)
    hooks = {"a_fn": a_fn, "b_fn": b_fn, "c_fn": c_fn, "epilogue": epilogue}
    names = Names(hooks, read_aux(operands), read_aux(indices), extents, a.device)
    terms = notation.inputs
    x = source(terms[0], a, factor(precision, a_fn, keep=other is not None), names.of("a_fn"), extents)
    y = source(terms[1], b, factor(precision, b_fn, keep=other is not None), names.of("b_fn"), extents)
    output = tuple(label for label, extent in zip(notation.output, shape, strict=True) if extent != 1)
    if accumulate is None:
        asked = asked_types(out_dtype, out)
        accumulate = _default_accumulator(a, b, precision, asked, summed(notation, extents))
    inexact = accumulate.is_floating_point or accumulate.is_complex
    held = _WIDE[accumulate.is_complex] if inexact else accumulate
    addend = None
    if c is not None and beta != 0:
        addend = _single(c_fn, c.to(held), names.along("c_fn", notation.output))
    if other is not None:
        value = reduced(x, y, output, other, held).reshape(shape)
        value = value if addend is None else other.reduce(value, addend.to(held).expand(shape)).to(held)
        value = value if held is torch.bool else wide(value)
    else:
        value = times(alpha, sum_of_products(x, y, output).reshape(shape))
        value = value if addend is None else value + times(beta, wide(addend))
        if not (value.is_floating_point() or value.is_complex()):
            value = value.to(accumulate).to(torch.int64)
    seen = value if inexact else value.to(accumulate)
    results = _results(epilogue, seen, names.along("epilogue", notation.output)) if epilogue is not None else value
    if isinstance(results, tuple):
        targets = out if isinstance(out, tuple) else (None,) * len(results)
        dtypes = out_dtype if isinstance(out_dtype, tuple) else (out_dtype, *(None for _ in results[1:]))
        if len(results) != len(dtypes) or len(results) != len(targets):
            raise ShapeError(f"the epilogue returns {len(results)} values, as many as out and out_dtype have")
        return tuple(stored(*each) for each in zip(results, dtypes, targets, strict=True))
    return stored(results, out_dtype, out)


def launcher(request: Request, contraction: Contraction) -> Callable[..., None]:
    """The oracle as a backend: the launch of a plan that chooses nothing."""
    hooks: dict[str, Any] = dict(zip(HOOKS, request.functions.raw, strict=True))
    arithmetic = request.arithmetic
    terms = {named.name: named.term for named in request.named}
    named = [each for each in contraction.aux if each.kind != "output"]
    indices = {each.name: terms[each.name][0] for each in named if each.kind == "index"}

    def launch(
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor | None,
        d: torch.Tensor,
        alpha: Scalar,
        beta: Scalar,
        aux: AuxTensors = (),
    ) -> None:
        aux_args = zip(named, aux, strict=False)
        outputs = aux[len(named) :]
        # A launch is given memory as it lies; that it stands for its conjugate is in the request.
        contract(
            request.notation,
            a.conj() if request.conjugate[0] else a,
            b.conj() if request.conjugate[1] else b,
            c=c,
            alpha=alpha,
            beta=beta if c is not None else 0,  # nothing is added to what D's memory holds
            out=(d, *(x for x in outputs if x is not None)) if outputs else d,
            precision=arithmetic.product,
            accumulate=arithmetic.accumulate,
            **hooks,
            operands={each.name: (terms[each.name], x) for each, x in aux_args if x is not None},
            indices=indices,
            algebra=request.raw_algebra or "plus_times",
        )

    return launch


def wide(values: torch.Tensor) -> torch.Tensor:
    """`values` as float64, complex128 or int64."""
    if values.is_complex():
        return values.to(torch.complex128)
    return values.to(torch.float64 if values.is_floating_point() else torch.int64)


def read_equation(equation: Equation, ranks: Sequence[int], new_labels: bool = False) -> Notation:
    if isinstance(equation, str):
        equation = parse(equation, new_labels=new_labels)
    elif not isinstance(equation, Notation):
        equation = from_sequences(*terms_of(equation), new_labels=new_labels)
    return expand(equation, ranks)


def label_extents(notation: Notation, shapes: Sequence[Sequence[int]]) -> dict[Label, int]:
    """The extent of each label: the one that is not 1, where there is one."""
    extents: dict[Label, int] = {}
    for term, shape in zip(notation.inputs, shapes, strict=True):
        for label, extent in zip(term, shape, strict=True):
            known = extents.get(label, 1)
            if extent != known and 1 not in (extent, known):
                raise ShapeError(f"label '{label_text(label)}' has extents {known} and {extent}")
            extents[label] = extent if known == 1 else known
    return extents


def reader(precision: str | torch.dtype | None, function: Function | None, keep: bool) -> Read:
    """How stored values become what is multiplied."""

    def read(values: torch.Tensor, aux_args: AuxValues) -> torch.Tensor:
        if isinstance(precision, torch.dtype):
            values = values.to(precision if values.is_complex() else precision.to_real())
        return _single(function, values if keep and values.dtype is torch.bool else wide(values), aux_args)

    return read


def factor(precision: str | torch.dtype | None, function: Function | None, keep: bool) -> Read:
    """How stored values become a factor: its function sees whole numbers in their own type, and yields that type."""
    plain, applied = (reader(precision, each, keep) for each in (None, function))

    def read(values: torch.Tensor, aux_args: AuxValues) -> torch.Tensor:
        wanted = precision if isinstance(precision, torch.dtype) else values.dtype
        if function is None or wanted.is_floating_point or wanted.is_complex:
            return applied(values, aux_args)
        return plain(_single(function, values.to(wanted), aux_args).to(wanted), {})

    return read


class Careful(TorchFunctionMode):
    """Functions of torch that lose digits in float64, made otherwise: GELU as 1 + erf(x) is 0 below -8.3."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.gelu and kwargs.get("approximate", "none") == "none":
            [x] = args or (kwargs["input"],)
            if x.dtype == torch.float64:
                return 0.5 * x * torch.erfc(x * -math.sqrt(0.5))
        return func(*args, **kwargs)


def _single(function: Function | None, values: torch.Tensor, aux_args: AuxValues) -> torch.Tensor:
    """A function that yields one value, of wide ones; a truth value stays one."""
    if function is None:
        return values
    with Careful():
        result = as_value(called(function, values, aux_args), values.device)
    # NumPy's, because the first use of torch.broadcast_shapes imports SymPy.
    shape = np.broadcast_shapes(values.shape, *(x.shape for x in aux_args.values()))
    return spread(result if result.dtype is torch.bool else wide(result), shape)


def _results(function: Function, values: torch.Tensor, aux_args: AuxValues) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """The epilogue of all of D: one result or a tuple of them, each of which is memory of its own."""
    with Careful():
        results = called(function, values, aux_args)
    parts = tuple(wide(one).clone(memory_format=torch.contiguous_format) for one in several(results, values))
    return parts if isinstance(results, (tuple, list)) else parts[0]


class Names:
    """Operands and coordinates, and which function takes which."""

    def __init__(
        self,
        functions: Mapping[str, Function | None],
        operands: Mapping[str, tuple[Any, Any]],
        indices: Mapping[str, Label],
        extents: Mapping[Label, int],
        device: torch.device,
    ) -> None:
        self._taken = bind(functions, [*operands, *indices])
        self._placed: dict[str, tuple[Sequence[Label], torch.Tensor]] = {}
        for name, pair in operands.items():
            modes, tensor = read_pair(name, pair)
            tensor = wide(tensor) if tensor.is_floating_point() or tensor.is_complex() else tensor
            self._placed[name] = (read_modes(name, modes, tensor.ndim), tensor)
        for name, label in indices.items():
            if not isinstance(label, Hashable) or label not in extents:
                raise NotationError(f"index '{name}' is a label of the contraction, not {label!r}")
            extent = extents[label]
            dtype = torch.int32 if extent <= 2**31 else torch.int64
            self._placed[name] = ((label,), torch.arange(extent, dtype=dtype, device=device))

    def of(self, hook: str) -> dict[str, tuple[Sequence[Label], torch.Tensor]]:
        return {name: self._placed[name] for name in self._taken[hook]}

    def along(self, hook: str, labels: Sequence[Label]) -> dict[str, torch.Tensor]:
        """The operands of a function by name, with one dimension for each of D's labels."""
        return {name: aligned(*simplified(*placed), labels) for name, placed in self.of(hook).items()}


def times(factor: Scalar, values: torch.Tensor) -> torch.Tensor:
    """Integers stay integers under an integral factor, and nothing is left of NaN under 0."""
    if is_zero(factor):
        return torch.zeros_like(values)
    if not (values.is_floating_point() or values.is_complex()) and factor == int(factor.real):
        factor = int(factor.real)
    try:
        return values * factor
    except (OverflowError, RuntimeError) as error:
        raise DTypeError(f"the factor {str(factor)[:40]} does not fit the sums ({type(error).__name__})") from None


def _default_accumulator(
    a: torch.Tensor, b: torch.Tensor, precision: str | torch.dtype | None, asked: Any, count: int
) -> torch.dtype:
    """A type of the kind in which sums are held; for integers the type itself, in which they wrap around."""
    types = {precision} if isinstance(precision, torch.dtype) else {a.dtype, b.dtype}
    if any(dtype.is_complex or dtype.is_floating_point for dtype in types):
        return _WIDE[any(dtype.is_complex for dtype in types)]
    if types == {torch.bool}:
        return torch.bool
    product = precision if isinstance(precision, torch.dtype) else torch.promote_types(a.dtype, b.dtype)
    if product not in NARROW:
        return torch.int64
    return sum_type(product, results_of(asked, torch.promote_types(a.dtype, b.dtype)), count)


# -- permutations ------------------------------------------------------------------------------------------------------


def permute(
    equation: Equation,
    x: Any,
    *,
    extents: Mapping[Label, int] | None = None,
    fn: Function | None = None,
    alpha: Scalar = 1.0,
    beta: Scalar = 0.0,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The permutation of `x` in plain torch; arguments mean what they mean for `weft.permute`.

    Where something is computed it is computed in float64, complex128 or int64, and so is the result unless `out_dtype`
    or `out` says otherwise; what is only moved keeps its type.

    >>> import torch
    >>> permute("aab->ba", torch.arange(8).reshape(2, 2, 2))
    tensor([[0, 6],
            [1, 7]])
    """
    x, alpha, beta = operand("x", x), factor_of("alpha", alpha), factor_of("beta", beta)
    notation = read_equation(equation, [x.ndim], new_labels=True)
    given = checked_extents(extents) if extents is not None else {}
    check_places(out)
    found = permutation_extents(notation, x.shape, given, None if out is None else out.shape)
    check_places(out, tuple(found[label] for label in notation.output))
    if out_dtype is not None:
        out_dtype = read_dtype("out_dtype", out_dtype)
    computed = fn is not None or alpha != 1 or beta != 0
    check_room(x.device, x.element_size() * math.prod(found[label] for label in notation.output))
    # The labels of extent 1 that this drops come back where the values are expanded.
    read = source(notation.inputs[0], x, reader(None, fn, keep=False), {}, found)
    values = read.values if computed else read.stored
    values = aligned(read.term, values, notation.output).expand([found[label] for label in notation.output])
    if computed:
        values = times(alpha, values)
    if beta != 0:
        if out is None:
            raise ShapeError(f"beta={beta!r} adds to out, and there is none")
        values = values + times(beta, wide(out))
    if out is not None:
        return out.copy_(values)
    return values.to(out_dtype or values.dtype, copy=True).resolve_conj().contiguous()


def permute_launcher(request: Request) -> PermutationLaunch:
    """The oracle as a backend for permutations."""
    extents = request.extents

    def launch(x: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor, alpha: Scalar, beta: Scalar) -> None:
        x = x.conj() if request.conjugate[0] else x
        if c is not None and c is not d:
            d.copy_(c)
        permute(request.moved, x, extents=extents, fn=request.functions.raw[0], alpha=alpha, beta=beta, out=d)

    return launch


def square_(matrices: torch.Tensor, alpha: Scalar = 1) -> None:
    """Square matrices (batch, n, n) transposed in place and scaled, by way of a copy."""
    values = matrices.transpose(1, 2)
    matrices.copy_(times(alpha, wide(values)) if alpha != 1 else values.clone())


def rectangular_(matrices: torch.Tensor, alpha: Scalar = 1) -> None:
    """Dense row-major matrices (batch, rows, columns) transposed in place and scaled, to (batch, columns, rows)."""
    batch, rows, columns = matrices.shape
    step = matrices.stride(2)
    values = matrices.transpose(1, 2)
    values = times(alpha, wide(values)) if alpha != 1 else values.clone()
    strides = (matrices.stride(0), rows * step, step)
    matrices.as_strided((batch, columns, rows), strides, matrices.storage_offset()).copy_(values)
