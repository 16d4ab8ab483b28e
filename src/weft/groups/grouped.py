"""`grouped`: many contractions of one equation, of any extents, in one launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from weft.api.contract import contract
from weft.api.keywords import Equation, signed
from weft.api.lookup import read_notation
from weft.api.options import read_options, resolved
from weft.base.arrays import as_result, as_tensor, like
from weft.base.describe import describe_call
from weft.base.figures import si
from weft.base.notebook import folded, table
from weft.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError, call_context
from weft.groups.gradient import with_gradient
from weft.groups.launch import launch_of
from weft.groups.operands import Stack, read_pairs, stack_of
from weft.groups.results import Results
from weft.plans.derivatives import asked as asked_of
from weft.plans.keywords import check_flag, refuse_unknown
from weft.spec import Notation
from weft.spec.dtypes import dtype_name
from weft.spec.group import SIDES, group_form, group_table
from weft.spec.notation import term_text


@signed("grouped", ("equation", "pairs"))
def grouped(
    equation: Equation, pairs: Iterable[tuple[Any, Any]], *, accumulate_into: bool = False, **keywords: Any
) -> list[Any]:
    """Contract every pair of a list by one equation, in one launch: ``[contract(equation, a, b) for a, b in pairs]``.

    `equation`: as for `contract`, without ``...``. `pairs`: tensors whose extents may differ from pair to pair; their
    types and devices are one. `out`: a list of places for the results, of any strides, no two of which overlap one
    another or an operand (this is not checked); with `accumulate_into` sums are added to what is there. `a_fn`, `b_fn`,
    `epilogue`: functions of a value, fused; they take no operands here. `out_dtype`, `precision`, `accumulate` and
    `backend` as for `contract`.

    Where all pairs are alike and lie evenly they are one contraction with a batch mode. Types that no kernel for groups
    takes are contracted one by one on the CPU (half precision, integers); on a GPU they are an `UnsupportedError`.
    Gradients of plain products are groups, too; with functions, broadcast extents or modes of one operand alone they
    are found pair by pair.

    Returns a list of results of the kind that the first operand is; it is empty where `pairs` is. Raises what
    `contract` raises, with the pair named by its place, and `ArgumentError` for what is no list of pairs. To call the
    same group often see `plan_grouped`.

    >>> import torch, weft
    >>> pairs = [(torch.ones(n, n), torch.ones(n, 2)) for n in (1, 3)]
    >>> [tuple(x.shape) for x in weft.grouped("mk,kn->mn", pairs)]
    [(1, 2), (3, 2)]
    """
    with call_context(lambda: describe_call("grouped", equation)):
        refuse_unknown("grouped", keywords)
        a, b = read_pairs(pairs)
        if not a:
            read_notation(equation)
            return []
        out = keywords.get("out")
        if asked_of(*a, *b):
            if out is not None:
                raise UnsupportedError("a group whose operands require gradients makes its results: leave out out")
            x, y = ([as_tensor(f"operand of pair {at}", one) for at, one in enumerate(side)] for side in (a, b))
            return with_gradient(grouped, read_notation(equation), x, y, _given(keywords))
        results = GroupedPlan(equation, a, b, accumulate_into, keywords)()
        return list(out) if out is not None else [like(a[0], result) for result in results]


def _given(keywords: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in keywords.items() if name != "out" and value is not None}


@signed("plan_grouped", ("equation", "pairs"))
def plan_grouped(
    equation: Equation, pairs: Iterable[tuple[Any, Any]], *, accumulate_into: bool = False, **keywords: Any
) -> GroupedPlan:
    """Plan a group once and call it often: its addresses, extents and strides stay in the device's memory.

    Arguments and errors as for `grouped`. Called without arguments the plan contracts the same tensors again, whatever
    values they hold then; called with other pairs of the same extents and strides it takes their addresses. Tensors
    that a call reads or writes are the caller's: they must not be changed while it runs.

    >>> import torch, weft
    >>> pairs = [(torch.ones(n, n), torch.ones(n, 2)) for n in (1, 3)]
    >>> plan = weft.plan_grouped("mk,kn->mn", pairs)
    >>> plan()[1][0]
    tensor([3., 3.])
    """
    with call_context(lambda: describe_call("plan_grouped", equation)):
        refuse_unknown("plan_grouped", keywords)
        a, b = read_pairs(pairs)
        if not a:
            raise ShapeError("a group of no pairs has no plan; weft.grouped returns an empty list")
        return GroupedPlan(equation, a, b, accumulate_into, keywords)


class GroupedPlan:
    """A group whose tables are made; see `plan_grouped`."""

    def __init__(
        self, equation: Equation, a: Sequence[Any], b: Sequence[Any], accumulate_into: bool, keywords: dict[str, Any]
    ) -> None:
        self._notation = read_notation(equation)
        form = group_form(self._notation)
        self._add = check_flag("accumulate_into", accumulate_into)
        if self._add and keywords.get("out") is None:
            raise ArgumentError("accumulate_into adds to what `out` holds: pass out")
        self._given = x, y = self._read(a, b)
        if x.device != y.device:
            raise UnsupportedError(f"a of pair 0 is on {x.device}, b on {y.device}")
        self._out = None if keywords.get("out") is None else self._places(keywords["out"])
        strides = None if self._out is None else self._out.strides
        self._table, self.shapes = group_table(form, (x.shapes, y.shapes), (x.strides, y.strides), strides)
        self._check_places()
        self._keywords = _given(keywords)
        target = None if self._out is None else self._out.tensors[0]
        options = read_options("grouped", keywords, target)
        self._request = resolved(self._notation, str(equation), x.tensors[0], y.tensors[0], options)
        if self._request.outputs is not None:
            raise UnsupportedError("a group's epilogue returns one value, no tuple")
        self.dtype = self._request.d_dtype
        if self._out is not None and self._out.dtype != self.dtype:
            raise DTypeError(f"out has {dtype_name(self._out.dtype)}, out_dtype says {dtype_name(self.dtype)}")
        self._ends = np.concatenate([[0], np.cumsum(self.shapes.prod(1))])
        self._start(x, y, self._out)
        self._launch = self._made()

    def __call__(
        self, pairs: Iterable[tuple[Any, Any]] | None = None, out: Sequence[Any] | None = None
    ) -> Results | list[torch.Tensor]:
        """Contract the pairs of the plan, or others of the same extents, strides, types and device.

        Returns the results in a sequence, each of which is a view of one tensor, or `out`.
        """
        with call_context(lambda: describe_call("a grouped plan's call", str(self._notation))):
            if pairs is not None or out is not None:
                self._take(pairs, out)
            x, y = self._given
            if self._out is not None:
                self._launch(x.tensors[0], y.tensors[0], self._out.tensors[0])
                return self._out.tensors
            buffer = torch.empty(int(self._ends[-1]), dtype=self.dtype, device=x.device)
            self._launch(x.tensors[0], y.tensors[0], buffer)
            return Results(buffer, self.shapes, self._ends)

    def explain(self) -> str:
        """How many pairs, which extents, and what computes them."""
        sizes = self._table.sizes
        spans = [
            f"{side} {low}" if low == high else f"{side} {low} to {high}"
            for side, low, high in zip(SIDES, sizes.min(0), sizes.max(0), strict=True)
        ]
        flops = 2 * float(sizes.astype(float).prod(1).sum())
        return (
            f"{len(sizes)} pairs of '{self._notation}', {dtype_name(self.dtype)}; {', '.join(spans)}\n"
            f"{flops:.4g} flops; {self._launch}"
        )

    def __repr__(self) -> str:
        return f"GroupedPlan({str(self._notation)!r}, {len(self._table.sizes)} pairs, {dtype_name(self.dtype)})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        flops = 2 * float(self._table.sizes.astype(float).prod(1).sum())
        rows = [("pairs", len(self._table.sizes)), ("equation", self._notation), ("work", si(flops, "flop"))]
        return table(rows) + folded("explain()", self.explain())

    def _read(self, a: Sequence[Any], b: Sequence[Any]) -> tuple[Stack, Stack]:
        terms = self._notation.inputs
        return stack_of("a", a, terms[0]), stack_of("b", b, terms[1])

    def _places(self, out: Sequence[Any]) -> Stack:
        if not isinstance(out, (list, tuple)) or len(out) != len(self._given[0].tensors):
            count = len(out) if isinstance(out, (list, tuple)) else type(out).__name__
            raise ShapeError(f"out is a list of a place for each pair: {len(self._given[0].tensors)}, not {count}")
        places = stack_of("out", [as_result(one, f"out[{at}]") for at, one in enumerate(out)], self._notation.output)
        if places.device != self._given[0].device:
            raise UnsupportedError(f"out is on {places.device}, the operands on {self._given[0].device}")
        return places

    def _check_places(self) -> None:
        if self._out is None:
            return
        wrong = np.flatnonzero((self._out.shapes != self.shapes).any(1))
        if wrong.size:
            at = int(wrong[0])
            raise ShapeError(
                f"out of pair {at} has shape {tuple(self._out.shapes[at])}, '{term_text(self._notation.output)}' "
                f"{tuple(self.shapes[at])}"
            )
        self_overlapping = ((self._out.strides == 0) & (self._out.shapes > 1)).any(1)
        if self_overlapping.any():
            raise ShapeError(f"out of pair {int(np.flatnonzero(self_overlapping)[0])} is expanded: it overlaps itself")

    def _start(self, a: Stack, b: Stack, out: Stack | None) -> None:
        """Where tensors begin, into the table."""
        self._table.rows[:, 0], self._table.rows[:, 1] = a.starts(), b.starts()
        self._table.outputs[:, 0] = self._ends[:-1] if out is None else out.starts()

    def _take(self, pairs: Iterable[tuple[Any, Any]] | None, out: Sequence[Any] | None) -> None:
        """Other tensors that lie as the first ones did."""
        given = self._given if pairs is None else self._read(*read_pairs(pairs))
        if out is not None and self._out is None:
            raise ArgumentError("the plan makes its results: plan with out to write to places of your own")
        places = self._out if out is None else self._places(out)
        for name, old, new in (("a", self._given[0], given[0]), ("b", self._given[1], given[1]),
                               ("out", self._out, places)):  # fmt: skip
            if old is None or new is None or old is new:
                continue
            if len(old.tensors) != len(new.tensors):
                raise ShapeError(f"the plan is of {len(old.tensors)} pairs, {len(new.tensors)} are given")
            if old.dtype != new.dtype or old.device != new.device:
                raise DTypeError(
                    f"{name}: the plan is of {dtype_name(old.dtype)} on {old.device}, "
                    f"given are {dtype_name(new.dtype)} on {new.device}"
                )
            wrong = np.flatnonzero((old.shapes != new.shapes).any(1) | (old.strides != new.strides).any(1))
            if wrong.size:
                raise ShapeError(f"{name} of pair {int(wrong[0])} lies otherwise than the plan's: make another plan")
        self._given, self._out = given, places
        self._start(*given, places)
        if hasattr(self._launch, "move"):
            self._launch.move(self._table)
        else:
            self._launch = self._made()

    def _made(self) -> Any:
        found = self._batched() or launch_of(self._table, self._request, self._given[1].dtype, self._add)
        return found or _Described(self._one_by_one, "pairs contracted one by one")

    def _batched(self) -> Any | None:
        """One contraction with a batch mode, where the pairs are alike and lie evenly."""
        stacks = (*self._given, *((self._out,) if self._out is not None else ()))
        if self._add or len(stacks[0].tensors) < 2 or not self.shapes[0].all():
            return None
        steps = [stack.even for stack in stacks]
        if None in steps or not all(stack.shapes[0].all() for stack in stacks):
            return None
        if self._out is not None and steps[2] == 0:
            return None
        views = [stack.stacked(step) for stack, step in zip(stacks, steps, strict=True) if step is not None]
        every = object()
        terms = tuple((every, *term) for term in (*self._notation.inputs, self._notation.output))
        shape = (len(self.shapes), *self.shapes[0].tolist())

        def run(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> None:
            target = views[2] if len(views) == 3 else d.view(shape)
            contract(terms, views[0], views[1], out=target, **self._keywords)

        return _Described(run, "one contraction with a batch mode")

    def _one_by_one(self, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> None:
        x, y = self._given
        places = self._out.tensors if self._out is not None else Results(d, self.shapes, self._ends)
        for left, right, place in zip(x.tensors, y.tensors, places, strict=True):
            contract(_terms(self._notation), left, right, c=place if self._add else None, out=place, **self._keywords)


class _Described:
    """A launch that says what it is."""

    def __init__(self, run: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None], text: str) -> None:
        self._run, self._text = run, text

    def __call__(self, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> None:
        self._run(a, b, d)

    def __str__(self) -> str:
        return self._text


def _terms(notation: Notation) -> tuple[Any, ...]:
    return (*notation.inputs, notation.output)
