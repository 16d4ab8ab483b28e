"""Running a stage by rows: compiled loops over boxes, products of matrices and sweeps, in torch's threads.

One call runs all boxes of a stage. Those of the same rows are a task: one thread makes them, one after the other. The
products of a box are matrices, and torch's BLAS makes them.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx

from weft.cascades import row_text as at
from weft.cascades.frame import Box, size_of, step_of, turned
from weft.cascades.lowering import PEAK
from weft.cascades.program import PRODUCT, CascadeProgram, CascadeTarget, Stage, Tensors
from weft.cascades.row_text import NotInRows, RowPlace, RowText, Sweep, Sweeps
from weft.cpu import jit
from weft.cpu import row_call as products
from weft.cpu.host import together
from weft.errors import UnsupportedError
from weft.fn.reductions import is_reduction
from weft.spec import Label

LIMIT = 1 << 17  # elements of a block: it stays in a core's cache
MOST_BOXES = 4096  # whose words Python writes
_KINDS = (PEAK, "sum", "amax", "amin", "argmax", "argmin")
_SHARED = 1 << 15  # elements of S that threads share

Words = np.ndarray[Any, np.dtype[np.int64]]


class Geometry(NamedTuple):
    """Where boxes begin along S, their words as far as those follow, tasks, and the elements of the largest box."""

    starts: Words
    words: Words
    tasks: Words
    most: int


class StageRows:
    """A stage in compiled loops. Raises `NotInRows` for one that has none."""

    def __init__(self, program: CascadeProgram, stage: Stage) -> None:
        self.frame = frame = program.frame
        dtype = frame.products.accumulate
        if dtype not in (torch.float32, torch.float64):
            raise NotInRows("rows are of float32 and float64")
        if frame.algebra is not None:
            raise NotInRows(f"the second contraction is in the algebra {frame.algebra.name}")
        if not all(frame.extents.values()):
            raise NotInRows("an extent is 0")
        if any(frame.extents[label] > 1 and label not in (*frame.first.x, *frame.first.y) for label in frame.order):
            raise NotInRows("S has a mode that neither A nor B has")
        meets = any(each.kind == "product" for each in stage.targets)
        self.outer = not (frame.first.k or meets)
        self.sweeps = sweeps_of(program, stage, not self.outer)
        if self.outer and not set(self.sweeps.columns) <= set(frame.first.n):  # A is no number of a row
            self.outer, self.sweeps = False, sweeps_of(program, stage, True)
        wide = [each for each in self.sweeps.stores if each.node in program.between.elementwise]
        if len(self.sweeps.columns) > 1 and wide:
            raise NotInRows("what is stored has several modes of columns")
        self.dims = len(frame.order) - len(self.sweeps.columns)
        try:
            self.text = RowText(program, self.sweeps, self.outer)
        except UnsupportedError as error:
            raise NotInRows(str(error)) from None
        constants = b"".join(each.content for each in self.text.writer.parameters)
        self._constants = ctypes.create_string_buffer(constants, max(len(constants), 1))
        self._multiply = products.address(dtype)
        if not (self.outer or (self._multiply and self._plain())):
            raise NotInRows("products are not of matrices as they lie, or torch does not say where its BLAS is")
        self._address: int | None = None
        self._known: tuple[Sequence[Box], Geometry] | None = None  # of the call before

    def _plain(self) -> bool:
        """Whether products are of matrices as they lie in a box."""
        first, second = self.frame.first, self.frame.second
        if self.sweeps.product is None:
            return True
        same = (second.batch, second.m, second.k) == (first.batch, first.m, first.n)
        return same and self.sweeps.columns == first.n

    def compile(self) -> None:
        """Have the code at hand."""
        self._address = jit.compiled(self.text.source)

    def run(
        self, tensors: Tensors, values: Mapping[fx.Node, Tensor], states: Mapping[fx.Node, Any], boxes: Sequence[Box]
    ) -> None:
        """Take all boxes of A, B and C and of whole values into the states."""
        if self._known is None or self._known[0] is not boxes:
            self._known = boxes, self._geometry([box for box in boxes if all(self.frame.box_shape(box))])
        found = self._known[1]
        if not len(found.tasks):
            return
        d = states[PRODUCT].total if PRODUCT in states else None
        places = [self._tensor(place, tensors, values, states) for place in self.text.places]  # until the loops end
        words = self._words(found, places)
        self._point(words, found, tensors, d)
        self._call(words, found.tasks, self._shapes(*tensors), found.most)

    def _geometry(self, boxes: list[Box]) -> Geometry:
        """All that follows from boxes alone."""
        order, dims, first = self.frame.order, self.dims, self.frame.first
        starts, sizes = (
            np.array([[box[label][at] for label in order] for box in boxes], np.int64).reshape(len(boxes), len(order))
            for at in range(2)
        )
        words = np.zeros((len(boxes), at.EXTENTS + dims + len(self.text.places) * (1 + dims)), np.int64)
        words[:, at.ROWS], words[:, at.COLUMNS] = sizes[:, :dims].prod(1), sizes[:, dims:].prod(1)
        words[:, at.START] = starts[:, dims]
        words[:, at.EXTENTS : at.EXTENTS + dims] = sizes[:, :dims]
        groups = [[order.index(label) for label in labels] for labels in (first.batch, first.m, first.n)]
        for place, group in zip((products.BATCH, products.SIDE, products.WIDTH), groups, strict=True):
            words[:, at.PRODUCTS + place] = sizes[:, group].prod(1)
        cuts = [at for at in range(len(boxes)) if at == 0 or (starts[at, :dims] != starts[at - 1, :dims]).any()]
        tasks = np.array([cuts, [*cuts[1:], len(boxes)][: len(cuts)]], np.int64).T.copy()
        most = 0 if self.outer or not boxes else int(sizes.prod(1).max())
        return Geometry(starts, words, tasks, most)

    # -- what the code is told ---------------------------------------------------------------------------------------

    def _tensor(
        self, place: RowPlace, tensors: Tensors, values: Mapping[fx.Node, Tensor], states: Mapping[fx.Node, Any]
    ) -> Tensor:
        """The tensor of a place, whole, along S; columns lie side by side."""
        frame, (a, b, _) = self.frame, tensors
        first, which = frame.first, place.which
        tensor: Tensor
        match place.role:
            case "given":
                tensor = values[which]
                if self.text.is_wide(which):
                    columns = [frame.extents[label] for label in self.sweeps.columns]
                    tensor = tensor.expand(*tensor.shape[: self.dims], *columns)
            case "x":
                tensor = turned(a * frame.alpha, first.x, frame.order)
            case "y":
                tensor = turned(b, first.y, frame.order)
            case "d":
                second, d = frame.second, states[PRODUCT].total
                d = d.flatten(d.dim() - len(second.n)) if second.n else d.unsqueeze(-1)
                return turned(d[..., 0], (*second.batch, *second.m), frame.order)
            case "best":
                tensor = states[which].best
            case _:
                tensor = states[which].total
        return self._lined_up(tensor)

    def _lined_up(self, tensor: Tensor) -> Tensor:
        """A tensor whose columns, where it has some, lie side by side."""
        columns = [self.frame.extents[label] for label in self.sweeps.columns]
        own = tensor.shape[self.dims :]
        if all(extent == 1 for extent in own):
            return tensor
        step = 1
        for extent, wanted, found in zip(reversed(own), reversed(columns), reversed(tensor.stride()), strict=False):
            if extent != wanted or (extent > 1 and found != step):
                return tensor.expand(*tensor.shape[: self.dims], *columns).contiguous()
            step *= extent
        return tensor

    def _words(self, found: Geometry, places: Sequence[Tensor]) -> Words:
        """A row of words for each box."""
        words, dims = found.words.copy(), self.dims
        next_at = at.EXTENTS + dims
        for tensor in places:
            steps = _steps(tensor)
            words[:, next_at] = tensor.data_ptr() + found.starts @ steps
            words[:, next_at + 1 : next_at + 1 + dims] = steps[:dims]
            next_at += 1 + dims
        return words

    def _point(self, words: Words, found: Geometry, tensors: Tensors, d: Tensor | None) -> None:
        """Where the products begin, and the step from a matrix of theirs to the next."""
        (a, b, c), first, second = tensors, self.frame.first, self.frame.second
        operands = [] if self.outer else [(products.A, a, first.x), (products.B, b, first.y)]
        if d is not None:
            operands += [(products.C, c, second.y), (products.D, d, second.result)]
        for place, tensor, labels in operands:
            steps = dict(zip(labels, _steps(tensor), strict=True))
            along = np.array([steps.get(label, 0) for label in self.frame.order], np.int64)
            words[:, at.PRODUCTS + place] = tensor.data_ptr() + found.starts @ along
            words[:, at.PRODUCTS + place + 1] = step_of(tensor, 0, len(first.batch)) * tensor.element_size()

    def _shapes(self, a: Tensor, b: Tensor, c: Any) -> ctypes.Array[Any]:
        """How matrices lie, in BLAS's words."""
        frame, first, second = self.frame, self.frame.first, self.frame.second
        batch, numbers = len(first.batch), [0] * products.SHAPE_WORDS
        numbers[products.K] = size_of(frame, first.k)
        if not self.outer:
            for tensor, rows, lies, pitch in (
                (a, len(first.m), products.A_LIES, products.A_PITCH),
                (b, len(first.n), products.B_LIES, products.B_PITCH),
            ):
                by_rows, numbers[pitch] = _lie(tensor, batch, rows)
                numbers[lies] = products.AS_STORED if by_rows == (lies == products.A_LIES) else products.TURNED
        if self.sweeps.product is not None:
            by_rows, numbers[products.C_PITCH] = _lie(c, batch, len(second.n))
            numbers[products.C_LIES] = products.TURNED if by_rows else products.AS_STORED
            numbers[products.E] = numbers[products.D_PITCH] = size_of(frame, second.n)
        kind = "f" if frame.products.accumulate == torch.float32 else "d"
        for place, value in ((products.ALPHA, frame.alpha), (products.ONE, 1.0), (products.ZERO, 0.0)):
            numbers[place] = int.from_bytes(struct.pack(kind, value), "little")
        return (ctypes.c_uint64 * products.SHAPE_WORDS)(*numbers)

    def _call(self, words: Words, tasks: Words, shapes: Any, elements: int) -> None:
        assert self._address is not None
        item = self.frame.products.accumulate.itemsize
        frame = (ctypes.c_int64 * at.WORDS)(
            0, len(tasks), tasks.ctypes.data, words.ctypes.data, 8 * words.shape[1],
            ctypes.addressof(self._constants), elements * item, self._multiply, ctypes.addressof(shapes),
        )  # fmt: skip
        whole = int((words[:, at.ROWS] * words[:, at.COLUMNS]).sum())
        together(self._address, frame, len(tasks) if whole >= _SHARED else 1)


