"""`chain`: a tensor between two matrices, in one launch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain as chain_of
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import torch

from weft.api.autocast import cast_by_autocast
from weft.api.keywords import Equation, signed
from weft.base.arrays import Array, any_autocast, as_result, as_tensor, returned, written
from weft.base.describe import describe_call
from weft.base.dispatch import is_traced, outside_graphs
from weft.base.memory import new_tensor
from weft.engine.calls import CALLS, present
from weft.errors import DTypeError, NotationError, ShapeError, call_context
from weft.networks.public import einsum
from weft.planner.options import Options
from weft.planner.registry import triton_fault
from weft.planner.target import resolve_backend
from weft.plans.checks import check_storage
from weft.plans.derivatives import asked as asked_of
from weft.plans.keywords import read_options
from weft.plans.resolving import resolved
from weft.spec import Label, Layout, Notation, parse
from weft.spec.contraction import mode_extents
from weft.spec.dtypes import FP8, dtype_name
from weft.spec.memory import share_memory
from weft.spec.notation import expand, from_sequences, terms_of

if TYPE_CHECKING:
    from weft.gpu.chain.launch import ChainLaunch


class ChainRoles(NamedTuple):
    """Labels of a chain by role: G is (p, q), X is of b, q and c, M is (c, r), and Y of b, p and r."""

    b: tuple[Label, ...]
    p: tuple[Label, ...]
    q: tuple[Label, ...]
    c: tuple[Label, ...]
    r: tuple[Label, ...]


@overload
def chain(equation: Equation, g: Array, x: Any, m: Any, **keywords: Any) -> Array: ...
@overload
def chain(equation: Equation, g: Any, x: Any, m: Any, **keywords: Any) -> Any: ...
@signed("chain", ("equation", "g", "x", "m"))
@outside_graphs
def chain(equation: Any, g: Any, x: Any, m: Any, **keywords: Any) -> Any:
    """A tensor between two matrices: ``chain("pq,bqc,cr->bpr", g, x, m)``, the update of two sites of a tensor network.

    `equation`: text or four sequences of labels. The first and the last operand share labels with the middle one and
    the result alone. `out`: where the result goes. `out_dtype`, `precision`, `accumulate`, `backend`, `specialize` as
    for `contract`.

    On a GPU it is one launch where each of b, p, q, c, r is one mode (or none) and q has at most 128 indices: the
    product of the first two stays on the chip, and is as precise as it would be in memory. Otherwise, and on the CPU,
    it is what `weft.einsum` makes of it; so it is where a gradient is required, and from 80 million multiply-adds on in
    single or double precision without TF32, where two contractions are faster. Intermediates of float16 are in float32.

    Returns the kind of array that `g` is. Raises what `contract` raises, and `NotationError` for what is no chain.

    >>> import torch, weft
    >>> weft.chain("pq,bqc,cr->bpr", torch.ones(2, 3), torch.ones(4, 3, 5), torch.ones(5, 6)).shape
    torch.Size([4, 2, 6])
    """
    out = keywords.get("out")
    with call_context(lambda: describe_call("chain", equation, g=g, x=x, m=m, out=out)):
        target = None if out is None else as_result(out)
        if not isinstance(equation, str):
            equation = terms_of(equation)
        said = read_options("chain", keywords, target).said()
        words, given = present(("chain", equation, said), g, x, None, target, (m,))
        served, place = (None, None) if said is None else CALLS.find(words, given)
        tensors = [g, x, m]
        if served is None:
            tensors = [as_tensor(name, value).resolve_neg() for name, value in (("g", g), ("x", x), ("m", m))]
            if any_autocast():
                tensors = cast_by_autocast(tensors, keywords.get("precision"))
            for name, tensor in zip(("g", "x", "m"), tensors, strict=True):
                check_storage(name, tensor)
            served = _served(_read(equation), tensors, target, read_options("chain", keywords, target))
            if all(map(is_, tensors, (g, x, m))) and not any(map(torch.is_conj, tensors)):
                CALLS.keep(place, given, served)
        if target is not None and any(share_memory(target, tensor) for tensor in tensors):
            raise ShapeError("out overlaps an operand in memory: the result would overwrite what is to be read")
        if target is not None:
            keywords["out"] = target
        result = served(equation, tensors, keywords)
    return returned(g, out, result, False)


class OneLaunch(NamedTuple):
    """A chain as one launch of the kernel for chains."""

    launch: ChainLaunch
    shape: tuple[int, ...]
    dtype: torch.dtype

    def __call__(self, equation: Any, tensors: list[torch.Tensor], keywords: dict[str, Any]) -> torch.Tensor:
        g, x, m = tensors
        out: torch.Tensor | None = keywords.get("out")
        y = new_tensor(self.shape, self.dtype, g.device) if out is None else out
        self.launch(g, x, m, y)
        written((y,))
        return y


def _by_einsum(equation: Any, tensors: list[torch.Tensor], keywords: dict[str, Any]) -> Any:
    if isinstance(equation, str):
        return einsum(equation, *tensors, **keywords)
    *terms, output = equation
    return einsum(*chain_of.from_iterable(zip(tensors, terms, strict=True)), output, **keywords)


def _served(
    notation: Notation, tensors: list[torch.Tensor], out: torch.Tensor | None, options: Options
) -> OneLaunch | Callable[[Any, list[torch.Tensor], dict[str, Any]], Any]:
    """The kernel for chains, or `weft.einsum`, which serves a call. Raises for what is no chain."""
    for tensor in tensors:
        if tensor.dtype in FP8:
            kind = dtype_name(tensor.dtype)
            raise DTypeError(f"a chain with {kind}: the product of two operands does not fit it; convert them")
    notation = expand(notation, [tensor.dim() for tensor in tensors])
    roles, _ = roles_of(notation), mode_extents(notation, [tensor.shape for tensor in tensors])
    found = None
    if not (asked_of(*tensors) or is_traced(tensors)):  # the kernel has no derivative, and torch does not see it
        found = _in_one_launch(notation, roles, tensors, out, options)
    return found or _by_einsum


def roles_of(notation: Notation) -> ChainRoles:
    """Raises `NotationError` that names the label which no chain has."""
    first, middle, last = (tuple(dict.fromkeys(term)) for term in notation.inputs)
    found = ChainRoles(
        tuple(label for label in notation.output if label in middle and label not in first and label not in last),
        tuple(label for label in notation.output if label in first),
        tuple(label for label in first if label not in notation.output),
        tuple(label for label in last if label not in notation.output),
        tuple(label for label in notation.output if label in last),
    )
    for label in (*found.p, *found.r):
        if label in middle or (label in first and label in last):
            raise NotationError(f"label '{label}' is in two operands and the result of '{notation}': no chain has it")
    for label in (*found.q, *found.c, *middle):
        if (label in first) + (label in middle) + (label in last) + (label in found.b) != 2:
            raise NotationError(f"label '{label}' of '{notation}' is neither summed between neighbours nor kept")
    return found


def _read(equation: Any) -> Notation:
    notation = parse(equation) if isinstance(equation, str) else from_sequences(*equation)
    if len(notation.inputs) != 3:
        raise NotationError(f"a chain has three operands, '{notation}' names {len(notation.inputs)}")
    return notation


def _in_one_launch(
    notation: Notation, roles: ChainRoles, tensors: list[torch.Tensor], out: torch.Tensor | None, options: Options
) -> OneLaunch | None:
    """The launch of the kernel for chains; None where it does not serve."""
    if resolve_backend(options.backend, tensors[0].device) != "triton" or options.specialize == "library":
        return None
    if any(len(side) > 1 for side in roles) or len({tensor.dtype for tensor in tensors}) > 1:
        return None
    middle = tuple(label for label in notation.inputs[1] if label not in roles.q) + roles.p
    request = resolved(Notation(notation.inputs[:2], middle), str(notation), tensors[0], tensors[1], options)
    types = (request.a.dtype, request.d_dtype, request.arithmetic.accumulate)
    if any(not dtype.is_floating_point or dtype.itemsize < 2 for dtype in types):
        return None
    if triton_fault() is not None:
        return None
    from weft.gpu.chain.launch import ChainLaunch, Extents, fits, pays

    sizes = {label: extent for term, tensor in zip(notation.inputs, tensors, strict=True)
             for label, extent in zip(term, tensor.shape, strict=True)}  # fmt: skip
    extents = Extents(*(sizes[side[0]] if side else 1 for side in roles))
    repeated = any(len(set(term)) < len(term) for term in notation.inputs)
    if repeated or any(tensor.device != tensors[0].device for tensor in tensors):
        return None
    if not (fits(extents) and pays(extents, request.arithmetic)):
        return None
    wanted = tuple(sizes[label] for label in notation.output)
    y = out if out is not None else new_tensor(wanted, request.d_dtype, tensors[0].device)
    if tuple(y.shape) != wanted or any(s == 0 and n > 1 for s, n in zip(y.stride(), wanted, strict=True)):
        return None  # the contraction that follows says what is wrong
    sides = ((roles.p, roles.q), (roles.b, roles.q, roles.c), (roles.c, roles.r), (roles.b, roles.p, roles.r))
    layouts = []
    for term, tensor, order in zip((*notation.inputs, notation.output), (*tensors, y), sides, strict=True):
        steps = [tensor.stride(term.index(side[0])) if side else 0 for side in order]
        layouts.append(Layout((), tuple(steps), tensor.dtype, Layout.of(tensor).alignment))
    launch = ChainLaunch(extents, tuple(layouts), request.arithmetic, False, request.target)  # type: ignore[arg-type]
    return OneLaunch(launch, wanted, y.dtype)
