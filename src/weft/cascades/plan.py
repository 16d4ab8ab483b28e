"""A cascade that is planned: its tensors arranged, its program run, and what both are in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from weft.base.arrays import as_tensor, is_transforming, returned, source_of, without_autocast
from weft.base.cached import cached_property
from weft.base.dispatch import is_traced, outside_graphs
from weft.base.forks import computing
from weft.base.log import warn
from weft.cascades.arriving import Arriving
from weft.cascades.backward_launch import BackwardLaunch, differentiates
from weft.cascades.between import Between, check_reductions, traced
from weft.cascades.boxes import Boxes, most_elements
from weft.cascades.described import Described
from weft.cascades.differentiable import differentiated
from weft.cascades.following import Following
from weft.cascades.frame import Frame, frame_of
from weft.cascades.launch import CascadeLaunch
from weft.cascades.product import BlockProducts, apart, arranged, as_it_lies
from weft.cascades.program import Program, Stage, program_of
from weft.cascades.reference import all_at_once
from weft.cascades.repeated import Repeated
from weft.cascades.replay import layouts_of
from weft.cascades.results import Results
from weft.cascades.rows import StageRows
from weft.cascades.second import SecondAlgebra
from weft.cascades.serving import is_default, tile_of, unserved, without_terms
from weft.cascades.takeover import Takeover
from weft.cascades.terms import BOUND
from weft.cascades.transforms import transformed
from weft.cascades.words import explained
from weft.cpu import jit
from weft.engine.memo import keeps
from weft.errors import ArgumentError, DTypeError, UnsupportedError, call_context
from weft.planner.options import Options
from weft.planner.promotion import begins_with_library
from weft.planner.registry import first_line
from weft.planner.schedule import Target
from weft.spec import Label
from weft.spec.dtypes import dtype_name, resolve, result_type, storage_type

_MOST_REPLAYS = 64


class CascadePlan:
    """A cascade for tensors of these shapes: call it with others, and ask `explain` what it does.

    Made by `weft.plan_cascade`; `planned` makes one of other tensors.
    """

    following: Following | None = None
    whole: Callable[[Sequence[Any], Mapping[str, Any]], Any] | None = None  # the call, for transforms and tracing

    def __init__(
        self, said: Described, function: Any, options: Options, alpha: float, planned: Callable[..., CascadePlan]
    ) -> None:
        self.said, self.options, self.alpha, self.planned = said, options, alpha, planned
        self.notation, self.extents = said.notation, said.extents
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
        in_rows = said.device.type == "cpu" and jit.fault() is None
        limit = most_elements(said.device.type, types.accumulate, options.workspace_limit)
        self.program: Program = program_of(between, self.meets, self.frame.columns, said.extents, limit, in_rows,
                                           None if options.algebra is None else options.algebra.name)  # fmt: skip
        self.between = self.program.between
        self.boxes = Boxes(self.program, self.frame, between, self._known, limit)
        self.cut = self.boxes.cut
        elements = math.prod(said.extents[label] for label in said.notation.s)
        self.takeover = Takeover(self.boxes.in_rows, Target(said.device.type), elements, options.specialize)

    @property
    def meets(self) -> bool:
        """Whether there is a second contraction."""
        return self.notation.c is not None

    @property
    def several(self) -> bool:
        """Whether results come as a tuple."""
        return len(self.between.outputs) > 1 or (self.between.several and not self.meets)

    @property
    def described_results(self) -> list[tuple[tuple[Label, ...], torch.dtype]]:
        """The labels and types of the results."""
        outputs = [] if self.notation.d is None else [(self.notation.d, self.result_type)]
        for node in self.between.outputs[self.meets :]:
            dtype = node.meta["dtype"]
            kept = tuple(label for label in self.notation.s if label in self.between.modes[node])
            outputs.append((kept, self.frame.stored_as(dtype) if node in self.between.elementwise else dtype))
        return outputs

    def _framed(self) -> Frame:
        """Labels by role."""
        said, types = self.said, self.types
        kind = said.device.type
        product = types.accumulate if kind == "cpu" and self.options.backend != "triton" else types.product
        precision = "ieee_bound" if types.split else types.precision
        products = BlockProducts(product, types.accumulate, kind, precision)
        terms = (self.notation.a, self.notation.b, *(() if self.notation.c is None else (self.notation.c,)))
        a, b, *c = (said.own(term, shape) for term, shape in zip(terms, said.shapes, strict=True))
        reduced = frozenset(label for node in self.written.reductions for label in self.written.reduced(node))
        return frame_of(
            a, b, self.notation.s, c[0] if c else None, self.notation.d, reduced, said.extents, self.alpha, products,
            said.device, self.result_type,
            None if self.options.algebra is None else SecondAlgebra(self.options.algebra, types.accumulate),
        )  # fmt: skip

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
        return self.kernel if self.arriving is None or self.arriving.is_there else None

    @cached_property
    def arriving(self) -> Arriving | None:
        """The calls until the kernel takes over; None where it serves at once, or never."""
        at_once = self.options.backend == "triton" or self.options.specialize == "now"
        if self.kernel is None or at_once or not begins_with_library(self.said.device.type):
            return None
        return Arriving(math.prod(self.extents[label] for label in self.notation.s), self.said.device)

    @cached_property
    def kernel(self) -> CascadeLaunch | None:
        """The launch of a Triton kernel, where that was asked for by name, or is faster than blocks."""
        asked, device = self.options.backend == "triton", self.said.device
        wanted = device.type == "cuda" and self.options.backend != "reference"
        hopper = wanted and _is_hopper(device)
        if not asked and (not hopper or self.options.specialize in ("never", "library")):
            return None
        reason = unserved(self.program, self.frame)
        if self.frame.algebra is not None:
            reason = "the second contraction is in another algebra"
        if reason is not None and asked:
            raise UnsupportedError(f"no Triton kernel runs this cascade: {reason}")
        tile = None if reason is not None else tile_of(self.frame, _processors(device), hopper)
        if tile is None or not (asked or is_default(self.frame, tile)):
            return None
        exact = without_terms(self.frame, _processors(device)) if tile.terms == BOUND else None
        return CascadeLaunch(self.program, self.frame, self._known, tile, exact)

    def fall_back(self, error: Exception) -> None:
        """Go on by blocks where the kernel was not asked for by name; raises `error` where it was."""
        if self.options.backend == "triton":
            raise error
        warn(f"{self!r} runs by blocks: its kernel cannot be made ({first_line(error)})")
        self.__dict__.update(kernel=None, backward=None, arriving=None, _replays=None)

    @cached_property
    def backward(self) -> BackwardLaunch | None:
        """The launch of the kernels for gradients, where the forward pass has one."""
        if self.kernel is None or not differentiates(self.program, self.frame):
            return None
        tile = self.kernel.tile
        terms = tile.hopper and tile.terms > 0
        return BackwardLaunch(self.program, self.frame, self._known, tile.hopper and not terms, terms)

    @property
    def _known(self) -> dict[fx.Node, Label]:
        """The labels of coordinates, by their nodes."""
        places = self.between.inputs[1 + len(self.said.operands) :]
        return dict(zip(places, self.said.indices.values(), strict=True))

    def serving(self, differentiates: bool) -> Callable[[Stage], StageRows | None]:
        """The loops that run stages in a call, which is counted here; None for a stage that torch's operations run.

        Gradients of extremes go to elements that equal them, so that torch makes both.
        """
        serves = self.takeover()

        def of(stage: Stage) -> StageRows | None:
            if not serves or (differentiates and any(each.kind in ("amax", "amin") for each in stage.targets)):
                return None
            found = self.takeover.rows[stage]
            return None if isinstance(found, str) else found

        return of

    # -- a call ----------------------------------------------------------------------------------------------------

    @outside_graphs
    def __call__(self, *tensors: Any, operands: Mapping[str, Any] | None = None) -> Any:
        """The cascade of A, B and C, and of `operands` by name; shapes and types are those that it was planned for."""
        if self.whole is not None and is_traced(tensors):
            return self.whole(tensors, operands or {})
        if self.following is not None:
            return self.following.now()._called(tensors, operands, self.following.function)
        return self._called(tensors, operands, None)

    def _called(self, tensors: Sequence[Any], operands: Mapping[str, Any] | None, function: Any) -> Any:
        if not is_transforming() and (replayed := self._replayed(tensors, operands)) is not None:
            return replayed
        with call_context(lambda: f"CascadePlan({self.notation})"):
            if operands is not None and not isinstance(operands, Mapping):
                raise ArgumentError(f"operands is a mapping from names to tensors, not {type(operands).__name__}")
            given = [as_tensor(name, each).resolve_neg() for name, each in zip("abcd", tensors, strict=False)]
            named = {
                name: as_tensor(f"operand '{name}'", each).resolve_neg() for name, each in (operands or {}).items()
            }
            if is_transforming():
                self.said.check(given, named)
                return transformed(self, given, named, function)
            found = self.anew(given, named)
        return returned(source_of(*tensors), None, found, False) if tensors else found

    def run(self, tensors: Sequence[Tensor], operands: Mapping[str, Tensor]) -> Tensor | tuple[Tensor, ...]:
        """Results of tensors that are read."""
        replayed = self._replayed(tensors, operands)
        return self.anew(tensors, operands) if replayed is None else replayed

    def _replayed(self, tensors: Sequence[Any], operands: Mapping[str, Any] | None) -> Tensor | None:
        """The result of a call like one before, without all that this has settled."""
        if not self._replays:
            return None
        repeated = self._replays.get(layouts_of(tensors, operands, self._names))
        if repeated is None:
            return None
        return repeated([*tensors, *(() if operands is None else map(operands.__getitem__, self._names))])

    def anew(self, tensors: Sequence[Tensor], operands: Mapping[str, Tensor]) -> Tensor | tuple[Tensor, ...]:
        """Results of tensors that are read, whatever calls there were. Autocast casts none of what is between."""
        self.said.check(tensors, operands)
        with without_autocast():
            return self._made(tensors, operands)

    def _made(self, tensors: Sequence[Tensor], operands: Mapping[str, Tensor]) -> Tensor | tuple[Tensor, ...]:
        if self.options.backend == "reference":
            ready, given = self._arranged(tensors, operands, None, torch.float64)
            c = ready[2] if self.meets else None
            found = self.results.laid_out(all_at_once(self, ready[0], ready[1], c, given, torch.float64))
            return self._packed([each.clone() for each in found])  # no views: torch refuses to write to some
        if self.arriving is not None:
            grads = torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
            self.arriving.call(self._preparing(tensors, operands, grads))
        ready, given = self._arranged(tensors, operands, self.launch)
        found = differentiated(self, ready[0], ready[1], ready[2] if self.meets else None, given)
        if self._replays is not None and self.launch is not None:
            self._keep(tensors, operands, ready, given)
        return self._packed(found)

    def _packed(self, found: Sequence[Tensor]) -> Tensor | tuple[Tensor, ...]:
        return tuple(found) if self.several else found[0]

    def _arranged(
        self, tensors: Sequence[Tensor], operands: Mapping[str, Tensor], launch: CascadeLaunch | None,
        product: torch.dtype | None = None,
    ) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
        """A, B and C by the roles of their labels as products or the kernel read them, and operands along S."""
        frame = self.frame
        labels = (self.notation.a, self.notation.b, *(() if self.notation.c is None else (self.notation.c,)))
        orders = [frame.first.y, frame.first.x] if frame.swapped else [frame.first.x, frame.first.y]
        if frame.second is not None:
            orders.append(frame.second.y)
        sums = product or frame.products.accumulate
        made = [
            arranged(tensor, term, order, self.extents, sums).to(product or frame.products.product)
            for tensor, term, order in zip(tensors, labels, orders, strict=True)
        ]
        if frame.swapped:
            made[0], made[1] = made[1], made[0]
        given = [
            arranged(operands[name], terms, frame.order, self.extents)
            for name, (terms, _, _) in self.said.operands.items()
        ]
        return [self._as_read(each, at, launch) for at, each in enumerate(made)], given

    def _preparing(
        self, tensors: Sequence[Tensor], operands: Mapping[str, Tensor], grads: bool
    ) -> Callable[[], tuple[Any, Any]]:
        """The kernel and that of gradients compiled, for tensors like these."""
        without = [_without_memory(each) for each in tensors]
        named = {name: _without_memory(each) for name, each in operands.items()}

        def prepare() -> tuple[Any, Any]:
            kernel, between = self.kernel, self.between
            assert kernel is not None
            ready, given = self._arranged(without, named, kernel)
            a, b, c = (*ready, None)[:3]
            values: dict[fx.Node, Tensor] = dict(zip(between.inputs[1:], (*given, *self.coordinates), strict=True))
            kernel.prepare((a, b, c), values)
            if grads and self.backward is not None:
                self.backward.prepare((a, b, c), values, self.alone)  # type: ignore[arg-type]
            return kernel.tile, kernel

        return prepare

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(self.said.operands)

    @cached_property
    def alone(self) -> bool:
        """Whether D is all that kernels make, and needs no operations of torch before or after."""
        if self.kernel is None or self.kernel.functions.factor is None or len(self.between.outputs) > 1:
            return False
        return self.meets and not self.program.prelude and not self.program.stages[0].known

    @cached_property
    def _replays(self) -> dict[Hashable, Repeated] | None:
        """Calls by their layouts; None where there is more to them than launches."""
        kernel = self.kernel
        return {} if self.alone and self.said.device.type == "cuda" and not kernel.tile.terms else None  # type: ignore[union-attr]

    def _keep(
        self, tensors: Sequence[Tensor], operands: Mapping[str, Tensor], ready: Sequence[Tensor], given: list[Tensor]
    ) -> None:
        """Keep a call, where kernels read operands as they lie."""
        layouts = layouts_of(tensors, operands, self._names)
        if layouts is None or not keeps():
            return
        assert self._replays is not None
        assert self.launch is not None
        grads = bool(layouts[0])  # type: ignore[index]
        places = (1, 0, 2) if self.frame.swapped else (0, 1, 2)
        as_they_lie = zip(map(tensors.__getitem__, places), ready, strict=True)
        if not all(each.data_ptr() == own.data_ptr() for each, own in as_they_lie) or (grads and self.backward is None):
            return
        if any(len(set(term)) < len(term) for term in (self.notation.a, self.notation.b, self.notation.c or ())):
            return
        if len(self._replays) < _MOST_REPLAYS and layouts not in self._replays:
            values = dict(zip(self.between.inputs[1:], (*given, *self.coordinates), strict=True))
            forward = self.launch.replay(ready, values, places, states=grads)
            self._replays[layouts] = Repeated(self, forward, [each.shape for each in ready], grads)

    def _as_read(self, tensor: Tensor, at: int, launch: CascadeLaunch | None) -> Tensor:
        """An arranged A, B or C in memory as products or the kernel read it."""
        if launch is not None:
            return launch.ready(as_it_lies(tensor, launch.arguments.groups(at)), at)
        roles = self.frame.second if at == 2 else self.frame.first
        assert roles is not None
        inner = tensor.dim() - len(roles.batch) - len(roles.k)
        return apart(as_it_lies(tensor, (len(roles.batch), inner, len(roles.k))), len(roles.batch))

    @cached_property
    def coordinates(self) -> list[Tensor]:
        """The coordinates along S, in the order of the function's parameters."""
        found = []
        for label in self.said.indices.values():
            shape = self.frame.shape(frozenset((label,)))
            places = torch.arange(self.extents[label], dtype=self.said.place_type(label), device=self.said.device)
            found.append(places.reshape(shape))
        return found

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


def _without_memory(tensor: Tensor) -> Tensor:
    """A tensor of the same layout."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; 1 in Triton's interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _is_hopper(device: torch.device) -> bool:
    """Whether kernels in Gluon compile for a GPU, and it multiplies by warp groups."""
    from weft.gpu.warp_specialized.gluon_probe import refusal
    from weft.planner.target import target_of

    return torch.cuda.get_device_capability(device) == (9, 0) and refusal(target_of("triton", device)) is None
