"""Operators of tensor networks: `chain`, a tensor between two matrices, and sums of products of operators, applied to a
state without making the operator.

    Y[l', s', r'] = sum over t of L_t[l', l] O_t[s', s] R_t[r', r] X[l, s, r]

Terms are stacked, and the sum over t becomes part of a contraction's own:

    V[t, l, s, r'] = R[t, r', r] X[l, s, r]
    W[t, l, s', r'] = O[t, s', s] V[t, l, s, r']
    Y[l', s', r'] += L[t, l', l] W[t, l, s', r']      summed over t and l at once, onto Y in place

An operator that is left out is the identity: its step falls away. Terms of a single operator are added up first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain as chain_of
from typing import Any, NamedTuple, overload

import torch

from weft.api.einsum import einsum
from weft.api.entry import contraction
from weft.api.keywords import Equation, cast_by_autocast, signed
from weft.base.arguments import describe_call
from weft.base.arrays import Array, any_autocast, as_result, as_tensor, returned
from weft.base.dispatch import outside_graphs
from weft.base.figures import counted
from weft.base.memory import new_tensor
from weft.engine.ways import asked as asked_of
from weft.errors import ArgumentError, DTypeError, NotationError, ShapeError, UnsupportedError, call_context
from weft.planner.options import check_limit
from weft.plans.intermediates import WIDER, is_of_halves, step_options
from weft.plans.keywords import read_options, refuse_unknown
from weft.spec import parse
from weft.spec.arguments import read_sequence
from weft.spec.dtypes import FP8, dtype_name, storage_type
from weft.spec.memory import share_memory
from weft.spec.notation import Term, expand, from_sequences, terms_of

NAMES = ("L", "O", "R")
LABELS = (("l", "L"), ("s", "S"), ("r", "R"))  # of the state and of the result, mode by mode
ROOM = 32 << 20  # bytes of intermediates that are always allowed, where two states take less


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

    It is what `weft.einsum` makes of it: two contractions along the cheaper path, and intermediates of float16 in
    float32.

    Returns the kind of array that `g` is. Raises what `contract` raises, and `NotationError` for what is no chain.

    >>> import torch, weft
    >>> x, y, z = torch.ones(2, 3), torch.ones(4, 3, 5), torch.ones(5, 6)
    >>> weft.chain("pq,bqc,cr->bpr", x, y, z).shape
    torch.Size([4, 2, 6])
    """
    with call_context(lambda: describe_call("chain", equation, g=g, x=x, m=m, out=keywords.get("out"))):
        tensors = [as_tensor(name, value) for name, value in (("g", g), ("x", x), ("m", m))]
        for tensor in tensors:
            if tensor.dtype in FP8:
                kind = dtype_name(tensor.dtype)
                raise DTypeError(f"a chain with {kind}: the product of two operands does not fit it; convert them")
        if not isinstance(equation, str):
            notation = from_sequences(*terms_of(equation))
            equation = (*notation.inputs, notation.output)
        *terms, output = _terms(equation, tuple([tensor.dim() for tensor in tensors]))
        refuse_unknown("chain", keywords)
        out = keywords.pop("out", None)
        if out is not None:
            target = keywords["out"] = as_result(out)
            if any(share_memory(target, tensor) for tensor in tensors):
                raise ShapeError("out overlaps an operand in memory: the result would overwrite what is to be read")
        if isinstance(equation, str):
            result = einsum(equation, *tensors, **keywords)
        else:
            result = einsum(*chain_of.from_iterable(zip(tensors, terms, strict=True)), output, **keywords)
    return returned(g, out, result, False)


