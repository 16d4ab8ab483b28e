"""A stage on one row of a block after another, and its source as numba compiles it.

    sweep      x[j] = where(j <= i, s[j], -inf)      kept for the row
    between    m = max x
    sweep      w[j] = exp(x[j] - m)                  in place of s[j], where it meets C
    between    l = sum w

Sweeps go along the columns, the labels that all reductions of the stage reduce; between them is what a row is reduced
to. A value is `wide` where it moves along the columns; others are one number for each row. Rows are drawn by a team of
threads, some at a time. All that a row is given and leaves is a `RowPlace`: an address, and a step along each dimension
of S that is no column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import fx

from weft.base.figures import dtype_name
from weft.cascades.lowering import PEAK
from weft.cascades.program import CascadeProgram, CascadeTarget
from weft.cpu import row_call
from weft.cpu.gett.stages import HEAD, memory_functions
from weft.fn.numba.writer import NumbaWriter
from weft.fn.pointwise import inlined
from weft.fn.writer import Held
from weft.spec import Label


class NotInRows(Exception):
    """A stage that does not run by rows; the text says what stands against it."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Numbers of the row that are made first, then the wide values that are stored, then what is reduced."""

    numbers: tuple[fx.Node, ...]
    stored: tuple[fx.Node, ...]
    reductions: tuple[CascadeTarget, ...]


@dataclass(frozen=True, slots=True)
class Sweeps:
    """All sweeps of a stage; `given` are the nodes that a row is given, `inside` reductions that are a row's own."""

    columns: tuple[Label, ...]
    sweeps: tuple[Sweep, ...]
    given: tuple[fx.Node, ...]
    inside: frozenset[fx.Node]
    product: CascadeTarget | None
    stores: tuple[CascadeTarget, ...]


#: Words of a call: tasks are stretches of boxes; `MULTIPLY` is the address of BLAS.
COUNTER, TASKS, TABLE, BOXES, BOX_BYTES, CONSTANTS, BLOCK_BYTES, MULTIPLY, SHAPES, WORDS = range(10)
#: Words of a box: its rows, columns and where they begin, then those of the products, extents along rows, and for each
#: place its address and steps.
ROWS, COLUMNS, START, PRODUCTS = range(4)
EXTENTS = PRODUCTS + row_call.WORDS

_SOURCE = HEAD + """\
from weft.cpu.gett.vector import allocate, fetch_add, load_word, release, whole_vectors
from weft.cpu.row_kernel import better, first_product, row_extreme, row_place, row_sum, second_product
{memory}

@cfunc("void(int64)", error_model="numpy", fastmath={{"contract"}})
def entry(frame):
    whole_vectors()
    {constants}
    table, boxes, size = load_word(frame + 16), load_word(frame + 24), load_word(frame + 32)
    multiply, shapes = load_word(frame + 56), load_word(frame + 64)
    own = allocate(load_word(frame + 48) + 64)
    block, memory, room = (own + 63) // 64 * 64, 0, 0
    while True:
        task = fetch_add(frame)
        if task >= load_word(frame + 8):
            break
        for at in range(load_word(table + 16 * task), load_word(table + 16 * task + 8)):
            box = boxes + at * size
            n, start = load_word(box + 8), load_word(box + 16)
            if room < 8 * n:
                if room > 0:
                    release(memory)
                room = (8 * n + 127) // 64 * 64
                memory = allocate({count} * room + 64)
            {head}
            {first}
            for row in range(load_word(box)):
                {body}
            {second}
    if room > 0:
        release(memory)
    release(own)
"""


class RowPlace(NamedTuple):
    """Memory that a row reads or writes: its role, its type, and the node whose value it has."""

    role: str  # "given", "x", "y", "d", "state", "best", "store"
    dtype: torch.dtype
    which: Any = None


