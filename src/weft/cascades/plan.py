"""A cascade that is planned: its tensors arranged, its program run, and what both are in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

from weft.autograd.graphs import Program as TorchProgram
from weft.autograd.graphs import serves
from weft.base.arrays import any_autocast, as_tensor, is_transforming, returned, source_of, without_autocast
from weft.base.caches import cached_property
from weft.base.dispatch import as_operation, is_traced, outside_graphs
from weft.base.forks import computing
from weft.base.kept import keep_if_captured
from weft.base.log import warn
from weft.cascades.attention import AttentionRun, TorchAttention, attention_of
from weft.cascades.backward_launch import BackwardLaunch
from weft.cascades.between import Between, check_reductions, recorded, traced
from weft.cascades.blocks import Blocks, most_elements
from weft.cascades.described import CascadeNotation, Described, Results, Terms, explained
from weft.cascades.differentiable import VIEWS, DifferentiatedCascade, FullRun, transformed
from weft.cascades.frame import BlockProducts, CascadeFrame, SecondAlgebra, apart, as_it_lies, frame_of, size_of
from weft.cascades.launch import CascadeLaunch, Repeated
from weft.cascades.operations import WholeWriter
from weft.cascades.program import Stage, Tensors, Values, program_of
from weft.cascades.rows import StageRows
from weft.cascades.serving import Loops, Takeover, differentiates, is_hopper, kernel_takes_over, tiles_for
from weft.engine.calls import Calls
from weft.errors import ArgumentError, DTypeError, UnsupportedError, call_context
from weft.fn.fingerprint import fingerprint
from weft.fn.trace import Watched
from weft.gpu.common.driver import made_aside
from weft.machine.exactness import shortened
from weft.planner.options import Options
from weft.planner.promotion import begins_with_library
from weft.planner.registry import first_line
from weft.planner.target import target_of
from weft.spec import Label
from weft.spec.dtypes import dtype_name, resolve, result_type, storage_type

FEW = 1 << 17  # elements of S on a CPU that torch's operations serve best, all at once
_KNOWN_CALLS = 64  # of a plan
_WITH_GRADIENTS = 2  # times of a forward pass that calls by blocks and compiling take


class CascadePlan:
    """A cascade for tensors of these shapes: call it with others, and ask `explain` what it does.

    Made by `weft.plan_cascade`; `planned` makes one of other tensors.
    """

    _watched: Watched[Any] | None = None  # the function, which may compute something else while the plan is kept
    _traced: Any = None  # what it computed when the plan was made

    def __init__(
        self, said: Described, function: Any, options: Options, alpha: float, planned: Callable[..., CascadePlan]
    ) -> None:
        self.said, self.options, self.alpha, self.planned = said, options, alpha, planned
        self._function, self._calls = function, Calls(_KNOWN_CALLS)
        self.notation, self.extents = said.notation, said.extents
        self.count = len(said.notation.terms)
        self.meets = self.count == 3  # whether there is a second contraction
        storage_type(said.dtype, said.dtype)
        types = resolve(said.dtype, said.dtype, options.precision, options.accumulate)
        if not types.accumulate.is_floating_point:
            raise UnsupportedError(
                f"a cascade computes with floating values, not with {dtype_name(said.dtype)}: convert the operands"
            )
        self.types = types
        between: Between = traced(function, said.notation, types.accumulate, said.given)
        check_reductions(between, said.extents)
        if self.meets and not between.outputs[0].meta["dtype"].is_floating_point:
            raise DTypeError(
                f"between: the value that meets C is {dtype_name(between.outputs[0].meta['dtype'])}: "
                "the second contraction multiplies floating values"
            )
        if options.algebra is not None and not self.meets:
            raise ArgumentError("algebra is that of the second contraction, which the equation does not have")
        self.written = between
        self.frame = self._framed()
        if said.device.type == "cpu":
            computing()
        limit = most_elements(said.device.type, types.accumulate, options.workspace_limit)
        self.program = program_of(between, self.frame, limit)
        self.between = self.program.between
        #: Whether results come as a tuple.
        self.several = len(self.between.outputs) > 1 or (self.between.several and not self.meets)
        self.blocks = Blocks(self.program, between, limit)
        elements = size_of(self.frame, said.notation.s)
        self.loops = Loops(self.blocks.in_rows, elements, options.specialize)

    def _framed(self) -> CascadeFrame:
        """Labels by role."""
        said, types = self.said, self.types
        kind = said.device.type
        product = types.accumulate if kind == "cpu" and self.options.backend != "triton" else types.product
        precision = "ieee_bound" if types.split else types.precision
        products = BlockProducts(product, types.accumulate, kind, precision)
        reduced = frozenset(label for node in self.written.reductions for label in self.written.reduced(node))
        asked = self.options.algebra
        algebra = None if asked is None else SecondAlgebra(asked, types.accumulate)
        return frame_of(said, reduced, self.alpha, products, self.result_type, algebra)

    @property
    def result_type(self) -> torch.dtype:
        """The type of D, and of results that have all modes of S."""
        asked = self.options.out_dtype
        if isinstance(asked, tuple):
            raise DTypeError("out_dtype is one type: that of D; further results have the types they are computed in")
        return result_type(self.said.dtype, asked, self.said.dtype)

    @property
    def launch(self) -> CascadeLaunch | None:
        """The launch of the kernel, where that serves now and not blocks."""
        return self.kernel if self.arriving is None or self.arriving.serves else None

    @cached_property
    def arriving(self) -> Takeover | None:
        """The calls until the kernel takes over; None where it serves at once, or never."""
        at_once = self.options.backend == "triton" or self.options.specialize == "now"
        if self.kernel is None or at_once or not begins_with_library(self.said.device.type):
            return None
        name = f"{self.said} {self.options} {self.alpha} {self.written.graph}"
        return kernel_takes_over(target_of("triton", self.said.device), size_of(self.frame, self.notation.s), name)

    @cached_property
    def kernel(self) -> CascadeLaunch | None:
        """The launch of a Triton kernel, where that was asked for by name, or is faster than blocks."""
        asked, device = self.options.backend == "triton", self.said.device
        wanted = device.type == "cuda" and self.options.backend != "reference"
        hopper = wanted and is_hopper(device)
        if not asked and (not hopper or self.options.specialize in ("never", "library")):
            return None
        tiles = tiles_for(self.program, asked, hopper)
        return None if tiles is None else CascadeLaunch(self.program, *tiles)

    def fall_back(self, error: Exception) -> None:
        """Go on by blocks where the kernel was not asked for by name; raises `error` where it was."""
        if self.options.backend == "triton":
            raise error
        warn(f"{self!r} runs by blocks: its kernel cannot be made ({first_line(error)})")
        self.__dict__.update(kernel=None, backward=None, arriving=None)

    @cached_property
    def backward(self) -> BackwardLaunch | None:
        """The launch of the kernels for gradients, where the forward pass has one."""
        if self.kernel is None or not differentiates(self.program):
            return None
        tile = self.kernel.tile
        terms = tile.hopper and tile.terms > 0
        return BackwardLaunch(self.program, tile.hopper and not terms, terms)

    def serving(self, differentiates: bool) -> Mapping[Stage, StageRows]:
        """The loops that run stages in a call, which is counted here; torch's operations run the others.

        Gradients of extremes go to elements that equal them, so that torch makes both.
        """
        every = self.loops.rows.items() if self.loops() else ()
        return {
            stage: rows for stage, rows in every if not (isinstance(rows, str) or (differentiates and stage.selects))
        }

    # -- a call ----------------------------------------------------------------------------------------------------

    def followed(self, function: Any) -> CascadePlan:
        """The plan for a caller whose function may compute something else by the time of a call."""
        found = copy(self)
        found._function, found._calls = function, Calls(_KNOWN_CALLS)
        if function is not None:
            trace = partial(recorded, function, self.types.accumulate, self.said.given)
            found._watched = Watched((function,), trace)
            found._traced = found._watched.now()
        return found

    def like(self, notation: CascadeNotation, terms: Terms, tensors: Sequence[Tensor]) -> CascadePlan:
        """The plan of this call with other labels: of A, B, C and operands, which have these terms."""
        return self.planned(notation, terms, tensors, self.options, self._function, self.alpha)

    @outside_graphs
    def __call__(self, *tensors: Any, operands: Mapping[str, Any] | None = None) -> Any:
        """The cascade of A, B and C, and of `operands` by name; shapes and types are those that it was planned for."""
        words, given = self._words(tensors, operands)
        known, place = self._calls.find(words, given)
        if known is not None and (found := known(given)) is not None:
            return found
        with call_context(lambda: f"CascadePlan({self.notation})"):
            if operands is not None and not isinstance(operands, Mapping):
                raise ArgumentError(f"operands is a mapping from names to tensors, not {type(operands).__name__}")
            read = [as_tensor(name, each).resolve_neg() for name, each in zip("abcd", tensors, strict=False)]
            named = {
                name: as_tensor(f"operand '{name}'", each).resolve_neg() for name, each in (operands or {}).items()
            }
            self.said.check(read, named)
            every = (*read, *[named[name] for name in self.said.operands])
            plan = self._now(every)
            if (seen := plan.as_seen(every)) is not None:
                return plan._packed(seen)
            return plan.answer(every, self._calls, place, given)

    def as_seen(self, given: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
        """All results of A, B, C and operands where torch is to see the call as an operation; else None."""
        return cast("tuple[Tensor, ...]", as_operation("planned cascade")(self, given)) if is_traced(given) else None

    def answer(self, read: Sequence[Tensor], calls: Calls, place: Any, given: Sequence[Any]) -> Any:
        """Results of A, B, C and operands as read, as the kind that was `given`; calls alike are known then."""
        if is_transforming():
            return transformed(self, read)
        found, known = self._called(read)
        if all(one is other for one, other in zip(given, read, strict=False)):
            calls.keep(place, given, known)
        return returned(source_of(*given[: self.count]), None, found, False)

    def _words(self, tensors: Sequence[Any], operands: Any) -> tuple[Any, Sequence[Any]]:
        """All that a call says, and its tensors; None for one that must be read."""
        print_of = () if self._function is None else fingerprint(self._function)
        if operands is None and not self.said.operands:
            return print_of, tensors
        if type(operands) is not dict or operands.keys() != self.said.operands.keys():
            return None, tensors
        return print_of, (*tensors, *[operands[name] for name in self.said.operands])

    def _now(self, given: Sequence[Tensor]) -> CascadePlan:
        """The plan of what the function computes now."""
        if self._watched is None or self._watched.now() == self._traced:
            return self
        return self.like(self.notation, self.said.terms, given)

    def run(self, given: Sequence[Tensor]) -> Tensor | tuple[Tensor, ...]:
        """Results of A, B, C and operands, which are read."""
        known, place = self._calls.find("run", given)
        found = None if known is None else known(given)
        if found is None:
            found, known = self._called(given)
            self._calls.keep(place, given, known)
        return found

    def _called(self, given: Sequence[Tensor]) -> tuple[Any, Any]:
        """Results of A, B, C and operands, and what runs later calls on tensors that lie alike, or None.

        Autocast casts none of what is between.
        """
        self.said.check(given[: self.count], dict(zip(self.said.operands, given[self.count :], strict=False)))
        grads = torch.is_grad_enabled() and any(each.requires_grad for each in given)
        written = self.few is not None and (grads or self.attention is None)
        if written and forward_ad._current_level < 0 and serves():
            return self._at_once(given), self._at_once
        with without_autocast():
            return self._made(given)

    def _anew(self, given: Sequence[Tensor]) -> Any:
        """Results of tensors that need not be read again."""
        with without_autocast():
            return self._made(given)[0]

    def _at_once(self, given: Sequence[Tensor]) -> Any:
        """Results of few elements; None where torch may round the factors of products."""
        if shortened():
            return None
        assert self.few is not None
        if torch.is_grad_enabled():
            return self._packed(self.few(*given, *self._coordinates))
        with torch._C._ExcludeDispatchKeyGuard(VIEWS):  # results are no views: gradients could not go through later
            return self._packed(self.few(*given, *self._coordinates))

    def _made(self, given: Sequence[Tensor]) -> tuple[Any, Any]:
        if self.options.backend == "reference":
            return self._packed(self.whole(torch.float64)(*given, *self.coordinates)), None
        grads = torch.is_grad_enabled() and any(each.requires_grad for each in given[: self.count])
        if self.attention is not None and self.attention.serves(grads):
            return self._attended(given, grads), partial(self._attended_again, grads=grads)
        if self.arriving is not None:
            self.arriving(self._preparing(given, grads), _WITH_GRADIENTS if grads else 1)
        found = self._packed(DifferentiatedCascade.apply(FullRun(self), *given))
        return found, self._anew if self.said.device.type == "cpu" else Repeated.of(self, given)

    def _attended_again(self, given: Sequence[Tensor], grads: bool) -> Any:
        """Results of a call like one before."""
        assert self.attention is not None
        alike = not any_autocast() and self.attention.serves(grads)
        return self._attended(given, grads) if alike else self._anew(given)

    def _attended(self, given: Sequence[Tensor], grads: bool) -> Tensor | tuple[Tensor, ...]:
        assert self.attention is not None
        if grads or forward_ad._current_level >= 0:
            return self._packed(DifferentiatedCascade.apply(AttentionRun(self), *given))
        with torch._C._ExcludeDispatchKeyGuard(VIEWS):  # results are no views
            found: Tensor = self.attention.program(*given)[0]
        return found

    def _packed(self, found: Sequence[Tensor]) -> Tensor | tuple[Tensor, ...]:
        return tuple(found) if self.several else found[0]

    def whole(self, wide: torch.dtype) -> TorchProgram:
        """The call as one program of torch's operations, computed in a type, of A, B, C, operands and coordinates."""
        return WholeWriter(self, wide).whole(*self._laid)

    @cached_property
    def attention(self) -> TorchAttention | None:
        """Torch's attention, where the function is its softmax and torch has a kernel."""
        return attention_of(self)

    @cached_property
    def few(self) -> TorchProgram | None:
        """All of S at once in torch's operations, on a CPU, where blocks of it would gain nothing."""
        if self.said.device.type != "cpu" or self.options.backend != "auto" or self.frame.algebra is not None:
            return None
        s = {label: self.extents[label] for label in self.frame.order}
        return self.whole(self.types.accumulate) if math.prod(s.values()) <= FEW and self.blocks.extents == s else None

    def arranged(self, given: Sequence[Tensor], launch: CascadeLaunch | None) -> tuple[list[Tensor], list[Tensor]]:
        """A, B and C by the roles of their labels as products or the kernel read them, and operands along S."""
        made = self._arranging(*given)
        return [self._as_read(made[at], at, launch) for at in range(self.count)], list(made[self.count :])

    def apart(self, tensors: Sequence[Tensor], operands: Sequence[Tensor]) -> tuple[Tensors, Values]:
        """Arranged A, B and C, three objects also where they are one; operands and coordinates by their nodes."""
        a, b, c = (*(each.view_as(each) for each in tensors), None)[:3]
        beside = (*(each.detach() for each in operands), *self.coordinates)
        return (a, b, c), dict(zip(self.between.inputs[1:], beside, strict=True))  # type: ignore[return-value]

    @cached_property
    def _laid(self) -> tuple[list[Any], list[Any]]:
        """Labels and shapes of A, B and C, and of operands."""
        operands = [(terms, shape) for terms, shape, _ in self.said.operands.values()]
        return list(zip(self.notation.terms, self.said.shapes, strict=True)), operands

    @cached_property
    def _arranging(self) -> TorchProgram:
        return WholeWriter(self, self.frame.products.accumulate).arranging(*self._laid)

    def _preparing(self, given: Sequence[Tensor], grads: bool) -> Callable[[], CascadeLaunch]:
        """The kernel and that of gradients compiled, for tensors like these."""
        without = [torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device="meta") for each in given]

        def prepare() -> CascadeLaunch:
            kernel = self.kernel
            assert kernel is not None
            tensors, values = self.apart(*self.arranged(without, kernel))
            kernel.launches(tensors, values, False).run()
            if grads and self.backward is not None:
                self.backward.prepare(tensors, values, self.alone)
            return kernel

        return prepare

    @cached_property
    def alone(self) -> bool:
        """Whether D is all that kernels make, and needs no operations of torch before or after."""
        if self.kernel is None or self.kernel.functions.factor is None or len(self.between.outputs) > 1:
            return False
        return self.meets and not self.program.prelude and not self.program.stages[0].known

    def _as_read(self, tensor: Tensor, at: int, launch: CascadeLaunch | None) -> Tensor:
        """An arranged A, B or C in memory as products or the kernel read it."""
        if launch is not None:
            return launch.ready(as_it_lies(tensor, launch.arguments.groups(at)), at)
        roles = self.frame.second if at == 2 else self.frame.first
        inner = tensor.dim() - len(roles.batch) - len(roles.k)
        return apart(as_it_lies(tensor, (len(roles.batch), inner, len(roles.k))), len(roles.batch))

    @property
    def coordinates(self) -> list[Tensor]:
        """The coordinates along S, in the order of the function's parameters."""
        keep_if_captured(self.said.device, *self._coordinates)
        return self._coordinates

    @cached_property
    def _coordinates(self) -> list[Tensor]:
        return [made_aside(partial(self._places, label), self.said.device) for label in self.said.indices.values()]

    def _places(self, label: Label) -> Tensor:
        places = torch.arange(self.extents[label], dtype=self.said.place_type(label), device=self.said.device)
        return places.reshape(self.frame.shape(frozenset((label,))))

    @cached_property
    def results(self) -> Results:
        """Results as they are computed, and as the caller has them."""
        return Results(self)

    # -- in words --------------------------------------------------------------------------------------------------

    def explain(self) -> str:
        """Text on what is computed, in which form and why, and how much memory it takes."""
        return explained(self)

    def __repr__(self) -> str:
        return f"CascadePlan({self.notation}, {self.program.form})"
