"""The public calls: `contract`, `plan` and `einsum`.

They read the equation, check and resolve what was asked into a `Request`, and hand it to a `Plan`. Plans are kept by
everything that they depend on, so a repeated call goes straight to the launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import torch

from weft.algebra import find
from weft.api.options import Options, OutDtype, check_limit, fingerprints, read_indices, read_operands, resolved
from weft.api.permute import permute
from weft.base.arrays import as_result, as_results, as_tensor, like, like_each
from weft.base.bounded_cache import BoundedCache
from weft.base.describe import describe_call
from weft.errors import DTypeError, NotationError, ShapeError, call_context
from weft.planner.at_hand import check_specialize
from weft.planner.planner import check_tune
from weft.planner.request import Results
from weft.planner.schedule import Scalar
from weft.planner.validity import generation
from weft.plans.call_cache import CallCache, KnownCall, call_signature
from weft.plans.checks import reject_gradient
from weft.plans.contraction import Plan
from weft.spec import Label, Notation, parse
from weft.spec.contraction import mode_extents
from weft.spec.dtypes import NEEDS_OUT_DTYPE, dtype_name, storage_type
from weft.spec.memory import share_memory
from weft.spec.notation import expand, from_sequences, implicit_from_sequences

Equation = str | Sequence[Sequence[Label]]
Function = Callable[..., Any]

_CALLS = CallCache(4096)  # by all that a call says: its plan, and where that is all it takes its launch
_PLANS = BoundedCache(4096)  # by request: asked where a call is not known


def contract(
    equation: Equation,
    a: Any,
    b: Any,
    *,
    c: Any = None,
    alpha: Scalar = 1.0,
    beta: Scalar = 1.0,
    out: Any = None,
    out_dtype: OutDtype = None,
    precision: str | torch.dtype | None = None,
    accumulate: torch.dtype | None = None,
    a_fn: Function | None = None,
    b_fn: Function | None = None,
    c_fn: Function | None = None,
    epilogue: Function | None = None,
    operands: Mapping[str, tuple[Any, Any]] | None = None,
    indices: Mapping[str, Label] | None = None,
    algebra: Any = "plus_times",
    deterministic: bool = True,
    workspace_limit: int | None = None,
    backend: str = "auto",
    tune: str | None = None,
    specialize: str = "auto",
    validate: bool = False,
) -> Any:
    """Contract two tensors: ``D = epilogue(alpha * sum_k a_fn(A) * b_fn(B) + beta * c_fn(C))``.

    `equation` is einsum text (``"ecbfa,fd->abcde"``; without ``->`` the labels that stand once, sorted) or three
    sequences of hashable labels ``(modes_a, modes_b, modes_d)``. A label in A, B and D is a batch mode; in A and B
    alone it is summed, and so is one that stands in a single operand only; twice in one operand it is the diagonal.
    Extent 1 broadcasts; extent 0 is allowed anywhere.

    `a`, `b`, `c`: torch tensors with any strides, or arrays that speak DLPack. `c` has D's modes in D's order. With
    ``beta == 0`` C is not read. `out`: where D goes, any strides; it may be `c` itself and no other input. `out_dtype`:
    D's type, by default `out`'s, else the operands'. `precision`: ``"ieee"`` (default), ``"tf32"``, ``"tf32x3"``,
    ``"3m"`` (complex products may be of three real ones), or a dtype that values are rounded to before they are
    multiplied.
    `accumulate`: the type of the sum (float32 for fp16, bf16 and fp32).

    `a_fn`, `b_fn`, `c_fn`, `epilogue`: Python functions of torch operations, traced and fused. `a_fn` and `b_fn` see
    values of the product type, `c_fn` and `epilogue` of the accumulator's. Their first parameter is the value. Further
    ones are named by `operands`, ``{"bias": ("n", bias)}``: a tensor whose modes (text or a sequence of labels) are any
    of A's for `a_fn`, of B's for `b_fn`, of D's for `c_fn` and `epilogue`; it is broadcast along the others and its
    values come in its own dtype. Or by `indices`, ``{"i": "m"}``: the element's coordinate along that mode, int32
    (int64 past 2^31). One name may serve several functions. An epilogue that returns a tuple makes further
    results of D's shape, in their own dtypes: then `out` and the result are tuples, and `out_dtype` may be one.

    `algebra`: what takes the place of product and sum, a `weft.Algebra` or the name of one: ``"plus_times"``,
    ``"max_plus"``, ``"min_plus"``, ``"max_times"``, ``"min_max"``, ``"or_and"``, ``"log"``, ``"gf2"``. Then
    ``D = epilogue(reduce(acc, c_fn(C)))``, and `alpha` and `beta` other than 1 are a `DTypeError`. bool is an
    operand of any algebra but plus_times.

    `workspace_limit`: most bytes to allocate besides D. `backend`: ``"auto"``, ``"triton"``, ``"cpu"`` or
    ``"reference"``. Results do not change from run to run (`deterministic`).

    `tune`: None takes the schedule that an earlier tuning stored for this contraction and device, else the cost model's
    choice. ``"measure"`` takes a stored one too, else it measures candidates now, for some seconds, and stores the
    fastest; `UnsupportedError` while a CUDA graph is being captured. ``"model"`` takes the cost model's choice whatever
    is stored.

    `specialize`: on a GPU, which kernels may serve. ``"never"``: those at hand, which are compiled once for all shapes.
    ``"now"``: one made to measure, compiled for these extents. Either gives the same bits in every call. ``"auto"``
    takes what is at hand, and a kernel made to measure once the calls have lost by the model's count what compiling
    takes: at a call whose number follows from predicted times alone (`Plan.explain` has it), and from the first call of
    the next process on. It is compiled by another process meanwhile.

    `validate`: compute up to 256 elements of D (corners, and others drawn with a fixed seed) a second time in float64,
    complex128 or int64, functions, C and all, from the slices of A and B that they need, and hold each against its
    `weft.error_bound`. `AccuracyError` names the worst element that is off, and D is not returned; an `out` that was
    given has been written. Not for functions written in Triton, nor for algebras of your own on floating types
    (`UnsupportedError`). It waits for the device and costs milliseconds and more.

    Returns D as the kind of array that `a` is, or `out` when that is given. Raises a `weft.WeftError`:
    `NotationError`, `ShapeError`, `DTypeError`, `FunctionError`, `UnsupportedError` or `WorkspaceError`; nothing is
    written then. With `validate` also `AccuracyError`.

    >>> import torch, weft
    >>> a, b = torch.ones(2, 3), torch.ones(4, 3)
    >>> weft.contract("ik,jk->ji", a, b, alpha=2.0, epilogue=torch.sqrt)[0]
    tensor([2.4495, 2.4495])
    """
    key = known = None
    if operands is None and indices is None and type(equation) is str and algebra == "plus_times":
        signature = call_signature(a, b, out)
        bare = a_fn is None and b_fn is None and c_fn is None and epilogue is None
        prints = () if bare else fingerprints((a_fn, b_fn, c_fn, epilogue))
        if signature is not None and prints is not None:
            key = (
                equation, signature, c is None, out_dtype, precision, accumulate, prints, deterministic,
                workspace_limit, backend, tune, specialize, generation(),
            )  # fmt: skip
            known = _CALLS.get(key)
            if known is not None and c is None and not validate:
                found = known.run(a, b, alpha, beta, out)
                if found is not None:
                    return found
    with call_context(lambda: describe_call("contract", equation, a=a, b=b, c=c, out=out)):
        x, y = _input("a", a), _input("b", b)
        addend = as_tensor("c", c) if c is not None else None
        target = as_results(out)
        if known is None:
            options = _options(
                target, out_dtype, precision, accumulate, (a_fn, b_fn, c_fn, epilogue),
                operands, indices, algebra, deterministic, workspace_limit, backend, tune,
                specialize,
            )  # fmt: skip
            planned, given = _find_plan(equation, x, y, options), options.tensors
        else:
            planned, given = known.plan, {}
        run = planned.run_validated if validate else planned.run
        result = run(x, y, addend, alpha, beta, target, given)
    if key is not None and known is None:
        _CALLS.put(key, planned.known_call(signature if c is None else None, a, b, result))
    return out if out is not None else like_each(a, result)


def plan(
    equation: Equation,
    a: Any,
    b: Any,
    *,
    c: Any = None,
    out: Any = None,
    out_dtype: OutDtype = None,
    precision: str | torch.dtype | None = None,
    accumulate: torch.dtype | None = None,
    a_fn: Function | None = None,
    b_fn: Function | None = None,
    c_fn: Function | None = None,
    epilogue: Function | None = None,
    operands: Mapping[str, tuple[Any, Any]] | None = None,
    indices: Mapping[str, Label] | None = None,
    algebra: Any = "plus_times",
    deterministic: bool = True,
    workspace_limit: int | None = None,
    backend: str = "auto",
    tune: str | None = None,
    specialize: str = "now",
) -> Plan:
    """Plan a contraction without running it; arguments and errors as for `contract`.

    The plan holds for tensors that lie as `a` and `b` do. `c` and `out` are optional here: with them their variant is
    prepared too, without them it is prepared when a call first brings them.

    >>> import torch, weft
    >>> a, b = torch.rand(8, 5), torch.rand(5, 7)
    >>> p = weft.plan("ik,kj->ij", a, b)
    >>> torch.allclose(p(a, b), a @ b)
    True
    """
    with call_context(lambda: describe_call("plan", equation, a=a, b=b, c=c, out=out)):
        x, y = _input("a", a), _input("b", b)
        addend = as_tensor("c", c) if c is not None else None
        target = as_results(out)
        options = _options(
            target, out_dtype, precision, accumulate, (a_fn, b_fn, c_fn, epilogue),
            operands, indices, algebra, deterministic, workspace_limit, backend, tune,
            specialize,
        )  # fmt: skip
        found = _find_plan(equation, x, y, options)
        return found.prepare(x, y, addend, target, options.tensors)


def einsum(
    *arguments: Any,
    out: Any = None,
    out_dtype: torch.dtype | None = None,
    precision: str | torch.dtype | None = None,
    accumulate: torch.dtype | None = None,
    epilogue: Function | None = None,
    backend: str = "auto",
    tune: str | None = None,
    specialize: str = "auto",
) -> Any:
    """Einstein summation over any number of operands: ``einsum("ab,bc,cd->ad", A, B, C)``.

    Also takes the interleaved form ``einsum(A, (0, 1), B, (1, 2), (0, 2))`` with any hashable labels. One operand is
    permuted, reduced or its diagonal taken; more than two are contracted from left to right. Intermediate results have
    the operands' type. The result is always a tensor of its own, never a view. Options as for `contract`; `epilogue`
    and `out_dtype` apply to the last step.

    >>> import torch, weft
    >>> weft.einsum("ii->i", torch.arange(4.).reshape(2, 2))
    tensor([0., 3.])
    """
    with call_context(lambda: _describe_einsum(arguments)):
        notation, operands = _read_einsum(arguments)
        tensors = [_input(f"operand {at}", operand) for at, operand in enumerate(operands)]
        notation = expand(notation, [tensor.dim() for tensor in tensors])
        mode_extents(notation, [tensor.shape for tensor in tensors])
        target = as_result(out) if out is not None else None
        for at, tensor in enumerate(tensors):
            reject_gradient(f"operand {at}", tensor)
            if target is not None and share_memory(target, tensor):  # the last step sees but one of them
                raise ShapeError(f"out overlaps operand {at} in memory: the result would overwrite what is to be read")
        terms = list(notation.inputs)
        step = partial(contract, precision=precision, accumulate=accumulate, backend=backend, tune=tune,
                       specialize=specialize)  # fmt: skip
        if len(tensors) == 1 and set(terms[0]) == set(notation.output) and not (epilogue or precision or accumulate):
            # Nothing is summed: elements arrive bit for bit, whatever their type.
            equation = (terms[0], notation.output)
            moved = permute(tensors[0], equation, out=target, out_dtype=out_dtype, backend=backend, tune=tune,
                            specialize=specialize)  # fmt: skip
            return out if out is not None else like(operands[0], moved)
        if len(tensors) == 1:
            storage_type(tensors[0].dtype, tensors[0].dtype)  # raises for types that have no one
            terms.append(())
            tensors.append(_one(tensors[0].dtype, tensors[0].device))
        if len(tensors) > 2 and tensors[0].dtype in NEEDS_OUT_DTYPE:
            raise DTypeError(
                f"einsum of {len(tensors)} {dtype_name(tensors[0].dtype)} operands: intermediate results do not fit "
                "their type; convert the operands, or contract two at a time"
            )
        while len(tensors) > 2:
            kept = {label for term in (*terms[2:], notation.output) for label in term}
            middle = tuple(dict.fromkeys(label for term in terms[:2] for label in term if label in kept))
            product = step((terms[0], terms[1], middle), tensors[0], tensors[1])
            terms[:2], tensors[:2] = [middle], [product]
        result = step((*terms, notation.output), *tensors, out=target, out_dtype=out_dtype, epilogue=epilogue)
    return out if out is not None else like(operands[0], result)


def _input(name: str, value: Any) -> torch.Tensor:
    """An operand; a negative view is resolved here, as no kernel can see its bit."""
    return as_tensor(name, value).resolve_neg()


def _options(
    target: Results | None,
    out_dtype: OutDtype,
    precision: str | torch.dtype | None,
    accumulate: torch.dtype | None,
    functions: tuple[Function | None, ...],
    operands: Mapping[str, Any] | None,
    indices: Mapping[str, Label] | None,
    algebra: Any,
    deterministic: bool,
    workspace_limit: int | None,
    backend: str,
    tune: str | None,
    specialize: str,
) -> Options:
    """A call's options, read; types are those of `out` where they are not given."""
    check_limit(workspace_limit)
    check_tune(tune)
    check_specialize(specialize)
    if out_dtype is None and target is not None:
        out_dtype = tuple(one.dtype for one in target) if isinstance(target, tuple) else target.dtype
    return Options(
        out_dtype, precision, accumulate, functions,
        read_operands(operands) if operands else {}, read_indices(indices) if indices else {},
        None if algebra == "plus_times" else find(algebra),
        deterministic, workspace_limit, backend, tune, specialize,
    )  # fmt: skip