class RowText:
    """The source of a stage's sweeps. `outer`: S is no sum, and multiplied here."""

    def __init__(self, program: CascadeProgram, sweeps: Sweeps, outer: bool) -> None:
        self.between, self.frame, self.sweeps, self.outer = program.between, program.frame, sweeps, outer
        self.dims = len(self.frame.order) - len(sweeps.columns)
        self._reduced = {each.node for sweep in sweeps.sweeps for each in sweep.reductions}
        self.s, self.wide = self.between.inputs[0], set(sweeps.columns)
        self.dtype: torch.dtype = self.s.meta["dtype"]
        self.writer = NumbaWriter(parameters=True)
        self.places: list[RowPlace] = []
        self._body = self.writer.lines
        self._rooms = 0
        self._known: dict[fx.Node, Held] = {}  # one for each row
        self._kept: dict[fx.Node, tuple[str, torch.dtype]] = {}  # where a row of it lies, and in which type
        self._scales: dict[fx.Node | None, str] = {}
        self._taken = False  # whether what meets C is where S was
        self.source = self._written()

    def _place(self, role: str, dtype: torch.dtype, which: fx.Node | None = None) -> str:
        """The pointer of a place."""
        found = RowPlace(role, dtype, which)
        if found not in self.places:
            self.places.append(found)
        return f"p{self.places.index(found)}"

    def is_wide(self, node: fx.Node) -> bool:
        """Whether a row has a value for each column."""
        return bool(self.between.modes[node] & self.wide)

    def _written(self) -> str:
        loads = []
        for node in self.sweeps.given:
            if not self.is_wide(node):
                pointer, dtype = self._place("given", node.meta["dtype"], node), node.meta["dtype"]
                self._known[node] = Held(f"{pointer}_value", dtype)
                loads.append(f"{pointer}_value = {_load(pointer, dtype, '0')}")
        if self.outer:
            loads.append(f"x = {_load(self._place('x', self.dtype), self.dtype, '0')}")
        for sweep in self.sweeps.sweeps:
            self._sweep(sweep)
        for each in self.sweeps.stores:
            if not self.is_wide(each.node):
                self._body.append(self._stored(each, self._known[each.node], "0"))
        body = [*self._pointers(), *loads, *self._body]
        rooms = [f"b{at} = (memory + 63) // 64 * 64 + {at} * room" for at in range(self._rooms)]
        head, constants, kind = [*self._bases(), *rooms], self._constants(), dtype_name(self.dtype)
        arguments = f"(multiply, shapes, box + {8 * PRODUCTS}, block, {kind}(0))"
        return _SOURCE.format(
            memory=memory_functions([*body, *constants]), constants="\n    ".join(constants),
            head="\n            ".join(head), count=max(self._rooms, 1), body="\n                ".join(body),
            first="" if self.outer else f"first_product{arguments}",
            second="" if self.sweeps.product is None else f"second_product{arguments}",
        )  # fmt: skip

    # -- a row -----------------------------------------------------------------------------------------------------

    def _bases(self) -> list[str]:
        names = [f"e{dim}" for dim in range(self.dims)]
        for place in range(len(self.places)):
            names += [f"base{place}", *(f"t{place}_{dim}" for dim in range(self.dims))]
        return [f"{name} = load_word(box + {8 * at})" for at, name in enumerate(names, EXTENTS)]

    def _pointers(self) -> list[str]:
        found = [f"s, rest = block + row * n * {self.dtype.itemsize}, row"]
        for dim in reversed(range(1, self.dims)):
            found += [f"i{dim} = rest % e{dim}", f"rest = rest // e{dim}"]
        found += ["i0 = rest"] if self.dims else []
        for place in range(len(self.places)):
            found.append(f"p{place} = base{place}" + "".join(f" + i{dim} * t{place}_{dim}" for dim in range(self.dims)))
        return found

    def _constants(self) -> list[str]:
        found = [f"constants = load_word(frame + {8 * CONSTANTS})"] if self.writer.parameters else []
        return found + [
            f"{each.name} = load_{dtype_name(each.dtype)}(constants, {16 * at // each.dtype.itemsize})"
            for at, each in enumerate(self.writer.parameters)
        ]

    # -- sweeps ----------------------------------------------------------------------------------------------------

    def _sweep(self, sweep: Sweep) -> None:
        self._known.update(zip(sweep.numbers, self._values(sweep.numbers, self._known), strict=True))
        of_s = [each for each in sweep.reductions if each.node is self.s and not self.outer]
        for each in of_s:  # before what meets C takes its place
            self._reduce(each)
        loads: dict[fx.Node, Held] = dict(self._known)
        before = len(self._body)
        for node in self._reads(sweep.stored):
            loads[node] = self._load(node)
        stores: list[str] = []
        for node, held in zip(sweep.stored, self._values(sweep.stored, loads), strict=True):
            stores += self._stores(node, held)
        loop = [*self._body[before:], *stores]
        self._body[before:] = ["for j in range(n):", *(f"    {line}" for line in loop)] if stores else []
        for each in sweep.reductions:
            if each not in of_s:
                self._reduce(each)

    def _reads(self, results: Sequence[fx.Node]) -> list[fx.Node]:
        """The wide values that results are made of."""
        known = {*self._known, *self._kept, *self.sweeps.given, self.s}
        behind = self.between.ancestors(list(results), frozenset(known)) & (known - {*self._known})
        return [node for node in self.between.graph.nodes if node in behind]

    def _values(self, results: Sequence[fx.Node], known: dict[fx.Node, Held]) -> list[Held]:
        """Code of some values, from others."""
        if not results:
            return []
        given = [node for node in known if node in self.between.ancestors(list(results), frozenset(known))]
        function = self.between.function(results, given)
        return inlined(self.writer, function, [known[node] for node in given], quick=True)

    def _load(self, node: fx.Node) -> Held:
        """A wide value of a column."""
        if node is self.s and self.outer:
            return Held(self.writer.let(f"x * {_load(self._place('y', self.dtype), self.dtype, 'j')}"), self.dtype)
        wanted = node.meta["dtype"]
        if node in self._kept:
            where, dtype = self._kept[node]
        elif node is not self.s:
            where, dtype = self._place("given", wanted, node), wanted
        elif self._taken:
            raise NotInRows("S is read after what meets C has taken its place")
        else:
            where, dtype = "s", self.dtype
        return Held(self.writer.cast(self.writer.let(_load(where, dtype, "j")), dtype, wanted), wanted)

    def _stores(self, node: fx.Node, held: Held) -> list[str]:
        """Lines that store a wide value wherever it goes."""
        found, product = [], self.sweeps.product
        if product is not None and node is product.node:
            self._taken, self._kept[node] = True, ("s", self.dtype)
            found += [] if node is self.s else [_store("s", self.dtype, "j", held.name)]
        found += [self._stored(each, held, "j") for each in self.sweeps.stores if each.node is node]
        if node in self._reduced and node not in self._kept and (node is not self.s or self.outer):
            room, dtype = f"b{self._rooms}", memory_type(node.meta["dtype"])
            self._rooms, self._kept[node] = self._rooms + 1, (room, dtype)
            found.append(_store(room, dtype, "j", self.writer.cast(held.name, held.dtype, dtype)))
        return found

    def _stored(self, each: CascadeTarget, held: Held, index: str) -> str:
        """The line that stores a result."""
        dtype = self.frame.stored_type(each.node, self.between)
        name = self.writer.cast(held.name, held.dtype, dtype)
        return _store(self._place("store", dtype, each.node), dtype, index, name)

    # -- reductions ------------------------------------------------------------------------------------------------

    def _reduce(self, each: CascadeTarget) -> None:
        """Reduce a row, into the state of the rows before where the result is not the row's own."""
        inside, result, let = each.gives in self.sweeps.inside, each.gives.meta["dtype"], self.writer.let
        where, dtype = ("s", self.dtype) if each.node is self.s and not self.outer else self._kept[each.node]
        kind, sign = dtype_name(dtype), -1 if each.kind in ("amin", "argmin") else 1
        role, best = ("best", each.node) if each.kind.startswith("arg") else ("state", each.gives)
        pointer = "" if inside else self._place(role, best.meta["dtype"], each.gives)
        found = let(f"row_sum({where}, n, {kind}(0))" if each.kind == "sum" else
                    f"row_extreme({where}, n, {sign}, {kind}(0))")  # fmt: skip
        if each.kind == PEAK:
            self._peak(each, found, kind, pointer)
        elif role == "best":
            place = let(f"int64(row_place({where}, n, {found}, {kind}(0))) + start")
            if inside:
                self._known[each.gives] = Held(place, torch.int64)
            else:
                self._choose(each, found, place, pointer, dtype, sign)
        elif inside:
            self._known[each.gives] = Held(self.writer.cast(found, dtype, result), result)
        elif each.kind == "sum":
            known = let(_load(pointer, result, "0"))
            earlier = known if each.scale is None else f"{known} * {self._scales[each.scale]}"
            self._body.append(_store(pointer, result, "0", f"{dtype_name(result)}({earlier} + {found})"))
        else:
            known = self.writer.cast(let(_load(pointer, result, "0")), result, dtype)
            chosen = let(f"{found} if better({found}, {known}, {sign}) else {known}")
            self._body.append(_store(pointer, result, "0", self.writer.cast(chosen, dtype, result)))

    def _choose(self, each: CascadeTarget, best: str, place: str, values: str, dtype: torch.dtype, sign: int) -> None:
        """The place of the best value so far, and that value."""
        source, places = each.node.meta["dtype"], self._place("state", torch.int64, each.gives)
        known = self.writer.cast(self.writer.let(_load(values, source, "0")), source, dtype)
        chosen = self.writer.cast(best, dtype, source)
        self._body += [
            f"if better({best}, {known}, {sign}):",
            f"    {_store(values, source, '0', chosen)}",
            f"    {_store(places, torch.int64, '0', place)}",
        ]

    def _peak(self, each: CascadeTarget, new: str, kind: str, pointer: str) -> None:
        """The peak of a row so far, 0 where it is infinite, and the factor for what was summed over the one before."""
        zero, let = f"{kind}(0)", self.writer.let
        if pointer:
            old = let(f"load_{kind}({pointer}, 0)")
            new = let(f"{new} if better({new}, {old}, 1) else {old}")
            self._body.append(f"store_{kind}({pointer}, 0, {new})")
        safe = let(f"{zero} if abs({new}) == np.inf else {new}")
        self._known[each.gives] = Held(safe, each.gives.meta["dtype"])
        if not pointer:
            return
        before = let(f"{zero} if abs({old}) == np.inf else {old}")
        power = "quick_exp" if kind == "float32" else "quick_exp64"
        scale = let(f"{zero} if {old} == -np.inf else {kind}(vector.{power}({before} - {safe}))")
        self._scales[each.gives] = scale
        product = self.sweeps.product
        if product is not None and product.scale is each.gives:
            d = self._place("d", self.dtype)
            self._body += [
                f"if {scale} != {kind}(1):",
                f"    for j in range(load_word(shapes + {8 * row_call.E})):",
                f"        store_{kind}({d}, j, load_{kind}({d}, j) * {scale})",
            ]


def _load(pointer: str, dtype: torch.dtype, index: str) -> str:
    return f"load_{dtype_name(dtype)}({pointer}, {index})"


def _store(pointer: str, dtype: torch.dtype, index: str, value: str) -> str:
    return f"store_{dtype_name(dtype)}({pointer}, {index}, {value})"


def memory_type(dtype: torch.dtype) -> torch.dtype:
    """The type in which a row of values is kept."""
    if not dtype.is_floating_point:
        return torch.int64
    return torch.float64 if dtype == torch.float64 else torch.float32
