"""The launches of kernels for gradients: which programs they serve, and what they are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from weft.cascades.arguments import KernelArguments, Outer, launched, size_of, tensor_map
from weft.cascades.backward_kernel import BackwardForm, backward_text
from weft.cascades.forward import Values
from weft.cascades.frame import Frame
from weft.cascades.hopper import GROUPS, ROWS, STAGES, WARPS, namespace
from weft.cascades.hopper_backward import hopper_backward_text
from weft.cascades.program import Program
from weft.cascades.serving import LEAST, LEAST_E, unserved
from weft.cascades.step import StepForm
from weft.cascades.stretches import Stretches
from weft.fn.triton.device_code import jit_function
from weft.gpu.common.constants import TRITON_TYPES
from weft.gpu.common.constraints import power_of_two
from weft.gpu.common.release import FUSION
from weft.spec import Label

_LONGEST = 256  # of K and E: a tile has all of both
_HOPPER_LONGEST = 128  # that registers of the warp-specialised kernels hold


class BackwardTile(NamedTuple):
    """Rows and columns of a tile of S, warps, and stages of loads; `hopper`: the warp-specialised kernel."""

    m: int
    n: int
    warps: int
    stages: int
    hopper: bool = False


def differentiates(program: Program, frame: Frame) -> bool:
    """Whether kernels make the gradients of A, B and C."""
    if unserved(program, frame) is not None or frame.products.accumulate != torch.float32:
        return False
    sides = [() if frame.second is None else frame.second.n, frame.first.k]
    stored = frame.second is None or frame.stored == frame.products.product
    sums = all(target.kind in ("sum", "product") for target in program.stages[0].targets)
    return stored and sums and all(size_of(frame, labels) <= _LONGEST for labels in sides)


def backward_tiles(frame: Frame, widest: int, hopper: bool) -> tuple[BackwardTile, BackwardTile]:
    """The tiles of the kernel of the rows, and of that of the columns; `hopper`: the warp-specialised ones serve."""
    if hopper and frame.second is not None and widest <= _HOPPER_LONGEST:
        stays = GROUPS * ROWS
        return BackwardTile(stays, 64, WARPS, STAGES, True), BackwardTile(64, stays, WARPS, STAGES, True)
    if frame.products.product.itemsize > 2:
        side = 32 if widest > 64 else 64
        return BackwardTile(side, 32, 4, 2), BackwardTile(32, side, 4, 2)
    if widest > 128:
        return BackwardTile(64, 32, 8, 2), BackwardTile(32, 64, 8, 2)
    if widest > 64:
        return BackwardTile(128, 64, 8, 2), BackwardTile(64, 128, 8, 2)
    return BackwardTile(128, 128, 8, 2), BackwardTile(64, 128, 8, 3)


def _sides(frame: Frame, k: int, e: int) -> tuple[int, int]:
    """The indices of K and E that a tile has."""
    least = LEAST_E if frame.products.product.itemsize == 2 else LEAST
    return max(power_of_two(k), least), max(power_of_two(e), least)


class _Given(NamedTuple):
    """The arguments of both kernels: A, B, C, dD, results, vectors; labels of the batch, strides, places of inputs."""

    tensors: tuple[Any, ...]
    outer: list[Outer]
    steps: tuple[int, ...]
    places: list[int]


class _Kernel:
    """The kernel of the rows, or of the columns."""

    def __init__(
        self, arguments: KernelArguments, program: Program, tile: BackwardTile, columns: bool, step: StepForm,
        outer: Sequence[Outer],
    ) -> None:  # fmt: skip
        self.arguments, self.tile, self.columns = arguments, tile, columns
        frame, sides, functions = arguments.frame, arguments.sides, arguments.functions
        along, extents = (sides.m, sides.n), (tile.m, tile.n)
        if columns:
            along, extents = along[::-1], extents[::-1]
        stretches = Stretches(program, frame, arguments.known, along, extents)
        _, m, n, k, e = arguments.sizes
        self._tiles = -(-(n if columns else m) // extents[0])
        tile_k, tile_e = _sides(frame, k, e)
        sides_of: dict[str, int] = {"BK": tile_k, "BE": tile_e}
        if tile.hopper:
            sides_of["MOVING"] = tile.m if columns else tile.n
        else:
            sides_of |= {"BM": tile.m, "BN": tile.n}
        written = {
            "FIRST": functions.first(), "FIRST_SETTLED": functions.first(stretches.conditions),
            "PULL": functions.pull(), "PULL_SETTLED": functions.pull(stretches.conditions),
        }  # fmt: skip
        types = frame.products
        self.constants: dict[str, Any] = dict(sides_of)
        self.constants |= {name: None if each is None else each.jit for name, each in written.items()}
        self.constants |= {"SUMS": TRITON_TYPES[types.accumulate].meant, "PRODUCT": TRITON_TYPES[types.product].meant}
        if not tile.hopper:
            self.constants["PRECISION"] = types.as_they_are
        of_a, of_b, of_c = map(len, outer)
        whole = (True, k == sides_of["BK"], e == sides_of["BE"])
        form = BackwardForm(step, columns, program.factor is not None, stretches.present, (of_a, of_b, of_c), whole)
        text = hopper_backward_text(form) if tile.hopper else backward_text(form)
        self.kernel = jit_function(text, namespace if tile.hopper else dict)
        self._table = stretches.shared(1)

    def __call__(self, given: _Given) -> None:
        tensors, numbers = list(given.tensors), [float(self.arguments.frame.alpha), *self.arguments.sizes]
        if self.tile.hopper:
            tensors[:4] = self._maps(given)
            numbers += [part for each in given.outer for label in each for part in label[:2]]
        else:
            numbers += [*given.steps, *(part for each in given.outer for label in each for part in label)]
        options: dict[str, Any] = {"num_warps": self.tile.warps, "num_stages": self.tile.stages}
        if self.arguments.frame.device.type == "cuda":
            options |= FUSION
        grid = (self.arguments.sizes[0] * self._tiles,)
        launched(self.kernel, grid, (*tensors, self._table, *numbers, *given.places), {**self.constants, **options})

    def _maps(self, given: _Given) -> list[Any]:
        """Tensor maps of A, B, C and dD; a consumer has half of the tiles that stay."""
        batch, m, n, k, e = self.arguments.sizes
        tile_k, tile_e = _sides(self.arguments.frame, k, e)
        rows, columns = (self.tile.m, ROWS) if self.columns else (ROWS, self.tile.n)
        a, b, c, d = given.tensors[:4]
        of_d: Outer = [(1, batch, m * e)]
        return [
            tensor_map(a, given.outer[0], (m, k), given.steps[0], (rows, tile_k), laid=True),
            tensor_map(b, given.outer[1], (n, k), given.steps[2], (columns, tile_k), laid=True),
            tensor_map(c, given.outer[2], (n, e), given.steps[4], (columns, tile_e), laid=True),
            tensor_map(d, of_d, (m, e), e, (rows, tile_e), laid=True),
        ]


class BackwardLaunch:
    """The kernels for gradients of a program: call it with what the forward pass was given and made."""

    def __init__(self, program: Program, frame: Frame, known: Mapping[fx.Node, Label], hopper: bool = False) -> None:
        self.program, self.frame, self.hopper = program, frame, hopper
        self.arguments = KernelArguments(program, frame, known)
        self._kernels: dict[bool, _Kernel] = {}

    def __call__(
        self, tensors: tuple[Tensor, Tensor, Tensor | None], needs: Sequence[bool], d: Tensor | None, values: Values,
        of_nodes: Values,
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        """Gradients of A, B and C where `needs` says so, in their types; `d` is that of D, `of_nodes` those of sums."""
        a, b, c = tensors
        frame, arguments, functions = self.frame, self.arguments, self.arguments.functions
        batch, m, n, k, e = arguments.sizes
        outer = arguments.outer(tensors)
        step = arguments.form(values)
        product = frame.products.product
        if functions.meets:
            d = torch.zeros((batch, m, e), dtype=product, device=a.device) if d is None else d.to(product).contiguous()
        repeats = len(arguments.sides.batch) > len(frame.first.batch)
        wide = torch.float32 if repeats else product
        da = torch.empty((batch, m, k) if needs[0] else 1, dtype=product, device=a.device)
        db = torch.empty((batch, n, k) if needs[1] or needs[2] else 1, dtype=wide, device=a.device)
        dc = torch.empty((batch, n, e) if needs[1] or needs[2] else 1, dtype=wide, device=a.device)
        rows = [self._of_rows(values[peak]) for peak in functions.stage.peaks]
        for target in functions.sums:
            grad = of_nodes.get(target.gives)
            rows.append(self._of_rows(torch.zeros((), device=a.device) if grad is None else grad))
        factor = a if self.program.factor is None else self._of_rows(values[self.program.factor])
        given = [a, b, a if c is None else c, a if d is None else d, da, db, dc, factor, *rows]
        given += arguments.operands(values)
        called = _Given(tuple(given), outer, arguments.steps(a, b, c), arguments.places(values, step))
        for columns, needed in ((False, needs[0]), (True, needs[1] or needs[2])):
            if not needed:
                continue
            if columns not in self._kernels:
                tile = backward_tiles(frame, max(k, e), self.hopper)[columns]
                self._kernels[columns] = _Kernel(arguments, self.program, tile, columns, step, outer)
            self._kernels[columns](called)
        return (
            da.reshape(a.shape) if needs[0] else None,
            self._repeated(db).reshape(b.shape) if needs[1] else None,
            self._as_c(dc, c) if needs[2] and c is not None else None,
        )

    def _of_rows(self, value: Tensor) -> Tensor:
        """A value of each row."""
        first = self.frame.first
        rows = self.frame.shape(frozenset((*first.batch, *first.m)))
        return value.to(torch.float32).expand(rows).contiguous()

    def _repeated(self, grad: Tensor) -> Tensor:
        """A gradient of B or C, summed along labels of the batch that those lack."""
        own = size_of(self.frame, self.frame.first.batch)
        if grad.shape[0] == own:
            return grad
        return grad.reshape(own, -1, *grad.shape[1:]).sum(1)

    def _as_c(self, grad: Tensor, c: Tensor) -> Tensor:
        """A gradient (batch, columns, e) as C lies: (batch, e, columns)."""
        return self._repeated(grad).mT.reshape(c.shape)
