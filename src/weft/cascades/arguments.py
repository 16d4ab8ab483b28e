"""Arguments of the kernels for cascades: labels by side, extents, strides, operands, and how each lies along S.

Operands in float32 may be sums of terms in 16 bits, whose products matrix units add up in float32:

    terms   of          products                                      for precision
    2       float16     a1 b0 + a0 b1 + a0 b0, of scaled operands     "tf32x3"
    3       bfloat16    a2 b0 + a1 b1 + a0 b2 + a1 b0 + a0 b1 + a0 b0 "ieee_bound"

Kernels add them up in this order, in one sum: the last, which is the largest, is added to what is small. The bound of
the second is that of `weft.planner.split_schemes.BF16X6`, whose sums of orders are added up apart: here K products are
added to a sum that is larger by all orders but the first together, 2^-7 of it, and additions of orders fall away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from weft.cascades.elements import ElementFunctions
from weft.cascades.frame import CascadeFrame, size_of, step_of
from weft.cascades.kernel import gluon_names, names
from weft.cascades.program import CascadeProgram, Values
from weft.cascades.step import InputText, LabelText, StepForm
from weft.fn.pointwise import Pointwise
from weft.fn.triton.device_code import jit_function
from weft.gpu.common.constants import TRITON_TYPES
from weft.gpu.common.driver import aside_of_capture
from weft.gpu.common.release import FUSION
from weft.planner.split_schemes import BF16X6, LARGEST, padded_length
from weft.spec import Label

BYTES = 16  # that a tensor map's strides are multiples of
LEAST_ROWS = 64  # of a label that has the rows of a tile to itself
HALVES, BOUND = 2, BF16X6.terms
TYPES = {HALVES: torch.float16, BOUND: torch.bfloat16}
_SCALED = 13  # bits: the largest float16 is below two to the power of this, so that what it lacks is no subnormal
Outer = list[tuple[int, int, int]]


class Lying(NamedTuple):
    """How A, B and C lie: divisor in the batch's index, extent and stride of the labels of the batch that each moves
    along, and strides of A along m and k, of B along n and k, of C along n and e."""

    outer: list[Outer]
    steps: tuple[int, ...]

    def along_batch(self, words: Sequence[str] = ("div", "ext", "step")) -> dict[str, int]:
        """The first numbers of all labels of the batch, of A, B and C in order."""
        pairs = [(name, at, label) for name, labels in zip("abc", self.outer, strict=True)
                 for at, label in enumerate(labels)]  # fmt: skip
        return {f"{name}_{word}{at}": one for name, at, label in pairs for word, one in zip(words, label, strict=False)}

    @property
    def strides(self) -> dict[str, int]:
        """The strides by name."""
        return dict(zip(("sa_m", "sa_k", "sb_n", "sb_k", "sc_n", "sc_e"), self.steps, strict=True))


class Sides(NamedTuple):
    """Labels of the batch, of the rows, columns, terms of S and columns of D, as kernels take them."""

    batch: tuple[Label, ...]
    m: tuple[Label, ...]
    n: tuple[Label, ...]
    k: tuple[Label, ...]
    e: tuple[Label, ...]

    @classmethod
    def of(cls, frame: CascadeFrame) -> Sides:
        """The sides of a frame."""
        first = frame.first
        outer = len(first.m) - 1 if len(first.m) > 1 and frame.extents[first.m[-1]] >= LEAST_ROWS else 0
        return cls((*first.batch, *first.m[:outer]), first.m[outer:], first.n, first.k, frame.second.n)


class KernelArguments:
    """The arguments that all kernels of a program take."""

    def __init__(self, program: CascadeProgram) -> None:
        self.frame, self.known = program.frame, program.known
        self.functions = ElementFunctions(program)
        self.sides = Sides.of(self.frame)
        self.sizes = tuple(size_of(self.frame, each) for each in self.sides)  # batch, m, n, k, e
        #: Values are float64; the factor of S is a constant then, as a float is passed in single precision.
        self.wide = self.frame.products.accumulate == torch.float64
        pairs = (("batch", self.sides.batch), ("m", self.sides.m), ("n", self.sides.n))
        self._group = {label: name for name, labels in pairs for label in labels}

    def groups(self, at: int) -> tuple[int, ...]:
        """The dimensions of an arranged A, B or C that are one stretch together."""
        outer = len(self.sides.batch) if at == 0 else len(self.frame.first.batch)
        inner = (self.sides.m, self.sides.n, self.sides.e)[at]
        return *(1,) * outer, len(inner), len(self.sides.n if at == 2 else self.sides.k)

    def kernel(
        self, text: Text, tile: Any, written: Mapping[str, Pointwise | None], sides: Mapping[str, int]
    ) -> Kernel:
        """The kernel of a text for a tile: of functions that are `written`, of types, and of the `sides` of tiles."""
        types = self.frame.products
        found: dict[str, Any] = {name: None if each is None else each.jit for name, each in written.items()}
        found["SUMS"] = TRITON_TYPES[types.accumulate].meant
        found["PRODUCT"] = TRITON_TYPES[TYPES.get(tile.terms, types.product)].meant
        if not tile.hopper:
            found["PRECISION"] = types.as_they_are
        fusion = FUSION if self.frame.device.type == "cuda" else {}
        options = {"num_warps": tile.warps, "num_stages": tile.stages, **fusion}
        return Kernel(text, {**found, **sides}, options, gluon_names if tile.hopper else names)

    def lying(self, a: Tensor, b: Tensor, c: Tensor | None) -> Lying:
        """How arranged tensors lie."""
        sides, outer, steps = self.sides, list[Outer](), list[int]()
        each = ((a, sides.m, sides.k), (b, sides.n, sides.k), (c, sides.e, sides.n))
        for at, (tensor, inner, last) in enumerate(each):
            if tensor is None:
                return Lying([*outer, []], (*steps, 0, 0))
            count = len(self.groups(at)) - 2
            outer.append([
                (size_of(self.frame, sides.batch[place + 1 :]), tensor.shape[place], tensor.stride(place))
                for place in range(count)
                if tensor.shape[place] > 1
            ])  # fmt: skip
            pair = step_of(tensor, count, len(inner)), step_of(tensor, -len(last), len(last))
            steps += pair if at < 2 else reversed(pair)
        return Lying(outer, tuple(steps))

    def operands(self, values: Values, inputs: Sequence[fx.Node] | None = None) -> dict[str, Tensor]:
        """The operands among some inputs, or among all, by name."""
        every = enumerate(self.functions.inputs if inputs is None else inputs)
        return {f"x{at}": values[node] for at, node in every if node not in self.known}

    def form(self, values: Values) -> StepForm:
        """The form of a step."""
        functions = self.functions
        inputs = tuple(self._input_text(node, values) for node in functions.inputs)
        scaled = self.frame.alpha != 1.0
        return StepForm(inputs, functions.peaks, functions.sum_texts, bool(functions.meets), self.wide, scaled)

    def _input_text(self, node: fx.Node, values: Values) -> InputText:
        known, labels = node in self.known, tuple(text for text, _ in self._along(node, values))
        reach = sum(extent * step for extent, step in zip(values[node].shape, values[node].stride(), strict=True))
        return InputText(labels, known, not known and reach >= 2**31, self.functions.is_small(node))

    def places(self, values: Values, inputs: Sequence[fx.Node] | None = None) -> dict[str, int]:
        """The numbers that coordinates along some inputs, or all, are found with, by name."""
        return {
            f"x{at}l{place}_{word}": number
            for at, node in enumerate(self.functions.inputs if inputs is None else inputs)
            for place, (_, numbers) in enumerate(self._along(node, values))
            for word, number in numbers.items()
        }

    def _along(self, node: fx.Node, values: Values) -> Iterator[tuple[LabelText, dict[str, int]]]:
        """The labels that an input moves along; divisor, extent and stride of a coordinate where it takes them."""
        every = zip(self.frame.order, values[node].shape, values[node].stride(), strict=True)
        for label, extent, step in every:
            if extent > 1 or label == self.known.get(node):
                group = self._group[label]
                side = getattr(self.sides, group)
                at = side.index(label)
                inner, outer = size_of(self.frame, side[at + 1 :]), size_of(self.frame, side[:at])
                own = {"div": inner} if inner > 1 else {}
                own |= {"ext": self.frame.extents[label]} if outer > 1 else {}
                yield LabelText(group, inner > 1, outer > 1), own if node in self.known else {**own, "step": step}


class Call(NamedTuple):
    """A kernel, its grid, and arguments, constants and options by name."""

    kernel: Any
    grid: tuple[int, ...]
    given: Mapping[str, Any]

    def __call__(self) -> Any:
        """Launch it, or compile it where its tensors have no memory; what Triton has compiled."""
        if any(isinstance(each, Tensor) and each.is_meta for each in self.given.values()):
            return self.kernel.warmup(grid=self.grid, **self.given)
        with aside_of_capture():
            return self.kernel[self.grid](**self.given)


#: The text of a kernel with these parameters and constants.
Text = Callable[[Sequence[str], Sequence[str]], str]


class Kernel:
    """A kernel whose parameters are the arguments that it is first called with, by name and in order."""

    def __init__(
        self, text: Text, constants: Mapping[str, Any], options: Mapping[str, Any],
        names: Callable[[], Mapping[str, Any]] = names,
    ) -> None:  # fmt: skip
        self.constants, self._options, self._text, self._names = constants, options, text, names
        self._jit: Any = None

    def __call__(self, grid: tuple[int, ...], given: Mapping[str, Any]) -> Call:
        """The call with these arguments."""
        if self._jit is None:
            self._jit = jit_function(self._text([*given], [*self.constants]), self._names)
        return Call(self._jit, grid, {**given, **self.constants, **self._options})


class Launches(NamedTuple):
    """Calls of kernels in order, memory besides their results, and those: D, peaks and sums, or gradients."""

    calls: list[Call]
    room: Sequence[Tensor]
    found: Sequence[Tensor]
    of_inputs: Mapping[fx.Node, Tensor] = {}

    def run(self) -> Sequence[Tensor]:
        """Launch all of them."""
        for call in self.calls:
            call()
        return self.found


def terms_of(tensor: Tensor, rows: int, terms: int) -> tuple[Tensor, Tensor]:
    """The terms of a matrix, (terms, rows, k), and the factor of them all; k is padded to words of 16 bytes."""
    rest, factor = tensor.reshape(rows, -1), tensor.new_ones(())
    if terms == HALVES:
        factor = torch.exp2(torch.ceil(torch.log2(rest.abs().amax().clamp(1e-30, 1e30))) - _SCALED)
        rest = rest / factor
    k = rest.shape[1]
    found = tensor.new_zeros((terms, rows, padded_length(k)), dtype=TYPES[terms])
    for at, place in enumerate(found[:, :, :k]):
        place.copy_(rest)
        if at + 1 < terms:
            rest = rest - place.float()
    return found, factor


def terms_for(precision: str, k: int) -> int:
    """The terms of float32 values for sums of k products; 0 where they are multiplied as they are."""
    if precision == "ieee_bound":
        return BOUND if BF16X6.admitted(k, (k,)) else 0
    return HALVES if precision == "tf32x3" else 0


def held(*tensors: Tensor) -> bool:
    """Whether terms hold all values of operands. It waits for the device; in a graph, where none can, they may not."""
    if any(each.is_meta for each in tensors):
        return True
    if tensors[0].is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return bool((torch.stack([each.abs().amax() for each in tensors]) < LARGEST).all())


def tensor_map(
    tensor: Tensor, outer: Outer, sides: tuple[int, int], step: int, tile: tuple[int, int], laid: bool,
    swizzle: int | None = None,
) -> Any:  # fmt: skip
    """A tensor map of (batch, rows, columns), tiles of some rows and columns; `step` is from row to row.

    `laid`: for a kernel in Gluon, which says how tiles lie in shared memory; `swizzle`: in stretches of so many bytes.
    """
    block = [*(1 for _ in outer), *tile]
    shape = [*(extent for _, extent, _ in outer), *sides]
    strides = [*(stride for _, _, stride in outer), step or BYTES, 1]
    if not laid:
        return import_module("triton.tools.tensor_descriptor").TensorDescriptor(tensor, shape, strides, block)
    layouts = import_module("triton.experimental.gluon.language").NVMMASharedLayout
    if swizzle is None:
        layout = layouts.get_default_for(block, TRITON_TYPES[tensor.dtype].meant)
    else:
        layout = layouts(swizzle_byte_width=swizzle, element_bitwidth=8 * tensor.element_size(), rank=len(block))
    hopper = import_module("triton.experimental.gluon.nvidia.hopper")
    return hopper.TensorDescriptor(tensor, shape, strides, block, layout)
