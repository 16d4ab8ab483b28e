"""Arguments of the kernels for cascades: labels by side, extents, strides, operands, and how each lies along S."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from weft.cascades.elements import ElementFunctions
from weft.cascades.frame import CascadeFrame, size_of, step_of
from weft.cascades.program import CascadeProgram, Values
from weft.cascades.step import InputText, LabelText, StepForm, words_of
from weft.cascades.terms import TYPES
from weft.fn.pointwise import Pointwise
from weft.gpu.common.constants import TRITON_TYPES
from weft.gpu.common.driver import aside_of_capture
from weft.gpu.common.release import FUSION
from weft.spec import Label

BYTES = 16  # that a tensor map's strides are multiples of
LEAST_ROWS = 64  # of a label that has the rows of a tile to itself
Outer = list[tuple[int, int, int]]


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
        e = () if frame.second is None else frame.second.n
        outer = len(first.m) - 1 if len(first.m) > 1 and frame.extents[first.m[-1]] >= LEAST_ROWS else 0
        return cls((*first.batch, *first.m[:outer]), first.m[outer:], first.n, first.k, e)


class KernelArguments:
    """The arguments that all kernels of a program take."""

    def __init__(self, program: CascadeProgram, frame: CascadeFrame, known: Mapping[fx.Node, Label]) -> None:
        self.program, self.frame, self.known = program, frame, known
        self.functions = ElementFunctions(program, frame)
        self.sides = Sides.of(frame)
        self.sizes = tuple(size_of(frame, each) for each in self.sides)  # batch, m, n, k, e
        pairs = (("batch", self.sides.batch), ("m", self.sides.m), ("n", self.sides.n))
        self._group = {label: name for name, labels in pairs for label in labels}

    def groups(self, at: int) -> tuple[int, ...]:
        """The dimensions of an arranged A, B or C that are one stretch together."""
        outer = len(self.sides.batch) if at == 0 else len(self.frame.first.batch)
        inner = (self.sides.m, self.sides.n, self.sides.e)[at]
        return *(1,) * outer, len(inner), len(self.sides.n if at == 2 else self.sides.k)

    def constants(self, written: Mapping[str, Pointwise | None], tile: Any) -> dict[str, Any]:
        """Constants and options of a kernel: functions, types, warps and stages of loads."""
        types = self.frame.products
        found: dict[str, Any] = {name: None if each is None else each.jit for name, each in written.items()}
        found["SUMS"] = TRITON_TYPES[types.accumulate].meant
        found["PRODUCT"] = TRITON_TYPES[TYPES.get(tile.terms, types.product)].meant
        if not tile.hopper:
            found["PRECISION"] = types.as_they_are
        fusion = FUSION if self.frame.device.type == "cuda" else {}
        return {**found, "num_warps": tile.warps, "num_stages": tile.stages, **fusion}

    def outer(self, tensors: Sequence[Tensor | None]) -> list[Outer]:
        """For A, B and C each: divisor in the batch's index, extent and stride of the labels that it moves along."""
        batch, found = self.sides.batch, []
        for at, tensor in enumerate(tensors):
            own = batch if at == 0 else self.frame.first.batch
            found.append([
                (size_of(self.frame, batch[place + 1 :]), tensor.shape[place], tensor.stride(place))
                for place in range(len(own))
                if tensor is not None and tensor.shape[place] > 1
            ])  # fmt: skip
        return found

    def steps(self, a: Tensor, b: Tensor, c: Tensor | None) -> tuple[int, int, int, int, int, int]:
        """Strides of A along m and k, of B along n and k, of C along n and e."""
        sides, found = self.sides, []
        each = ((a, sides.m, sides.k), (b, sides.n, sides.k), (c, sides.e, sides.n))
        for at, (tensor, inner, last) in enumerate(each):
            if tensor is None:
                found += [0, 0]
            else:
                found += [step_of(tensor, len(self.groups(at)) - 2, len(inner)), step_of(tensor, -len(last), len(last))]
        a_m, a_k, b_n, b_k, c_e, c_n = found
        return a_m, a_k, b_n, b_k, c_n, c_e

    def operands(self, values: Values) -> list[Tensor]:
        """The operands that the function takes."""
        return [values[node] for node in self.functions.inputs if node not in self.known]

    def form(self, values: Values) -> StepForm:
        """The form of a step."""
        functions = self.functions
        inputs = tuple(self._input_text(node, values) for node in functions.inputs)
        wide = self.frame.products.accumulate == torch.float64
        scaled = self.frame.alpha != 1.0
        return StepForm(inputs, functions.peaks, functions.sum_texts, bool(functions.meets), wide, scaled)

    def _input_text(self, node: fx.Node, values: Values) -> InputText:
        known, labels = node in self.known, []
        for label in self._labels(node, values):
            group = self._group[label]
            along = getattr(self.sides, group)
            at = along.index(label)
            inner, outer = size_of(self.frame, along[at + 1 :]), size_of(self.frame, along[:at])
            labels.append(LabelText(group, inner > 1, outer > 1))
        reach = sum(extent * step for extent, step in zip(values[node].shape, values[node].stride(), strict=True))
        return InputText(tuple(labels), known, not known and reach >= 2**31, self.functions.is_small(node))

    def _labels(self, node: fx.Node, values: Values) -> list[Label]:
        """The labels that an input moves along."""
        if node in self.known:
            return [self.known[node]]
        return [label for label, extent in zip(self.frame.order, values[node].shape, strict=True) if extent > 1]

    def places(self, values: Values, form: StepForm, some: Sequence[int] | None = None) -> list[int]:
        """The values of `step.parameters`; where the form has only some of the inputs, those are their numbers."""
        inputs, found = self.functions.inputs, []
        if some is not None:
            inputs = tuple(inputs[at] for at in some)
        for node, text in zip(inputs, form.inputs, strict=True):
            for label, each in zip(self._labels(node, values), text.labels, strict=True):
                along = getattr(self.sides, each.group)
                numbers = {
                    "div": size_of(self.frame, along[along.index(label) + 1 :]), "ext": self.frame.extents[label],
                    "step": values[node].stride(self.frame.order.index(label)),
                }  # fmt: skip
                found += [numbers[word] for word in words_of(each, text.coordinate)]
        return found


def flat(outer: Sequence[Outer], count: int = 3) -> list[int]:
    """The first numbers of all labels of the batch, of A, B and C in order."""
    return [part for each in outer for label in each for part in label[:count]]


class Call(NamedTuple):
    """A kernel, its grid, its arguments in order, and constants and options by name."""

    kernel: Any
    grid: tuple[int, ...]
    given: tuple[Any, ...]
    named: dict[str, Any]

    def __call__(self) -> Any:
        """Launch it, or compile it where its tensors have no memory; what Triton has compiled."""
        if any(isinstance(each, Tensor) and each.is_meta for each in self.given):
            return self.kernel.warmup(*self.given, grid=self.grid, **self.named)
        with aside_of_capture():
            return self.kernel[self.grid](*self.given, **self.named)


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


def term_map(terms: Tensor, sides: tuple[int, int], tile: tuple[int, int]) -> Any:
    """A tensor map of the terms of a matrix of some rows and columns, (terms, rows, columns), for a kernel in Gluon."""
    return tensor_map(terms, [(1, terms.shape[0], terms.stride(0))], sides, terms.shape[2], tile, laid=True)


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
