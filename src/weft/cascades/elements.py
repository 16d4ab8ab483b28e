"""The function of a cascade as Triton functions of one element of S, for kernels of one pass."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from weft.base.caches import cached_property
from weft.cascades.between import as_function
from weft.cascades.lowering import number_of
from weft.cascades.program import CascadeProgram, CascadeTarget
from weft.cascades.step import PeakText, SumText
from weft.fn.graphs import deciding
from weft.fn.pointwise import Pointwise, RecordedFunction
from weft.fn.reductions import is_reduction
from weft.fn.trace import pull, recorded

aten = torch.ops.aten


class ElementFunctions:
    """Functions of the stage of a program: of S, `inputs`, peaks and exponentials over those."""

    def __init__(self, program: CascadeProgram) -> None:
        self.between, self.frame, self.factor_node = program.between, program.frame, program.factor
        (self.stage,) = program.stages
        self.inputs = (*self.between.inputs[1:], *self.stage.known)
        self.sums = [target for target in self.stage.targets if target.kind != "product"]
        self.meets = [target for target in self.stage.targets if target.kind == "product"]
        self.exponents = [node.all_input_nodes[0] for node in self.stage.peaks]

    @cached_property
    def peaks(self) -> tuple[PeakText, ...]:
        """Peaks as kernels know them."""
        return tuple(
            PeakText(self.frame.alpha > 0 and self._is_plain(source), weight is not None)
            for source, weight in zip(self.exponents, self._weights, strict=True)
        )

    @property
    def sum_texts(self) -> tuple[SumText, ...]:
        """Reductions as kernels know them."""
        return tuple(SumText(each.kind, self._peak_of(each.scale)) for each in self.sums)

    @property
    def product(self) -> int:
        """The number of the peak that the product with C is over, -1 for none; -2 where there is no product."""
        return self._peak_of(self.meets[0].scale) if self.meets else -2

    def _peak_of(self, node: fx.Node | None) -> int:
        return -1 if node is None else self.stage.peaks.index(node)

    def first(self, settled: Collection[fx.Node] = ()) -> RecordedFunction | None:
        """The values that have peaks, of S and inputs. `settled` choices are their first alternative."""
        if not self.exponents:
            return None
        return _shortened(self.between.function(self.exponents, (self.between.inputs[0], *self.inputs), settled))

    def rest(self, settled: Collection[fx.Node] = ()) -> RecordedFunction:
        """The values that are summed and multiplied, of S, inputs, peaks and exponentials over them."""
        weights = [node for node in self._weights if node is not None]
        given = (self.between.inputs[0], *self.inputs, *self.stage.peaks, *weights)
        return _shortened(self.between.function([target.node for target in (*self.sums, *self.meets)], given, settled))

    def pull(self, settled: Collection[fx.Node] = (), wanted: Sequence[int] = ()) -> Pointwise:
        """The value that meets C, and dS: of what `rest` takes and of gradients of that value and of sums."""
        given = (self.between.inputs[0], *self.inputs, *self.stage.peaks)
        rest = self.between.function([target.node for target in (*self.sums, *self.meets)], given, settled)
        made = self._pulled(rest, len(rest.results), (0, *(1 + at for at in wanted)), self.meets)
        return _over_weights(made.graph, 1 + len(self.inputs), [each.weighs for each in self.peaks])

    def _pulled(
        self, function: RecordedFunction, count: int, places: Sequence[int], meets: Sequence[CascadeTarget] = ()
    ) -> RecordedFunction:
        """Gradients of a function's arguments at some places, of those and of `count` gradients; before them the value
        that `meets` C, whose gradient comes first."""
        own, wide = len(function.inputs), self.frame.products.accumulate
        inputs = dict(zip((f"x{at}" for at in range(own)), function.dtypes, strict=True))

        def body(values: Mapping[str, Tensor]) -> Sequence[Tensor]:
            tensors = list(values.values())
            grads = tensors[own:]
            found, results = pull(function, tensors[:own], [*grads[len(meets) :], *grads[: len(meets)]])
            every = [torch.zeros_like(tensors[0]) if each is None else each for each in found]
            return (*(results[-1] for _ in meets), *(every[at] for at in places))

        made = recorded(body, {**inputs, **dict.fromkeys((f"grad{at}" for at in range(count)), wide)}, "between")
        assert isinstance(made, RecordedFunction)
        return made

    @cached_property
    def factor(self) -> RecordedFunction | None:
        """The factor of D as a function of small inputs and of sums; None where it is made of more than those."""
        node = self.factor_node
        if not self.meets:
            return None
        small = filter(self.is_small, self.inputs)
        given = (*small, *self.stage.peaks, *(target.gives for target in self.sums))
        if node is None:
            types = {f"x{at}": each.meta["dtype"] for at, each in enumerate(given)}
            one = partial(torch.scalar_tensor, 1.0, dtype=torch.float32, device="cpu")
            return recorded(lambda values: [one()], types, "between")
        behind = self.between.ancestors([node], frozenset(given))
        if any((is_reduction(each) or each.op == "placeholder") and each not in given for each in behind):
            return None
        return self.between.function([node], given, alone=True)

    @cached_property
    def of_sums(self) -> RecordedFunction:
        """The gradient of each sum, of what `factor` takes and of the factor's gradient."""
        assert self.factor is not None
        count = len(self.factor.inputs)
        return self._pulled(self.factor, 1, range(count - len(self.sums), count))

    @cached_property
    def folds(self) -> bool:
        """Whether exponentials over one peak can have the factor of D in them: everything summed is over that peak."""
        node = self.factor_node
        if node is None or len(self.stage.peaks) != 1 or not self.peaks[0].weighs:
            return False
        return all(each.scale is self.stage.peaks[0] for each in self.stage.targets) and _is_positive(node)

    def is_small(self, node: fx.Node) -> bool:
        """Whether a value lacks columns."""
        return self.between.modes[node].isdisjoint(self.frame.first.n)

    @cached_property
    def _weights(self) -> list[fx.Node | None]:
        """The exponential over each peak of what it is the peak of."""
        pairs = zip(self.stage.peaks, self.exponents, strict=True)
        return [next((node for node in self.between.calls if _is_weight(node, *pair)), None) for pair in pairs]

    def _is_plain(self, node: fx.Node) -> bool:
        """Whether a value is S, or -inf where a condition on other values does not hold: it grows as S does."""
        s = self.between.inputs[0]
        if node is s:
            return True
        if node.target is not aten.where.self or not isinstance(node.args[1], fx.Node):
            return False
        free = s not in self.between.ancestors([node.args[0]], frozenset())  # type: ignore[list-item]
        return free and number_of(node.args[2]) == -torch.inf and self._is_plain(node.args[1])