def _find_plan(equation: Equation, a: torch.Tensor, b: torch.Tensor, options: Options) -> Plan:
    """The plan for this request, remembered by everything it depends on."""
    notation_key = _notation_key(equation)
    signature, asked = call_signature(a, b), options.key()
    key = (notation_key, signature, *asked, generation()) if signature is not None and asked is not None else None
    known = _CALLS.get(key)
    if known is not None:
        found: Plan = known.plan
        return found
    request = resolved(_read(notation_key), str(notation_key), a, b, options)
    # Two ways to write one request, or a retraced function that turns out the same, share one plan.
    plan = _PLANS.get((request, generation()))
    if plan is None:
        plan = Plan(request)
        _PLANS.put((request, generation()), plan)
    if key is not None:
        _CALLS.put(key, KnownCall(plan))
    return plan


def _notation_key(equation: Equation) -> str | Notation:
    """Text as it is, sequences of labels as a `Notation`: either can be looked up."""
    if isinstance(equation, str):
        return equation
    if not isinstance(equation, Iterable):
        raise NotationError(f"an equation is text or three sequences of labels, not {type(equation).__name__}")
    terms = tuple(equation)
    if len(terms) != 3:
        raise NotationError(f"labels come as three sequences (modes_a, modes_b, modes_d), {len(terms)} are given")
    return from_sequences(*terms)