def _steps(tensor: Tensor) -> Words:
    """Bytes from one index to the next, 0 along what broadcasts."""
    size = tensor.element_size()
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return np.array([step * size if extent > 1 else 0 for extent, step in pairs], np.int64)


def _lie(tensor: Tensor, batch: int, rows: int) -> tuple[bool, int]:
    """Whether matrices (batch, rows, columns) are stored by rows, and the step from one row, or column, to the next."""
    columns = tensor.dim() - batch - rows
    height, width = (
        math.prod(tensor.shape[first : first + count]) for first, count in ((batch, rows), (batch + rows, columns))
    )
    down, across = step_of(tensor, batch, rows), step_of(tensor, batch + rows, columns)
    if width == 1 or across == 1:
        return True, max(down, width)
    return False, max(across, height)


# -- sweeps ------------------------------------------------------------------------------------------------------------


def sweeps_of(program: CascadeProgram, stage: Stage, in_memory: bool) -> Sweeps:
    """The sweeps of a stage, where S is `in_memory` or made element by element. Raises `NotInRows`."""
    between, frame = program.between, program.frame
    s, given = between.inputs[0], frozenset((*between.inputs[1:], *stage.known))
    inside = [node for node in dict.fromkeys((*stage.first, *stage.nodes)) if is_reduction(node)]
    found = [CascadeTarget(node.all_input_nodes[0], PEAK, node) for node in stage.peaks]
    found += [CascadeTarget(node.all_input_nodes[0], str(node.args[1]), node) for node in inside]
    found += [each for each in stage.targets if each.kind not in ("product", "store")]
    for each in found:
        if each.kind not in _KINDS:
            raise NotInRows(f"rows have no '{each.kind}'")
    columns = _columns(program, found)
    rows = frozenset(frame.order) - set(columns)
    wide = {node for node, modes in between.modes.items() if modes & set(columns)}
    for each in found:
        if each.node not in wide or between.modes[each.gives] != rows:
            raise NotInRows("a reduction is not of all of the rows and columns")
    product = next((each for each in stage.targets if each.kind == "product"), None)
    stores = tuple(each for each in stage.targets if each.kind == "store")
    for store in stores:
        if between.modes[store.node] != (frozenset(frame.order) if store.node in wide else rows):
            raise NotInRows("a stored value lacks a mode of S")
    if product is not None and (product.node not in wide or product.node.meta["dtype"] != s.meta["dtype"]):
        raise NotInRows("what meets C has no columns, or another type than sums")
    made = {each.gives for each in found}
    ends = [each.node for each in (*stores, *([product] if product else []))]
    wanted = [each.node for each in found] + ends
    level = _levels(program, wanted, given, made)
    count = max(level.values(), default=0) + 1
    sources = dict.fromkeys(each.node for each in found if not (in_memory and each.node is s))
    results = dict.fromkeys(node for node in ends if node in wide)
    sweeps = []
    for now in range(count):
        stored = tuple(node for node in {**sources, **results} if level[node] == now)
        numbers = tuple(
            node for node in between.calls
            if level.get(node) == now and node not in wide and node not in made and node not in given
        )  # fmt: skip
        sweeps.append(Sweep(numbers, stored, tuple(each for each in found if level[each.node] == now)))
    if in_memory and product is not None and product.node is s and not found and not stores:
        raise NotInRows("there is nothing but products")
    ordered = tuple(each for each in between.graph.nodes if each in given)
    return Sweeps(columns, tuple(sweeps), ordered, frozenset(inside), product, stores)


def _columns(program: CascadeProgram, found: Collection[CascadeTarget]) -> tuple[Label, ...]:
    """The labels that every reduction reduces, which are the last of S; the last one where nothing is reduced."""
    order = program.frame.order
    if not order:
        raise NotInRows("S is a number")
    if not found:
        return order[-1:]
    groups = {frozenset(program.between.reduced(each.gives)) for each in found}
    (columns, *others) = groups
    if others or set(order[-len(columns) :]) != columns:
        raise NotInRows("reductions are not over the same modes, the last ones of S")
    return order[-len(columns) :]


def _levels(
    program: CascadeProgram, wanted: list[fx.Node], given: frozenset[fx.Node], made: Collection[fx.Node]
) -> dict[fx.Node, int]:
    """The sweep in which each value that enters the wanted ones is known."""
    between = program.between
    needed = between.ancestors(wanted, given)
    level = dict.fromkeys((*between.inputs, *given), 0)
    for node in between.calls:
        if node in needed and node not in level:
            level[node] = max((level[each] for each in node.all_input_nodes), default=0) + (node in made)
    return level