@lru_cache(maxsize=256)
def _terms(equation: Any, ranks: tuple[int, ...]) -> tuple[Term, ...]:
    """The terms of a chain of operands of these ranks, the result's last; `NotationError` names the label which no
    chain has."""
    notation = parse(equation) if isinstance(equation, str) else from_sequences(*equation)
    if len(notation.inputs) != 3:
        raise NotationError(f"a chain has three operands, '{notation}' names {len(notation.inputs)}")
    notation = expand(notation, ranks)
    first, middle, last = notation.inputs
    for label in notation.output:
        if (label in first or label in last) and (label in middle or (label in first and label in last)):
            raise NotationError(f"label '{label}' is in two operands and the result of '{notation}': no chain has it")
    kept = {label for label in notation.output if label not in first and label not in last}
    summed = [label for label in (*first, *last) if label not in notation.output]
    for label in (*summed, *middle):
        if (label in first) + (label in middle) + (label in last) + (label in kept) != 2:
            raise NotationError(f"label '{label}' of '{notation}' is neither summed between neighbours nor kept")
    return (*notation.inputs, notation.output)


# -- sums of operators -------------------------------------------------------------------------------------------------


class TermBlock(NamedTuple):
    """Terms that have the same operators, stacked along t: None where they have none."""

    operators: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]
    terms: int


