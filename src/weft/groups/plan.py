"""A group whose tables are made, called with tensors that have the layouts of those it was made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from weft.api.entry import contraction
from weft.base.arguments import describe_call
from weft.base.arrays import as_result, is_transforming, outside_transforms, written
from weft.base.dispatch import is_traced, outside_graphs
from weft.base.figures import counted, folded, given, si, table
from weft.base.kept import is_capturing
from weft.base.memory import new_tensor
from weft.engine.calls import CALLS_OF_LISTS, CallPlace, guards_of
from weft.engine.ways import asked_of_many, detached
from weft.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError, call_context
from weft.fn.trace import Watched
from weft.groups.gradient import USUAL, with_gradient
from weft.groups.launch import at_once, check_added, check_places, check_single, is_for_library, launch_of, one_by_one
from weft.groups.operands import Places, Stack, addresses_of, as_operands, read_pairs, stack_of, without_views
from weft.planner.options import Options
from weft.plans.resolving import resolved
from weft.spec import Notation
from weft.spec.dtypes import dtype_name
from weft.spec.group import SIDES, group_form, group_table
from weft.spec.notation import new_label, term_text


def contract_pairs(
    notation: Notation, operands: Sequence[Any], options: Options = USUAL, out: Any = None, add: bool = False
) -> Sequence[torch.Tensor]:
    """The results of a group, by the plan of an earlier one of tensors that are alike, else by a new one.

    Which way a call goes, and with it the graph of its gradients, follows from the call alone: a checkpoint makes it
    again and pairs what either saves.
    """
    plan, place = (None, None) if out is not None else _known(notation, operands, options)
    if plan is not None:
        return plan.again(operands)
    if is_traced(operands):
        return one_by_one(notation, operands, options, out, add)
    tensors = as_operands(operands)
    if asked_of_many(tensors):
        if out is not None:
            raise UnsupportedError("a group whose operands require gradients makes its results: leave out out")
        return with_gradient(contract_pairs, notation, tensors, options)
    plan = GroupedPlan(notation, operands, options, out, add)
    found = plan.run()
    if place is not None:
        plan.forget()
        CALLS_OF_LISTS.keep(place, operands, plan)
    return found


def _known(
    notation: Notation, operands: Sequence[Any], options: Options
) -> tuple[GroupedPlan | None, CallPlace | None]:
    """The plan of an earlier group, or where it is to be kept.

    A plan's tables are in the memory of one stream's device, where a copy waits for the kernel before it; a captured
    graph would read them after they changed.
    """
    said, stream = options.said(), None
    if getattr(operands[0], "is_cuda", False):
        if torch.cuda.is_current_stream_capturing():
            return None, None
        stream = torch._C._cuda_getCurrentRawStream(operands[0].get_device())
    return (None, None) if said is None else CALLS_OF_LISTS.find(("grouped", notation, said, stream), operands)


class GroupedPlan:
    """A group whose tables are made; see `plan_grouped`.

    `operands` come as one list: a, b of the first pair, a, b of the second, and so on.
    """

    def __init__(
        self, notation: Notation, operands: Sequence[Any], options: Options, out: Any = None, add: bool = False
    ) -> None:
        self._notation, form = notation, group_form(notation)
        self._add = check_added(add, out)
        self._turn = RLock()  # calls of one plan take turns: each tells the launch where its tensors begin
        x, y = self._read(operands)
        if x.device != y.device:
            raise UnsupportedError(f"a of pair 0 is on {x.device}, b on {y.device}")
        self._out = None if out is None else self._read_out(out)
        strides = None if self._out is None else self._out.strides
        self._table, self.shapes = group_table(form, (x.shapes, y.shapes), (x.strides, y.strides), strides)
        self._check_out()
        if self._out is not None and options.out_dtype is None:
            options = replace(options, out_dtype=self._out.dtype)
        self._options = options
        longest = int(self._table.sizes[:, SIDES.index("k")].max())
        self._request = resolved(notation, str(notation), x.tensors[0], y.tensors[0], options, longest)
        raw = self._request.raw
        self._watched = Watched(raw, self._request.again) if any(raw) else None
        if self._watched is not None:
            self._watched.changed()  # from here on
        check_single(self._request)
        self.dtype = self._request.d_dtype
        if self._out is not None and self._out.dtype != self.dtype:
            raise DTypeError(f"out has {dtype_name(self._out.dtype)}, out_dtype says {dtype_name(self.dtype)}")
        self._places = Places(self.shapes)
        self._launch: Any = None
        self._own: Any | None = None  # the launch of a kernel for groups, which may be moved
        self._apart = options.backend == "auto" and is_for_library(
            self._table, self._request, self._sides[1].dtype, self._add
        )
        self._begun: tuple[bytes, ...] = ()  # the addresses that it has in its tables
        self._start()

    @outside_graphs
    def __call__(
        self, pairs: Iterable[tuple[Any, Any]] | None = None, out: Sequence[Any] | None = None
    ) -> Sequence[torch.Tensor]:
        """Contract the pairs that the plan holds, or others of the same extents, strides, types and device, which it
        holds from then on.

        Returns the results in a sequence, each of which is a view of one tensor, or `out`. It is a list
        where gradients are requested, which is read when tensors are given.
        """
        with call_context(lambda: describe_call("a grouped plan's call", str(self._notation))):
            operands = None if pairs is None else read_pairs(pairs)
            if operands is not None and not operands:
                raise ShapeError("a plan of pairs is called with pairs, and there are none")
            with self._turn:
                changed = self._follow()
                like = operands is not None and self._takes(operands)
                brought = [] if operands is None or like else as_operands(operands)  # a plan holds plain tensors
                if is_traced(brought) or (brought and is_transforming()):
                    tensors, places = brought or self._held(), self._out if out is None else None
                    self._check_shapes(tensors)
                    out = out if places is None else places.tensors
                    return contract_pairs(self._notation, tensors, self._options, out, self._add)
                self._take_all(operands, out, like)
                if changed and operands is None and out is None:
                    self._start()
                leaves = self._leaves
                if leaves is None or not asked_of_many(leaves):
                    return self.run()
                if self._out is not None:
                    raise UnsupportedError("a group whose operands require gradients makes its results: leave out out")
            return with_gradient(contract_pairs, self._notation, leaves, self._options)

    def _follow(self) -> bool:
        """Whether the functions compute something else by now: what was made of them is forgotten."""
        if self._watched is None or not self._watched.changed():
            return False
        self._request, self._own = self._watched.now(), None
        return True

    def run(self) -> Sequence[torch.Tensor]:
        """Contract what the plan holds; no gradient is requested."""
        a, b = (side.tensors[0] for side in self._sides)
        if self._out is not None:
            self._launch(a, b, self._out.tensors[0])
            written(self._out.tensors)
            return self._out.tensors
        buffer = new_tensor((self._places.size,), self.dtype, a.device)
        self._launch(a, b, buffer)
        return self._places.within(buffer)

    def _takes(self, operands: list[Any]) -> bool:
        """Whether operands are known to have the plan's layouts, and no gradient is requested."""
        if is_transforming() or forward_ad._current_level >= 0 or len(operands) != 2 * len(self.shapes):
            return False
        if self._guards is None or (self._differentiable and torch.is_grad_enabled()):
            return False
        return bool(self._guards.check(*operands))

    def _read(self, operands: Sequence[Any]) -> tuple[Stack, Stack]:
        """Hold operands, each of them looked at: their layouts, whether some require gradients, and whether some are
        views whose memory is not what they say."""
        tensors, (first, second) = as_operands(operands), self._notation.inputs
        self._leaves = tensors if asked_of_many(tensors) else None
        own = [detached(one) for one in tensors] if self._leaves else tensors
        self._sides = stack_of("a", own[::2], first), stack_of("b", own[1::2], second)
        plain = all(isinstance(each, torch.Tensor) for each in operands)
        self._guards = guards_of(operands) if plain else None
        self._differentiable = any(getattr(each, "requires_grad", False) for each in operands)
        self._views = plain and any(each.is_conj() or each.is_neg() for each in operands)
        return self._sides

    def _hold(self, operands: Sequence[Any]) -> None:
        """Hold operands that have the plan's layouts in the place of those before."""
        if self._views:
            operands = without_views(operands)
        addresses, (x, y) = addresses_of(operands), self._sides
        self._sides = x.over(operands[::2], addresses[::2]), y.over(operands[1::2], addresses[1::2])
        self._leaves = None

    def again(self, operands: Sequence[Any]) -> Sequence[torch.Tensor]:
        """The results of new operands with the same layouts, which are not retained."""
        with self._turn:
            try:
                self._hold(operands)
                self._start()
                return self.run()
            finally:
                self.forget()

    def forget(self) -> None:
        """Keep no tensor of the caller; the next call brings others."""
        x, y = self._sides
        self._sides, self._leaves = (x._replace(tensors=()), y._replace(tensors=())), None
        self._launch = self._own

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied and pickled as what it was made of, with the tensors that it holds now."""
        out = None if self._out is None else self._out.tensors
        return type(self), (self._notation, self._held(), self._options, out, self._add)

    def explain(self) -> str:
        """How many pairs, which extents, and what computes them."""
        sizes = self._table.sizes
        spans = [
            f"{side} {low}" if low == high else f"{side} {low} to {high}"
            for side, low, high in zip(SIDES, sizes.min(0), sizes.max(0), strict=True)
        ]
        flops = 2 * float(sizes.astype(float).prod(1).sum())
        return (
            f"{counted(len(sizes), 'pair')} of '{self._notation}', {dtype_name(self.dtype)}; {', '.join(spans)}\n"
            f"{flops:.4g} flops; {self._launch}"
        )

    def __repr__(self) -> str:
        pairs = counted(len(self._table.sizes), "pair")
        return f"GroupedPlan({str(self._notation)!r}, {pairs}, {dtype_name(self.dtype)})"

    def _repr_html_(self) -> str:
        """HTML for a notebook."""
        flops = 2 * float(self._table.sizes.astype(float).prod(1).sum())
        rows = [("pairs", len(self._table.sizes)), ("equation", self._notation), ("work", si(flops, "flop"))]
        return table(rows) + folded("explain()", self.explain())

    def _read_out(self, out: Sequence[Any]) -> Stack:
        count = len(self._sides[0].shapes)
        given = check_places(out, count)
        places = stack_of("out", [as_result(one, f"out[{at}]") for at, one in enumerate(given)], self._notation.output)
        if places.device != self._sides[0].tensors[0].device:
            raise UnsupportedError(f"out is on {places.device}, the operands on {self._sides[0].device}")
        return places

    def _check_out(self) -> None:
        if self._out is None:
            return
        wrong = np.flatnonzero((self._out.shapes != self.shapes).any(1))
        if wrong.size:
            at = int(wrong[0])
            raise ShapeError(
                f"out of pair {at} has shape {tuple(self._out.shapes[at].tolist())}, "
                f"'{term_text(self._notation.output)}' {tuple(self.shapes[at].tolist())}"
            )
        self_overlapping = ((self._out.strides == 0) & (self._out.shapes > 1)).any(1)
        if self_overlapping.any():
            raise ShapeError(f"out of pair {int(np.flatnonzero(self_overlapping)[0])} is expanded: it overlaps itself")

    def _held(self) -> list[torch.Tensor]:
        """The operands that the plan holds, a, b of each pair in turn."""
        if self._leaves is not None:
            return list(self._leaves)
        return list(chain.from_iterable(zip(*(side.tensors for side in self._sides), strict=True)))

    def _take_all(self, operands: list[Any] | None, out: Sequence[Any] | None, like: bool) -> None:
        """Take other operands, which may be known to be `like` those before, and places: all, or, where one does not
        fit, none."""
        if operands is None and out is None:
            return
        before = vars(self).copy()
        try:
            if out is not None:
                self._take_out(out)
            if operands is not None:
                self._hold(operands) if like else self._take(operands)
            self._start()
        except BaseException:
            vars(self).update(before)
            raise

    def _take(self, operands: list[Any]) -> None:
        """Other tensors with the layouts of the first ones, each of them read."""
        for name, old, new in zip("ab", self._sides, self._read(operands), strict=True):
            old.check_like(name, new)

    def _check_shapes(self, tensors: Sequence[torch.Tensor]) -> None:
        """`ShapeError` where tensors inside a transform, which have no layout, have other shapes than planned."""
        for name, old, new in zip("ab", self._sides, (tensors[::2], tensors[1::2]), strict=True):
            if len(new) != len(old.shapes):
                raise ShapeError(f"the plan is of {counted(len(old.shapes), 'pair')}, {given(len(new))}")
            for at, (shape, one) in enumerate(zip(old.shapes.tolist(), new, strict=True)):
                if list(one.shape) != shape:
                    raise ShapeError(f"{name} of pair {at} has shape {tuple(one.shape)}, planned was {tuple(shape)}")

    def _take_out(self, out: Sequence[Any]) -> None:
        if self._out is None:
            raise ArgumentError("the plan makes its results: plan with out to write to places of your own")
        places = self._read_out(out)
        self._out.check_like("out", places)
        self._out = places

    def _start(self) -> None:
        """Where tensors begin, into the table; and what computes them. All stands where they begin as before."""
        stacks = (*self._sides, *((self._out,) if self._out is not None else ()))
        begun = tuple([stack.addresses.tobytes() for stack in stacks])
        if self._launch is not None and self._launch is self._own and begun == self._begun:
            return
        x, y = (side.starts() for side in self._sides)
        places = self._places.starts if self._out is None else self._out.starts()
        self._table.rows[:, 0], self._table.rows[:, 1], self._table.outputs[:, 0] = x, y, places
        self._launch = self._batched(stacks) or (None if self._apart else self._moved())
        if self._launch is None:
            self._launch = _DescribedGroup(self._one_by_one, "pairs contracted one by one")
        elif self._launch is self._own:
            self._begun = begun

    def _moved(self) -> Any | None:
        """The kernel for groups, given the addresses of tensors; None where there is none, and within the capture of a
        graph, where no table is sent."""
        if self._own is None:
            with outside_transforms():
                self._own = launch_of(self._table, self._request, self._sides[1].dtype, self._add)
        elif is_capturing(self._request.device):
            return None
        else:
            self._own.move(self._table)
        return self._own

    def _batched(self, stacks: Sequence[Stack]) -> Any | None:
        """One contraction with a batch mode, where the pairs are alike and evenly spaced."""
        if self._add or len(self.shapes) < 2 or not all(stack.alike for stack in stacks) or not self.shapes[0].all():
            return None
        steps = [stack.even for stack in stacks]
        if None in steps or not all(stack.shapes[0].all() for stack in stacks):
            return None
        if self._out is not None and steps[2] == 0:
            return None
        views = [stack.stacked(step) for stack, step in zip(stacks, steps, strict=True) if step is not None]
        every = new_label(self._notation)
        terms = tuple((every, *term) for term in (*self._notation.inputs, self._notation.output))
        shape = (len(self.shapes), *self.shapes[0].tolist())

        def run(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> None:
            target = views[2] if len(views) == 3 else d.view(shape)
            contraction(terms, views[0], views[1], self._options, out=target)

        return _DescribedGroup(run, "one contraction with a batch mode")

    def _one_by_one(self, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> None:
        places = self._out.tensors if self._out is not None else self._places.all(d)
        products = at_once(self._notation, self._held(), len(places)) if self._apart and not self._add else None
        if products is None:
            one_by_one(self._notation, self._held(), self._options, places, self._add)
            return
        for place, product in zip(places, products, strict=True):
            place.copy_(product)


class _DescribedGroup:
    """A launch that says what it is."""

    def __init__(self, run: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None], text: str) -> None:
        self._run, self._text = run, text

    def __call__(self, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> None:
        self._run(a, b, d)

    def __str__(self) -> str:
        return self._text
