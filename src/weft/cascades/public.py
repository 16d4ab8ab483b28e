"""`cascade` and `plan_cascade`: a function with reductions behind a contraction, and a second contraction behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from weft.api.keywords import AUTOCAST, Equation, autocast_type, signed
from weft.api.lookup import as_key, said_options
from weft.base.arguments import describe_many
from weft.base.arrays import as_tensor, outside_transforms
from weft.base.dispatch import as_operation, is_dynamo_compiling, is_traced, outside_graphs
from weft.cascades.described import CascadeNotation, described
from weft.engine.calls import CALLS
from weft.errors import DTypeError, UnsupportedError, call_context
from weft.fn.fingerprint import fingerprint
from weft.planner.options import Options
from weft.planner.target import resolve_backend
from weft.plans.checks import reject_gradient
from weft.plans.keywords import read_options
from weft.spec.arguments import read_real
from weft.spec.dtypes import dtype_name

if TYPE_CHECKING:
    from weft.cascades.differentiable import Terms
    from weft.cascades.plan import CascadePlan


@signed("cascade", ("equation", "a", "b", "c"))
def cascade(equation: Equation, a: Any, b: Any, c: Any = None, **keywords: Any) -> Any:
    """A contraction, a function that may reduce, and a second contraction: nothing of the size of S is in memory.

    ``weft.cascade("bqhd,bkhd->bqhk, bqhk,bkhe->bqhe", q, k, v, between=lambda s: weft.softmax(s, "k"))`` is attention::

        S = alpha * sum over d of A * B,    P = between(S),    D = sum over k of P * C

    * `equation`: two contractions in einsum's words, the second beginning with S, or the first alone; or the labels of
      A, B, S, or of A, B, S, C, D, as sequences. Any modes; `a`, `b` and `c` have one floating type.
    * `between`: a Python function of torch operations, of one element of S, in the type that sums have (float32 for
      halves). Beside what every fused function may do it reduces over modes of S, by `weft.softmax`, `weft.logsumexp`,
      `weft.sum`, `weft.mean`, `weft.amax`, `weft.amin`, `weft.argmax`, `weft.argmin`, `weft.log_softmax`. Default None:
      S itself.
    * `operands`, `indices`: tensors and coordinates for its further parameters, with any modes of S, as in `contract`.
    * `algebra`: that of the second contraction, a name or a `weft.Algebra`; ``D = reduce over k of combine(P, C)``.
    * `alpha`: a number, the factor of S, without a gradient. `out_dtype`: D's type, by default the operands'.
      `precision`, `accumulate`: as in `contract`. `workspace_limit`: the most bytes for a block of S.
    * `specialize`: whether compiled loops serve on a CPU, where S has more than 2^17 elements, and on a Hopper GPU a
      kernel, where S is a matrix for each index of a batch, of 2^24 elements and more: ``"auto"``, once calls have lost
      what compiling takes; ``"now"``, the default of `plan_cascade`; ``"never"``.
    * `backend`: ``"auto"``; ``"triton"``: that kernel from the first call on, whatever the GPU and the size;
      ``"reference"``: all of S, in float64.

    `between` returns P, or a tuple of P and further results; without a second contraction all that it returns are
    results. D has the labels that the equation says. Every other result has the modes of S that its value has: a row's
    `logsumexp` over k has those of S but k, in S's order, in the type it is computed in; one with all modes has D's.

    A row whose elements are all -inf, one that is masked out, has softmax 0 and logsumexp -inf. Blocks of S that are
    masked out by their coordinates are never computed. Gradients of `a`, `b`, `c` and of operands make S again, by
    kernels or blocks, and are the same from run to run. With ``create_graph=True`` they have gradients, of all of S at
    once. `torch.func.vmap` adds a mode; `torch.func.grad` takes first gradients, and forward mode is refused.

    Returns D, or the tuple of D and further results, as the kind of array that `a` is. Raises a `weft.WeftError`:
    `NotationError` for a reduction over a mode that S lacks, `FunctionError` for an operation that cannot be fused.

    >>> import torch, weft
    >>> q, k, v = torch.randn(3, 5, 8).unbind()
    >>> d = weft.cascade("id,jd->ij, ij,je->ie", q, k, v,
    ...                  between=lambda s: weft.softmax(s, "j"))
    >>> torch.allclose(d, torch.softmax(q @ k.T, -1) @ v, atol=1e-5)
    True
    """
    if is_dynamo_compiling():
        return as_operation("cascade")(equation, a, b, c, keywords)
    given = (a, b) if c is None else (a, b, c)
    words, beside = _words(equation, keywords)
    known, place = CALLS.find(words, (*given, *beside))
    if known is not None and (found := known((*given, *beside))) is not None:
        return found
    if is_traced(given):
        return as_operation("traced cascade")(equation, a, b, c, keywords)
    with call_context(lambda: describe_many("cascade", equation, given)):
        plan, read = _planned("cascade", equation, given, keywords)
        return plan.answer(read, CALLS, place, (*given, *beside))


@signed("plan_cascade", ("equation", "a", "b", "c"), "CascadePlan")
@outside_graphs
def plan_cascade(equation: Equation, a: Any, b: Any, c: Any = None, **keywords: Any) -> CascadePlan:
    """Plan a cascade without running it; arguments and errors as for `cascade`.

    The plan is called with A, B and C of the same shapes and types, and with `operands`, a mapping from names to
    tensors. Its first call waits for its kernel. Where `between` computes something else by the time of a call, so does
    the call. Its `explain` says in which form it runs, and why in no better one.

    >>> import torch, weft
    >>> x, w = torch.randn(4, 8), torch.randn(16, 8)
    >>> plan = weft.plan_cascade("tk,vk->tv", x, w,
    ...                          between=lambda s: weft.logsumexp(s, "v"))
    >>> torch.allclose(plan(x, w), torch.logsumexp(x @ w.T, -1), atol=1e-5)
    True
    """
    given = (a, b) if c is None else (a, b, c)
    with call_context(lambda: describe_many("plan_cascade", equation, given)):
        return _planned("plan_cascade", equation, given, keywords)[0].followed(keywords.get("between"))


def _words(equation: Any, keywords: Mapping[str, Any]) -> tuple[Any, Sequence[Any]]:
    """All that a call says but for its tensors, and those of its operands; None for one that must be read."""
    text = equation if type(equation) is str else as_key(equation)
    options = dict(keywords)
    function, alpha = options.pop("between", None), options.pop("alpha", 1.0)
    said, beside = said_options(options) if options else ((), ())
    print_of = () if function is None else fingerprint(function)
    if text is None or said is None or print_of is None or type(alpha) not in (int, float):
        return None, ()
    return ("cascade", text, said, print_of, repr(alpha)), beside


def _planned(
    call: str, equation: Any, given: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[CascadePlan, list[torch.Tensor]]:
    """The plan of a call, and its A, B, C and operands."""
    options = read_options(call, keywords)
    function, factor = keywords.get("between"), keywords.get("alpha", 1.0)
    if isinstance(factor, torch.Tensor):
        reject_gradient("alpha", factor)
    alpha = read_real("alpha", factor)
    tensors = [as_tensor(name, value).resolve_neg() for name, value in zip("abc", given, strict=False)]
    wanted = autocast_type(tensors[0].device.type, tensors[0].dtype)
    if wanted is not None and call == "cascade":  # a plan is for tensors of the types that it is made of
        tensors = [each.to(wanted) if each.dtype in AUTOCAST else each for each in tensors]
    plan = planned(equation, tensors, options, function, alpha)
    return plan, [*tensors, *(options.tensors[name] for name in plan.said.operands)]


def planned(
    equation: Any, tensors: Sequence[torch.Tensor], options: Options, function: Any, alpha: float
) -> CascadePlan:
    """The plan of a call that is read, an earlier one's where all is the same."""
    from weft.cascades.plan import CascadePlan  # with all that runs it: with the first call, not with weft

    _check(tensors, options)
    said, text = options.said(), equation if isinstance(equation, str) else as_key(equation)
    print_of = () if function is None else fingerprint(function)
    given = [each.detach() for each in (*tensors, *options.tensors.values())]
    plan: CascadePlan | None = None
    place = None
    if said is not None and print_of is not None and text is not None:
        plan, place = CALLS.find(("plan of a cascade", text, said, print_of, repr(alpha)), given)
    if plan is None:
        with outside_transforms():
            plan = CascadePlan(described(equation, tensors, options, function), function, options, alpha, planned_of)
        CALLS.keep(place, given, plan)
    return plan