def _over_weights(graph: fx.Graph, first: int, weighs: Sequence[bool]) -> RecordedFunction:
    """A function with exponentials over peaks for parameters, behind peaks, which begin at parameter `first`."""
    peaks = [node for node in graph.nodes if node.op == "placeholder"][first : first + len(weighs)]
    calls = [node for node in graph.nodes if node.op == "call_function"]
    for peak in [peak for peak, exists in zip(peaks, weighs, strict=True) if exists][::-1]:
        with graph.inserting_after(peaks[-1]):
            weight = graph.placeholder(f"weight_{peak.name}")
        weight.meta.update(peak.meta)
        for node in calls:
            if _peak_below(node) is peak:
                node.replace_all_uses_with(weight)
    return _shortened(as_function(graph))


def _shortened(function: RecordedFunction) -> RecordedFunction:
    """A function whose exponentials are powers of 2, which take half of the instructions, and whose divisions by
    numbers are products, which take a tenth.

    An exponent and a quotient are rounded once more, as the element of S that they are made of was; those that a
    condition is on are as they were.
    """
    graph = function.graph
    exact = deciding(graph)
    for node in [node for node in graph.nodes if node.op == "call_function"]:
        if node.meta["dtype"] != torch.float32 or node in exact:
            continue
        with graph.inserting_before(node):
            if node.target is aten.exp.default:
                exponent = graph.call_function(aten.mul.Tensor, _times(node.args[0], math.log2(math.e)))
                exponent.meta.update(node.meta)
                found = graph.call_function(aten.exp2.default, (exponent,))
            elif node.target is aten.div.Tensor and _inverse(node.args[1]) is not None:
                found = graph.call_function(aten.mul.Tensor, (node.args[0], _inverse(node.args[1])))
            else:
                continue
        found.meta.update(node.meta)
        node.replace_all_uses_with(found)
        graph.erase_node(node)
    return as_function(graph)


def _times(value: Any, factor: float) -> tuple[Any, float]:
    """The two factors of a value times a number, a number that the value is a multiple of taken in."""
    if isinstance(value, fx.Node) and value.target is aten.mul.Tensor and value.meta["dtype"] == torch.float32:
        number = number_of(value.args[1])
        if number is not None and 2.0**-100 < abs(number) < 2.0**100:
            return value.args[0], number * factor
    return value, factor


def _inverse(divisor: Any) -> float | None:
    """1 / a number; None where either is none, or far from 1."""
    number = number_of(divisor)
    return 1 / number if number is not None and 2.0**-100 < abs(number) < 2.0**100 else None


def _peak_below(node: fx.Node) -> Any:
    """The value that is subtracted from an exponent."""
    if node.target is not aten.exp.default or not isinstance(node.args[0], fx.Node):
        return None
    difference = node.args[0]
    return difference.args[1] if difference.target is aten.sub.Tensor and not difference.kwargs else None


def _is_weight(node: fx.Node, peak: fx.Node, source: fx.Node) -> bool:
    """Whether a value is ``exp(source - peak)``."""
    return _peak_below(node) is peak and node.args[0].args[0] is source  # type: ignore[union-attr]


def _is_positive(value: Any) -> bool:
    """Whether a value is known to be positive, or a sum of nothing."""
    number = number_of(value)
    if number is not None:
        return number > 0
    if value.target in (aten.exp.default, aten.exp2.default, aten.sigmoid.default):
        return True
    if value.target is aten.where.self:
        return all(map(_is_positive, value.args[1:]))
    if is_reduction(value):
        return value.args[1] == "sum" and _is_positive(value.args[0])
    if value.target in (aten.mul.Tensor, aten.div.Tensor, aten.add.Tensor, aten.reciprocal.default):
        return not value.kwargs and all(map(_is_positive, value.args))
    return False