class OperatorSum:
    """A sum of terms (L, O, R) that is applied to many states.

    `terms`: triples of square or oblong matrices ``L`` (l', l), ``O`` (s', s), ``R`` (r', r), each None for the
    identity; extents, type and device are one for all terms. `workspace_limit`: most bytes of intermediates, by default
    what two states take, or 32 MiB where that is more: terms are contracted in blocks that fit, one term at least.
    Further keywords (`precision`, `accumulate`, `backend`, `specialize`, ...) are those of `weft.contract`.

    Raises `ArgumentError`, `ShapeError`, `DTypeError` or `UnsupportedError` that names the term by its place.
    """

    def __init__(self, terms: Iterable[Sequence[Any]], *, workspace_limit: int | None = None, **keywords: Any) -> None:
        with call_context(lambda: describe_call("operator_sum", "terms")):
            self._options, self._precision = read_options("OperatorSum", keywords), keywords.get("precision")
            check_limit(workspace_limit)
            self._limit = workspace_limit
            read, first = _read(terms)
            self.count = len(read)
            self.extents = tuple([None if one is None else tuple(one[1].shape) for one in first])
            some = next((one[1] for one in first if one is not None), None)
            self.dtype = None if some is None else some.dtype
            self.device = None if some is None else some.device
            self._blocks = [_stacked(read, pattern) for pattern in dict.fromkeys(map(_pattern, read))]

    def __repr__(self) -> str:
        dtype = "identities" if self.dtype is None else dtype_name(self.dtype)
        return f"OperatorSum({self.count} terms, {dtype})"

    @overload
    def __call__(self, state: Array, *, out: Any = None) -> Array: ...
    @overload
    def __call__(self, state: Any, *, out: Any = None) -> Any: ...
    @outside_graphs
    def __call__(self, state: Any, *, out: Any = None) -> Any:
        """Apply it to `state` (l, s, r). Returns the result (l', s', r'), or `out`, of the state's kind of array."""
        with call_context(lambda: describe_call("operator_sum", f"{self.count} terms", state=state, out=out)):
            x = as_tensor("state", state).resolve_conj().resolve_neg()
            shape = self._check(x)
            target = None if out is None else as_result(out)
            if target is not None and tuple(target.shape) != shape:
                raise ShapeError(f"out has shape {tuple(target.shape)}, the result {shape}")
            if target is not None and share_memory(target, x):
                raise ShapeError("out overlaps the state in memory: the result would overwrite what is to be read")
            blocks = self._blocks
            if any_autocast():
                x, blocks = self._cast(x), [TermBlock(tuple(map(self._cast, each)), terms) for each, terms in blocks]
            derived = asked_of(x, *(stack for block in blocks for stack in block.operators if stack is not None))
            if derived and target is not None:
                raise UnsupportedError("out is not for operands that require gradients: leave it out")
            parts = [part for block in blocks for part in self._parts(block, x)]
            return returned(state, out, self._summed(parts, x, shape, target, derived), False)

    def _cast(self, tensor: Any) -> Any:
        """The state or a stack of operators as autocast has it."""
        return None if tensor is None else cast_by_autocast([tensor], self._precision)[0]

    def _summed(
        self, parts: Sequence[TermBlock], x: torch.Tensor, shape: tuple[int, ...], target: torch.Tensor | None,
        derived: bool,
    ) -> torch.Tensor:  # fmt: skip
        """The result, in `target` where there is one; of new tensors alone where it is `derived`. Several parts of half
        precision are added up in float32."""
        kept = x.dtype if target is None else target.dtype
        if len(parts) > 1:
            kept = WIDER.get(kept, kept)
        place = target if target is not None and target.dtype == kept else None
        if place is None and not derived:
            place = new_tensor(shape, kept, x.device)
        total: torch.Tensor | None = None
        for part in parts:
            total = self._added(part, x, total, place, kept)
        if total is None:
            total = x.new_zeros(shape)
        if target is None:
            return total.to(x.dtype)
        return target if total is target else target.copy_(total)

    def _check(self, x: torch.Tensor) -> tuple[int, ...]:
        if x.dim() != 3:
            raise ShapeError(f"the state has three modes (l, s, r), this one {x.dim()}")
        _check_type(x.dtype)
        if self.dtype not in (None, x.dtype):
            raise DTypeError(f"the state is {dtype_name(x.dtype)}, the terms are {dtype_name(self.dtype)}")
        if self.device not in (None, x.device):
            raise UnsupportedError(f"the state is on {x.device}, the terms are on {self.device}")
        for name, extent, own in zip(NAMES, self.extents, x.shape, strict=True):
            if extent is not None and extent[1] != own:
                raise ShapeError(f"{name} of the terms is {extent[0]} x {extent[1]}, the state's mode has extent {own}")
        return tuple(own if extent is None else extent[0] for extent, own in zip(self.extents, x.shape, strict=True))

    def _parts(self, block: TermBlock, x: torch.Tensor) -> Iterable[TermBlock]:
        """As many terms at once as the workspace has room for."""
        one = 2 * x.numel() * (4 if is_of_halves([x.dtype]) else x.element_size())
        for extent in self.extents:
            one = one if extent is None else max(one, one * extent[0] // max(extent[1], 1))
        limit = max(one, ROOM) if self._limit is None else self._limit
        many = max(1, min(block.terms, limit // max(one, 1)))
        for start in range(0, block.terms, many):
            cut = tuple(None if stack is None else stack[start : start + many] for stack in block.operators)
            yield TermBlock(cut, min(many, block.terms - start))  # type: ignore[arg-type]

    def _added(
        self, block: TermBlock, x: torch.Tensor, total: torch.Tensor | None, out: torch.Tensor | None,
        kept: torch.dtype,
    ) -> torch.Tensor:  # fmt: skip
        """The sum of a block's terms applied to `x`, and `total`, that of those before: in `out`, or new, as `kept`."""
        given = [side for side in (2, 1, 0) if block.operators[side] is not None]
        if not given:
            found = x.to(kept) * block.terms
            found = found if total is None else found + total
            return found if out is None else out.copy_(found)
        labels, value, halves = [low for low, _ in LABELS], x, is_of_halves([x.dtype])
        for side in given:
            low, high = LABELS[side]
            here = tuple(labels) if side == given[0] else ("t", *labels)
            labels[side] = high
            ends = side == given[-1]
            terms = (("t", high, low), here, tuple(labels) if ends else ("t", *labels))
            operator = block.operators[side]
            assert operator is not None
            options = step_options(self._options, operator.dtype, value.dtype, halves)
            if ends or halves:
                options = replace(options, out_dtype=kept if ends else torch.float32)
            c, place = (total, out) if ends else (None, None)
            value = contraction(terms, operator, value, options, c, out=place)
        return value


@overload
def operator_sum(
    terms: Iterable[Sequence[Any]], state: Array, *, out: Any = None, workspace_limit: int | None = None,
    **keywords: Any,
) -> Array: ...
@overload
def operator_sum(
    terms: Iterable[Sequence[Any]], state: Any, *, out: Any = None, workspace_limit: int | None = None, **keywords: Any
) -> Any: ...
@outside_graphs
def operator_sum(
    terms: Iterable[Sequence[Any]], state: Any, *, out: Any = None, workspace_limit: int | None = None, **keywords: Any
) -> Any:
    """Apply ``sum_t L_t (x) O_t (x) R_t`` to a state without making the operator.

    Arguments and errors as for `OperatorSum`, which keeps the terms stacked for many states. `state`: (l, s, r).
    `out`: where the result goes, which is not the state. Returns (l', s', r') as the kind of array that `state` is.

    >>> import torch, weft
    >>> z, x = torch.tensor([[1., 0.], [0., -1.]]), torch.ones(3, 2, 3)
    >>> weft.operator_sum([(None, z, None), (torch.eye(3), None, torch.eye(3))], x)[0]
    tensor([[2., 2., 2.],
            [0., 0., 0.]])
    """
    with call_context(lambda: describe_call("operator_sum", "terms")):
        refuse_unknown("operator_sum", keywords)
    return OperatorSum(terms, workspace_limit=workspace_limit, **keywords)(state, out=out)


_Triple = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


def _read(terms: Iterable[Sequence[Any]]) -> tuple[list[_Triple], list[tuple[int, torch.Tensor] | None]]:
    """The terms as tensors, alike in type, device and extents; and the first of each side, with its place."""
    read: list[_Triple] = []
    first: list[tuple[int, torch.Tensor] | None] = [None, None, None]
    any_tensor: torch.Tensor | None = None
    for at, term in enumerate(read_sequence("terms", terms)):
        if not isinstance(term, (tuple, list)) or len(term) != 3:
            raise ArgumentError(f"term {at} is a triple (L, O, R), each a matrix or None")
        found = []
        for side, (name, value) in enumerate(zip(NAMES, term, strict=True)):
            tensor = None if value is None else as_tensor(f"{name} of term {at}", value).resolve_conj().resolve_neg()
            found.append(tensor)
            if tensor is None:
                continue
            any_tensor = tensor if any_tensor is None else any_tensor
            if tensor.dim() != 2:
                raise ShapeError(f"{name} of term {at} has {counted(tensor.dim(), 'dimension')}: it is a matrix")
            if tensor.dtype != any_tensor.dtype:
                before = dtype_name(any_tensor.dtype)
                raise DTypeError(f"{name} of term {at} is {dtype_name(tensor.dtype)}, terms before are {before}")
            if tensor.device != any_tensor.device:
                there = any_tensor.device
                raise UnsupportedError(f"{name} of term {at} is on {tensor.device}, terms before on {there}")
            known = first[side]
            if known is None:
                first[side] = (at, tensor)
            elif known[1].shape != tensor.shape:
                raise ShapeError(
                    f"{name} of term {at} is {tuple(tensor.shape)}, that of term {known[0]} {tuple(known[1].shape)}"
                )
        read.append(tuple(found))  # type: ignore[arg-type]
    if any_tensor is not None:
        _check_type(any_tensor.dtype)
    for side, (name, known) in enumerate(zip(NAMES, first, strict=True)):
        if known is not None and known[1].shape[0] != known[1].shape[1]:
            missing = next((at for at, term in enumerate(read) if term[side] is None), None)
            if missing is not None:
                raise ShapeError(f"{name} of term {missing} is the identity, but that of term {known[0]} is oblong")
    return read, first


def _check_type(dtype: torch.dtype) -> None:
    """Raise for a type that has no sums."""
    if storage_type(dtype, dtype) in FP8:
        raise DTypeError(f"sums of operators do not fit {dtype_name(dtype)}: convert the terms and the state")


def _pattern(term: _Triple) -> tuple[bool, ...]:
    return tuple(one is not None for one in term)


def _stacked(terms: list[_Triple], pattern: tuple[bool, ...]) -> TermBlock:
    """The terms of one pattern; operators that stand alone in theirs are added up."""
    chosen = [term for term in terms if _pattern(term) == pattern]
    stacks = [torch.stack([term[side] for term in chosen]) if there else None for side, there in enumerate(pattern)]  # type: ignore[misc]
    if sum(pattern) == 1:
        stacks = [None if stack is None else stack.sum(0, keepdim=True) for stack in stacks]
        return TermBlock(tuple(stacks), 1)  # type: ignore[arg-type]
    return TermBlock(tuple(stacks), len(chosen))  # type: ignore[arg-type]