def planned_of(
    notation: CascadeNotation, terms: Terms, tensors: Sequence[torch.Tensor], options: Options, function: Any,
    alpha: float,
) -> CascadePlan:  # fmt: skip
    """The plan of a call with such labels, for A, B, C and operands in order, which have these terms."""
    count = len(notation.terms)
    named = {name: (modes, each) for (name, modes), each in zip(terms, tensors[count:], strict=True)}
    labels = (notation.a, notation.b, notation.s, notation.c, notation.d)
    equation = tuple(each for each in labels if each is not None)
    return planned(equation, tensors[:count], replace(options, operands=named), function, alpha)


def _check(tensors: Sequence[torch.Tensor], options: Options) -> None:
    """`DTypeError` and `UnsupportedError` for types or devices that differ, or that no cascade takes."""
    resolve_backend(options.backend, tensors[0].device)
    for name, tensor in zip("abc", tensors, strict=False):
        if tensor.dtype != tensors[0].dtype:
            raise DTypeError(
                f"a is {dtype_name(tensors[0].dtype)} and {name} {dtype_name(tensor.dtype)}: operands have one type"
            )
        if tensor.device != tensors[0].device:
            raise UnsupportedError(f"a is on {tensors[0].device} and {name} on {tensor.device}")
    if tensors[0].device.type not in ("cpu", "cuda"):
        raise UnsupportedError(f"a cascade runs on a CPU or a GPU, not on '{tensors[0].device}'")
    if not tensors[0].dtype.is_floating_point or tensors[0].dtype.itemsize < 2:
        raise DTypeError(f"a cascade takes float16, bfloat16, float32 and float64, not {dtype_name(tensors[0].dtype)}")
