"""`contract` and `plan`: two operands.

They read the equation, check and resolve a call into a `Request`, and hand it to a `Plan`. Plans are kept by
everything that they depend on, so a repeated call goes straight to the launch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Unpack, cast, overload

import torch

from weft.api.entry import SelectingPlan, made
from weft.api.keywords import (
    AnyKeywords,
    ContractKeywords,
    Equation,
    Function,
    PlanKeywords,
    TensorKeywords,
    refuse_swapped,
    signed,
    with_autocast,
)
from weft.api.lookup import as_key, find_plan, read_pair, said_call, said_options
from weft.api.selection import check_selected
from weft.base.arguments import addition, describe_call
from weft.base.arrays import (
    Array,
    Selected,
    Several,
    as_results,
    as_tensor,
    is_subclass,
    returned,
    source_of,
)
from weft.base.dispatch import as_operation, is_dynamo_compiling, outside_graphs
from weft.engine.calls import CALLS, present
from weft.engine.ways import Arguments, detached
from weft.engine.ways import asked as asked_of
from weft.errors import ArgumentError, call_context
from weft.fn.fingerprint import fingerprints
from weft.planner.options import Options
from weft.planner.request import HOOKS
from weft.planner.schedule import Scalar
from weft.plans.contraction import Plan
from weft.plans.keywords import read_options
from weft.spec.arguments import read_flag

_FORM = "equation, a, b"

@overload
def contract(
    equation: Equation, a: Array, b: Any, *, reduce: Mapping[str, Any], epilogue: Function | None = None,
    **keywords: Unpack[ContractKeywords],
) -> tuple[Any, dict[str, Array]]: ...
@overload
def contract(
    equation: Equation, a: Array, b: Any, *, ragged: Mapping[Any, Any], epilogue: Function | None = None,
    **keywords: Unpack[ContractKeywords],
) -> Array: ...
@overload
def contract(
    equation: Equation, a: Array, b: Any, *, return_arg: Literal[True], epilogue: Function | None = None,
    **keywords: Unpack[ContractKeywords],
) -> tuple[Array, Array | tuple[Array, ...]]: ...
@overload
def contract(equation: Equation, a: Array, b: Any, **keywords: Unpack[TensorKeywords]) -> Array: ...
@overload
def contract(
    equation: Equation, a: Array, b: Any, *, epilogue: Callable[..., tuple[Any, ...]],
    **keywords: Unpack[ContractKeywords],
) -> tuple[Array, ...]: ...
@overload
def contract(equation: Equation, a: Any, b: Any, **keywords: Unpack[AnyKeywords]) -> Any: ...
@signed("contract", ("equation", "a", "b"))
def contract(
    equation: Equation,
    a: Any,
    b: Any,
    *,
    c: Any = None,
    alpha: Scalar = 1.0,
    beta: Scalar | None = None,
    out: Any = None,
    a_fn: Function | None = None,
    b_fn: Function | None = None,
    c_fn: Function | None = None,
    epilogue: Function | None = None,
    reduce: Any = None,
    ragged: Any = None,
    return_arg: bool = False,
    validate: bool = False,
    **options: Any,
) -> Any:
    """Contract two tensors: ``D = epilogue(alpha * sum_k a_fn(A) * b_fn(B) + beta * c_fn(C))``.

    The labels of `equation` decide the sum. A label in A, B and D is a batch mode. A label in A and B alone is summed,
    and so is one in a single operand only. A label twice in one operand takes the diagonal. Extent 1 broadcasts;
    extent 0 is allowed anywhere.

    Operands and result:

    * `equation`: einsum text (``"ecbfa,fd->abcde"``; without ``->`` D has the labels that stand once, sorted), or three
      sequences of hashable labels ``(modes_a, modes_b, modes_d)``.
    * `a`, `b`: torch tensors with any strides, or arrays that speak DLPack.
    * `c`: a tensor with D's modes in D's order, added to the sum, times `beta`. Default None: nothing is added.
    * `alpha`: factor of the sum, a number or a tensor of no dimensions. Default 1. As in BLAS, ``alpha=0`` does not
      read `a` and `b`: NaN there does not spread.
    * `beta`: factor of `c`, a number or a tensor of no dimensions. Default 1. ``beta=0`` does not read `c`. A `beta`
      without `c` adds to `out`: ``beta=1.0, out=o`` is ``c=o, out=o``; without `out` too, one other than 0 and 1 is a
      `ShapeError`.
    * `out`: the tensor that D is written to, with any strides. It may be `c` itself and no other input. Default None: D
      is new.

    Functions:

    * `a_fn`, `b_fn`: functions of the values of A and of B, in the product's type.
    * `c_fn`: a function of the values of C, in the accumulator's type.
    * `epilogue`: a function of each sum, in the accumulator's type. One that returns a tuple makes further results of
      D's shape, in their own dtypes: then `out` and the result are tuples, and `out_dtype` may be one.
    * `operands`: tensors for further parameters of the functions, by name: ``{"bias": ("n", bias)}``. Their modes (text
      or a sequence of labels) are any of A's for `a_fn`, of B's for `b_fn`, of D's for `c_fn` and `epilogue`. A tensor
      is broadcast along the other modes, and its values come in its own dtype.
    * `indices`: coordinates for further parameters, by name: ``{"i": "m"}`` is the element's index along m, int32
      (int64 past 2^31).

    The four functions are Python functions of torch operations, traced once and fused. Their first parameter is the
    value. A name of `operands` or `indices` may serve several of them. Default None: the value itself.

    Types and algebra:

    * `out_dtype`: D's number type. Default: `out`'s, else the operands'.
    * `precision`: how products are made: ``"ieee"`` (float32 is never rounded to TF32), ``"ieee_bound"`` (in any way
      whose proven bound is not above that of an IEEE sum), ``"tf32"``, ``"tf32x3"``, ``"3m"`` (complex products may be
      of three real ones), or a number type that values are rounded to before they are multiplied. Default: that of
      `weft.precision` or `weft.set_precision`, ``"ieee"`` where neither says otherwise.
    * `accumulate`: number type of the sum. Default: float32 for fp16, bf16 and fp32; of integers int32, but int64 where
      D is int64, or where D is floating and the sum might leave int32.
    * `promote`: True multiplies operands of different types in the type that torch promotes them to (NumPy arrays: in
      NumPy's), which is D's type too. Each stays as it is in memory and is converted as it is read. Lists and whatever
      else `numpy.asarray` reads are taken as well. Default False: types that differ are a `DTypeError`.
    * `algebra`: the functions in place of product and sum: a `weft.Algebra` or a name: ``"plus_times"`` (default),
      ``"max_plus"``, ``"min_plus"``, ``"max_times"``, ``"min_max"``, ``"max_min"``, ``"or_and"``, ``"log"``, ``"gf2"``,
      or an alias (``"tropical"``, ``"logsumexp"``, ``"boolean"``, ...; `weft.algebra.ALIASES` has them). Then ``D =
      epilogue(reduce(acc, c_fn(C)))``, and `alpha` and `beta` other than 1 are a `DTypeError`. bool is an operand of
      any algebra but plus_times.
    * `ragged`: the modes whose extent differs from list to list, with the offsets of lists: ``{"j": offsets}``. In
      ``"bjd,bde->bje"`` j stands behind the label of the lists, b, and both are one dimension of a packed tensor, whose
      rows from ``offsets[i]`` to ``offsets[i + 1]`` are list i. Offsets on a GPU are waited for. Several ragged modes
      are one dimension together. torch's jagged tensors may be given in the place of their values, and come back.
      Default None.
    * `reduce`: further results that keep some of D's modes, by name: ``{"peak": ("m", "max"), "norm": ("m", "sum",
      torch.square)}``. Each has the modes that it keeps, an algebra (``"sum"``, ``"mean"``, ``"max"``, ``"min"``,
      ``"argmax"``, ``"argmin"``, ``"logsumexp"``), and where it has one a function of each element of D, as D is
      stored; `operands` and `indices` may name its parameters. The call returns ``(D, found)``, `found` a dictionary.
      `weft.cascade` makes such results without D. Default None.
    * `return_arg`: True returns ``(D, where)`` for an algebra that selects (max_plus, min_plus, max_times, min_max,
      max_min). `where` is an int64 tensor of D's shape: the index along the reduced mode of the selected pair, the
      smallest of equal ones, -1 where there was nothing to select from or where C's value is better than every pair. Of
      several reduced modes it is a tuple of such tensors, one for each in the order in which they first stand in the
      equation; the smallest index of the first mode counts first. Default False.

    A number type is torch's, NumPy's or text: ``torch.float16``, ``numpy.float16``, ``"float16"``, ``"fp16"``,
    ``"half"``. Within `torch.autocast` products of float32, half and bfloat16 operands are made in autocast's type, and
    D has it, where `precision` and `out_dtype` name none.

    Choice of the kernel:

    * `backend`: ``"auto"`` (default: the device of the tensors decides), ``"triton"``, ``"cpu"`` or ``"reference"``.
    * `workspace_limit`: most bytes to allocate besides D. Default None: no limit.
    * `tune`: None (default) takes the schedule that an earlier tuning stored for this contraction and device, else the
      cost model's choice. ``"measure"`` takes a stored one too, else it measures candidates now, for some seconds, and
      stores the fastest; it is an `UnsupportedError` while a CUDA graph is being captured. ``"model"`` takes the cost
      model's choice whatever is stored.
    * `specialize`: which kernels may serve. ``"library"``: torch's own operations, for which nothing is compiled.
      ``"never"``: the same, and a specialised kernel for what they cannot do. ``"now"``: a specialised one, compiled
      for these extents; the first call waits for it. Each gives the same bits in every call. ``"auto"`` (default)
      begins with the library and changes to better kernels, which a thread and other processes prepare: at calls whose
      numbers follow from predicted times alone (`Plan.explain` shows them). `WEFT_TIERS=0` begins with compiled ones.
    * `schedule`: one of the schedules that `Plan.report` lists, as the object or its printed form. Default None: weft
      chooses. `UnsupportedError` names the nearest one where there is no such schedule.
    * `invariant`: labels of D (text or a sequence) whose extents the bits of no element depend on: a row's are the same
      alone and among others. Products are added in one order then, whatever the kernel. `UnsupportedError` where no
      kernel does that. Default None: the fastest order.
    * `deterministic`: default True. Results do not change from run to run with either value.

    Checks and gradients:

    * `kept_dtype`: number type in which a differentiable call keeps the sums that its backward pass needs. Default: D's
      where that is of half precision, else the accumulator's. A narrower one saves memory, and rounds the sums that the
      epilogue's derivative is made of.
    * `validate`: True computes up to 256 elements of D (corners, and others drawn with a fixed seed) a second time in
      float64, complex128 or int64, functions, C and all, and holds each against its `weft.error_bound`. `AccuracyError`
      names the worst element that is off, and D is not returned; an `out` has been written. Functions written in Triton
      and algebras of your own on floating types are an `UnsupportedError`. It waits for the device and costs
      milliseconds and more. Default False.

    Returns D as the kind of array that `a` is, or `out` when that is given. Raises a `weft.WeftError`:
    `NotationError`, `ShapeError`, `DTypeError`, `FunctionError`, `ArgumentError`, `UnsupportedError` or
    `WorkspaceError`; nothing is written then. With `validate` also `AccuracyError`.

    >>> import torch, weft
    >>> a, b = torch.ones(2, 3), torch.ones(4, 3)
    >>> weft.contract("ik,jk->ji", a, b, alpha=2.0, epilogue=torch.sqrt)[0]
    tensor([2.4495, 2.4495])
    """
    if reduce is not None or ragged is not None:
        keywords = {
            "c": c, "alpha": alpha, "beta": beta, "out": out, "a_fn": a_fn, "b_fn": b_fn, "c_fn": c_fn,
            "epilogue": epilogue, "return_arg": return_arg, "validate": validate, **options,
        }  # fmt: skip
        if reduce is not None and ragged is not None:
            raise ArgumentError("reduce does not go with ragged: reduce the packed result")
        call, given = as_operation("reduced contraction"), reduce
        if ragged is not None:
            call, given = as_operation("ragged contraction"), ragged
        return call(equation, a, b, given, keywords)
    functions = (a_fn, b_fn, c_fn, epilogue)
    if is_dynamo_compiling():
        return as_operation("contract")(equation, a, b, c, alpha, beta, out, functions, return_arg, validate, options)
    if beta is None:
        beta = 1.0
    elif c is None and out is not None:
        c, beta = addition(c, beta, out)
    asked, beside = said_options(options) if options else ((), ())
    text = equation if type(equation) is str else as_key(equation)
    bare = a_fn is None and b_fn is None and c_fn is None and epilogue is None
    prints = () if bare else fingerprints(functions)
    words: Any = None
    tensors: Sequence[Any] = ()
    place = None  # with autocast as it is: calls are known by it
    if text is not None and asked is not None and prints is not None and type(return_arg) is bool:
        words = (text, prints, asked, "return_arg") if return_arg else (text, prints, asked)
    if words is not None and validate is False:
        said, tensors = present(words, a, b, c, out, beside)
        known, place = CALLS.find(said, tensors)
        if known is not None and (found := known.run(a, b, c, alpha, beta, out, beside)) is not None:
            return found
    with call_context(lambda: describe_call("contract", equation, a=a, b=b, c=c, out=out)):
        options = with_autocast(options, a, b, out)
        refuse_swapped("contract", equation, _FORM)
        read_flag("return_arg", return_arg)
        source = source_of(a, b, c)
        read_flag("validate", validate)
        promote = read_flag("promote", options.get("promote", False))
        x, y = read_pair(a, b, promote)
        addend = as_tensor("c", c, promote) if c is not None else None
        target = as_results(out)
        if words is None or validate or is_subclass(source):  # known calls have plain tensors as results
            place = None
        elif x is not a or y is not b or addend is not c or target is not out:  # arrays, read by now
            said, tensors = present(("arrays", words), x, y, addend, target, beside)  # which autocast leaves alone
            known, place = CALLS.find(said, tensors)
            found = None if known is None or return_arg else known.run(x, y, addend, alpha, beta, target, beside)
            if found is not None:
                return returned(source, out, found, False)
        read = read_options("contract", {**options, **dict(zip(HOOKS, functions, strict=True))}, target)
        arguments = Arguments(x, y, addend, target, alpha, beta, read.tensors)
        result, known = made(equation, arguments, read, return_arg, validate)
    CALLS.keep(place, tensors, known)
    return returned(source, out, result, return_arg)


@overload
def plan(
    equation: Equation, a: Any, b: Any, *, c: Any = None, out: Any = None, return_arg: Literal[True],
    epilogue: Function | None = None, **options: Unpack[PlanKeywords],
) -> Plan[Selected]: ...
@overload
def plan(
    equation: Equation, a: Any, b: Any, *, c: Any = None, out: Any = None, return_arg: Literal[False] = False,
    epilogue: Callable[..., torch.Tensor] | None = None, **options: Unpack[PlanKeywords],
) -> Plan: ...
@overload
def plan(
    equation: Equation, a: Any, b: Any, *, c: Any = None, out: Any = None, return_arg: Literal[False] = False,
    epilogue: Callable[..., tuple[Any, ...]], **options: Unpack[PlanKeywords],
) -> Plan[Several]: ...
@overload
def plan(
    equation: Equation, a: Any, b: Any, *, c: Any = None, out: Any = None, return_arg: bool = False,
    epilogue: Function | None = None, **options: Unpack[PlanKeywords],
) -> Plan[Any]: ...
@signed("plan", ("equation", "a", "b"), Plan)
@outside_graphs
def plan(
    equation: Equation,
    a: Any,
    b: Any,
    *,
    c: Any = None,
    out: Any = None,
    epilogue: Function | None = None,
    return_arg: bool = False,
    **options: Any,
) -> Plan[Any]:
    """Plan a contraction without running it; arguments and errors as for `contract`.

    The plan holds for tensors with the layouts of `a` and `b`. `c` and `out` are optional here: with them their variant
    is prepared too, without them it is prepared when a call first brings them. Calls of a plan made with `return_arg`
    return ``(D, where)``; what it says of itself is of the contraction that finds D alone.

    A plan that is kept stays right: where the number of torch's threads has changed, a schedule was tuned or a family
    failed its self-test since, its next call plans anew, unless its schedule was forced.

    >>> import torch, weft
    >>> a, b = torch.rand(8, 5), torch.rand(5, 7)
    >>> p = weft.plan("ik,kj->ij", a, b)
    >>> torch.allclose(p(a, b), a @ b)
    True
    """
    options = with_autocast(options, a, b, out)
    functions = (*[options.get(hook) for hook in HOOKS[:3]], epilogue)
    asked = {name: value for name, value in options.items() if name not in HOOKS}
    words, beside = said_call("plan", equation, functions, asked, return_arg)
    tensors, place = cast("Sequence[Any]", ()), None
    if words is not None:
        words, tensors = present(words, a, b, c, out, beside)
        known, place = CALLS.find(words, tensors)
        if known is not None:
            return cast("Plan[Any]", known.given(functions, known.request.raw_algebra))
    with call_context(lambda: describe_call("plan", equation, a=a, b=b, c=c, out=out)):
        found = _planned(equation, a, b, c, out, return_arg, {**options, "epilogue": epilogue})
    CALLS.keep(place if found.is_lasting and not return_arg else None, tensors, found)
    return found


def _planned(
    equation: Equation, a: Any, b: Any, c: Any, out: Any, return_arg: bool, keywords: Mapping[str, Any]
) -> Plan[Any]:
    """The plan of a call that is not known."""
    refuse_swapped("plan", equation, _FORM)
    target = as_results(out)
    asked = read_options("plan", keywords, target)
    x, y = read_pair(a, b, asked.promote)
    addend = as_tensor("c", c, asked.promote) if c is not None else None
    if read_flag("return_arg", return_arg):
        return _selecting(equation, (x, y, addend, target), asked)
    needs = tuple(each is not None and asked_of(each) for each in (x, y, addend, *asked.tensors.values()))
    if any(needs):
        x, y, addend, asked = _detached(x, y, addend, asked)
    found = find_plan(equation, x, y, asked).prepare(Arguments(x, y, addend, target, operands=asked.tensors))
    return found.differentiated(needs) if any(needs) else found


def _selecting(
    equation: Equation, tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, Any], options: Options
) -> Plan:
    """A plan whose calls find places, too; what does not fit it is refused now."""
    x, y, addend, options = _detached(*tensors[:3], options)
    request = find_plan(equation, x, y, options).request
    check_selected(request, added=False)
    modes = {name: modes for name, (modes, _) in options.operands.items()}
    found = SelectingPlan(request, replace(options, operands={}), modes)
    return found.prepare(Arguments(x, y, addend, tensors[3], operands=options.tensors))


def _detached(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, options: Options
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, Options]:
    """Tensors to plan for."""
    placed = {name: (modes, detached(tensor)) for name, (modes, tensor) in options.operands.items()}
    return detached(a), detached(b), None if c is None else detached(c), replace(options, operands=placed)