def _read(equation: str | Notation) -> Notation:
    notation = parse(equation) if isinstance(equation, str) else equation
    if len(notation.inputs) != 2:
        raise NotationError(f"contract takes two operands, '{notation}' names {len(notation.inputs)}: see weft.einsum")
    return notation


def _read_einsum(arguments: tuple[Any, ...]) -> tuple[Notation, tuple[Any, ...]]:
    """The text form or the interleaved one."""
    if not arguments:
        raise NotationError("einsum needs an equation and operands")
    if isinstance(arguments[0], str):
        return parse(arguments[0]), arguments[1:]
    terms, operands = arguments[1::2], arguments[0 : len(arguments) - len(arguments) % 2 : 2]
    if len(arguments) % 2:
        return from_sequences(*terms, arguments[-1]), operands
    return implicit_from_sequences(*terms), operands


def _describe_einsum(arguments: tuple[Any, ...]) -> str:
    text = [argument for argument in arguments[:1] if isinstance(argument, str)]
    arrays = [x for x in arguments if isinstance(x, torch.Tensor) or hasattr(x, "shape")]
    return describe_call("einsum", *text or ["interleaved"], **{f"operand {i}": x for i, x in enumerate(arrays)})


@lru_cache
def _one(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.ones((), dtype=dtype, device=device)
