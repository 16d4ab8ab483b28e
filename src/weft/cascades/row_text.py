"""The source of a stage by rows, as numba compiles it: sweeps as loops along the columns, and states of rows in memory.

Rows are drawn by a team of threads, some at a time. All that a row is given and leaves is a `Place`: an address, and a
step along each dimension of S that is no column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from weft.cascades.between import Between
from weft.cascades.frame import Frame
from weft.cascades.lowering import PEAK
from weft.cascades.program import Target
from weft.cascades.states import stored_type
from weft.cascades.sweeps import NotInRows, RowReduction, Sweep, Sweeps
from weft.cpu import row_call
from weft.cpu.gett.stages import HEAD, memory_functions
from weft.fn.inliner import inlined
from weft.fn.numba.writer import NumbaWriter
from weft.fn.writer import Held

#: Words of a call: tasks are stretches of boxes; `MULTIPLY` is the address of BLAS.
COUNTER, TASKS, TABLE, BOXES, BOX_BYTES, CONSTANTS, BLOCK_BYTES, MULTIPLY, SHAPES, WORDS = range(10)
#: Words of a box: its rows, columns and where they begin, then those of the products, extents along rows, and for each
#: place its address and steps.
ROWS, COLUMNS, START, PRODUCTS = range(4)
EXTENTS = PRODUCTS + row_call.WORDS

_SOURCE = HEAD + """\
from weft.cpu.gett.vector import allocate, fetch_add, load_word, release, whole_vectors
from weft.cpu.row_products import first_product, second_product
from weft.cpu.row_reductions import better, row_extreme, row_place, row_sum
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


class Place(NamedTuple):
    """Memory that a row reads or writes: its role, its type, and the node whose value it has."""

    role: str  # "given", "x", "y", "d", "state", "best", "store"
    dtype: torch.dtype
    which: Any = None


class RowText:
    """The source of a stage's sweeps. `outer`: S is no sum, and multiplied here."""

    def __init__(self, between: Between, frame: Frame, sweeps: Sweeps, outer: bool) -> None:
        self.between, self.frame, self.sweeps, self.outer = between, frame, sweeps, outer
        self.dims = len(frame.order) - len(sweeps.columns)
        self._reduced = {each.source for sweep in sweeps.sweeps for each in sweep.reductions}
        self.s, self.wide = between.inputs[0], set(sweeps.columns)
        self.dtype: torch.dtype = self.s.meta["dtype"]
        self.writer = NumbaWriter(parameters=True)
        self.places: list[Place] = []
        self._body: list[str] = []
        self._rooms = 0
        self._known: dict[fx.Node, Held] = {}  # one for each row
        self._kept: dict[fx.Node, tuple[str, torch.dtype]] = {}  # where a row of it lies, and in which type
        self._scales: dict[fx.Node, str] = {}
        self._taken = False  # whether what meets C is where S was
        self.source = self._written()

    def _place(self, role: str, dtype: torch.dtype, which: fx.Node | None = None) -> str:
        """The pointer of a place."""
        found = Place(role, dtype, which)
        if found not in self.places:
            self.places.append(found)
        return f"p{self.places.index(found)}"

    def is_wide(self, node: fx.Node) -> bool:
        """Whether a row has a value for each column."""
        return bool(self.between.modes[node] & self.wide)

    def _written(self) -> str:
        for node in self.sweeps.given:
            if not self.is_wide(node):
                pointer = self._place("given", node.meta["dtype"], node)
                self._known[node] = Held(f"{pointer}_value", node.meta["dtype"])
        loads = [f"{held.name} = load_{_name(held.dtype)}({held.name.partition('_')[0]}, 0)"
                 for held in self._known.values()]  # fmt: skip
        if self.outer:
            loads.append(f"x = load_{_name(self.dtype)}({self._place('x', self.dtype)}, 0)")
        for sweep in self.sweeps.sweeps:
            self._sweep(sweep)
        for each in self.sweeps.stores:
            if not self.is_wide(each.node):
                self._store_number(each)
        body = [*self._pointers(), *loads, *self._body]
        rooms = [f"b{at} = (memory + 63) // 64 * 64 + {at} * room" for at in range(self._rooms)]
        head, constants, kind = [*self._bases(), *rooms], self._constants(), _name(self.dtype)
        arguments = f"(multiply, shapes, box + {8 * PRODUCTS}, block, {kind}(0))"
        return _SOURCE.format(
            memory=memory_functions([*body, *constants]), constants="\n    ".join(constants),
            head="\n            ".join(head), count=max(self._rooms, 1), body="\n                ".join(body),
            first="" if self.outer else f"first_product{arguments}",
            second="" if self.sweeps.product is None else f"second_product{arguments}",
        )  # fmt: skip

    # -- a row -----------------------------------------------------------------------------------------------------

    def _bases(self) -> list[str]:
        at, found = EXTENTS + self.dims, [f"e{dim} = load_word(box + {8 * (EXTENTS + dim)})" for dim in
                                          range(self.dims)]  # fmt: skip
        for place in range(len(self.places)):
            names = [f"base{place}", *(f"t{place}_{dim}" for dim in range(self.dims))]
            found += [f"{name} = load_word(box + {8 * (at + i)})" for i, name in enumerate(names)]
            at += 1 + self.dims
        return found

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
            f"{each.name} = load_{_name(each.dtype)}(constants, {16 * at // each.dtype.itemsize})"
            for at, each in enumerate(self.writer.parameters)
        ]

    def _room(self) -> str:
        self._rooms += 1
        return f"b{self._rooms - 1}"

    # -- sweeps ----------------------------------------------------------------------------------------------------

    def _sweep(self, sweep: Sweep) -> None:
        if sweep.numbers:
            values = self._values(sweep.numbers, self._known)
            self._known.update(zip(sweep.numbers, values, strict=True))
        of_s = [each for each in sweep.reductions if each.source is self.s and not self.outer]
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
        behind = self.between.ancestors(list(results), frozenset(known))
        return [node for node in self.between.graph.nodes if node in behind and node in known and node not in
                self._known]  # fmt: skip

    def _values(self, results: Sequence[fx.Node], known: dict[fx.Node, Held]) -> list[Held]:
        """Code of some values, from others."""
        if not results:
            return []
        given = [node for node in known if node in self.between.ancestors(list(results), frozenset(known))]
        function = self.between.function(results, given)
        before = len(self.writer.lines)
        found = inlined(self.writer, function, [known[node] for node in given], quick=True)
        self._body += self.writer.lines[before:]
        return found

    def _load(self, node: fx.Node) -> Held:
        """A wide value of a column."""
        if node is self.s and self.outer:
            name = self.writer.let(f"x * load_{_name(self.dtype)}({self._place('y', self.dtype)}, j)")
            self._body.append(self.writer.lines[-1])
            return Held(name, self.dtype)
        if node is self.s:
            if self._taken and node not in self._kept:
                raise NotInRows("S is read after what meets C has taken its place")
            where, dtype = "s", self.dtype
        elif node in self._kept:
            where, dtype = self._kept[node]
        else:
            where, dtype = self._place("given", node.meta["dtype"], node), node.meta["dtype"]
        name = self.writer.let(f"load_{_name(dtype)}({where}, j)")
        self._body.append(self.writer.lines[-1])
        return Held(self._cast(name, dtype, node.meta["dtype"]), node.meta["dtype"])

    def _cast(self, name: str, held: torch.dtype, dtype: torch.dtype) -> str:
        before = len(self.writer.lines)
        found = self.writer.cast(name, held, dtype)
        self._body += self.writer.lines[before:]
        return found

    def _stores(self, node: fx.Node, held: Held) -> list[str]:
        """Lines that store a wide value wherever it goes."""
        found, product = [], self.sweeps.product
        if product is not None and node is product.node:
            self._taken, self._kept[node] = True, ("s", self.dtype)
            found += [] if node is self.s else [f"store_{_name(self.dtype)}(s, j, {held.name})"]
        for each in self.sweeps.stores:
            if each.node is node:
                dtype = stored_type(each, self.between, self.frame)
                name = self._cast(held.name, held.dtype, dtype)
                found.append(f"store_{_name(dtype)}({self._place('store', dtype, node)}, j, {name})")
        if node in self._reduced and node not in self._kept and (node is not self.s or self.outer):
            room, dtype = self._room(), memory_type(node.meta["dtype"])
            self._kept[node] = room, dtype
            found.append(f"store_{_name(dtype)}({room}, j, {self._cast(held.name, held.dtype, dtype)})")
        return found

    def _store_number(self, each: Target) -> None:
        held, dtype = self._known[each.node], stored_type(each, self.between, self.frame)
        pointer = self._place("store", dtype, each.node)
        self._body.append(f"store_{_name(dtype)}({pointer}, 0, {self._cast(held.name, held.dtype, dtype)})")

    # -- reductions ------------------------------------------------------------------------------------------------

    def _reduce(self, each: RowReduction) -> None:
        if each.source is self.s and not self.outer:
            where, dtype = "s", self.dtype
        else:
            where, dtype = self._kept[each.source]
        kind, result = _name(dtype), each.node.meta["dtype"]
        if each.kind == "sum":
            if each.target is None:
                self._let(each.node, f"row_sum({where}, n, {kind}(0))", dtype)
            else:
                pointer = self._place("state", result, each.node)
                scale = None if each.target.scale is None else self._scales[each.target.scale]
                self._sum_into(pointer, result, where, scale)
            return
        sign = -1 if each.kind in ("amin", "argmin") else 1
        if each.kind == PEAK:
            self._peak(each, self._line(f"row_extreme({where}, n, 1, {kind}(0))"), kind)
            return
        best = self._line(f"row_extreme({where}, n, {sign}, {kind}(0))")
        if each.kind in ("amax", "amin"):
            if each.target is None:
                self._known[each.node] = Held(self._cast(best, dtype, result), result)
            else:
                pointer = self._place("state", result, each.node)
                known = self._cast(self._line(f"load_{_name(result)}({pointer}, 0)"), result, dtype)
                chosen = self._line(f"{best} if better({best}, {known}, {sign}) else {known}")
                self._body.append(f"store_{_name(result)}({pointer}, 0, {self._cast(chosen, dtype, result)})")
        else:
            place = self._line(f"int64(row_place({where}, n, {best}, {kind}(0))) + start")
            self._choose(each, best, place, dtype, sign)

    def _choose(self, each: RowReduction, best: str, place: str, dtype: torch.dtype, sign: int) -> None:
        if each.target is None:
            self._known[each.node] = Held(place, torch.int64)
            return
        source = each.source.meta["dtype"]
        values, places = self._place("best", source, each.node), self._place("state", torch.int64, each.node)
        known = self._cast(self._line(f"load_{_name(source)}({values}, 0)"), source, dtype)
        chosen = self._cast(best, dtype, source)
        self._body += [
            f"if better({best}, {known}, {sign}):",
            f"    store_{_name(source)}({values}, 0, {chosen})",
            f"    store_int64({places}, 0, {place})",
        ]

    def _peak(self, each: RowReduction, best: str, kind: str) -> None:
        """The peak of a row so far, 0 where it is infinite, and the factor for what was summed over the one before."""
        zero = f"{kind}(0)"
        if each.target is None:
            new = best
        else:
            pointer = self._place("state", each.node.meta["dtype"], each.node)
            old = self._line(f"load_{kind}({pointer}, 0)")
            new = self._line(f"{best} if better({best}, {old}, 1) else {old}")
            self._body.append(f"store_{kind}({pointer}, 0, {new})")
        safe = self._line(f"{zero} if abs({new}) == np.inf else {new}")
        self._known[each.node] = Held(safe, each.node.meta["dtype"])
        if each.target is None:
            return
        before = self._line(f"{zero} if abs({old}) == np.inf else {old}")
        power = "quick_exp" if kind == "float32" else "quick_exp64"
        scale = self._line(f"{zero} if {old} == -np.inf else {kind}(vector.{power}({before} - {safe}))")
        self._scales[each.node] = scale
        product = self.sweeps.product
        if product is not None and product.scale is each.node:
            d = self._place("d", self.dtype)
            self._body += [
                f"if {scale} != {kind}(1):",
                f"    for j in range(load_word(shapes + {8 * row_call.E})):",
                f"        store_{kind}({d}, j, load_{kind}({d}, j) * {scale})",
            ]

    def _sum_into(self, pointer: str, result: torch.dtype, where: str, scale: str | None) -> None:
        kind = _name(memory_type(result))
        total = self._line(f"row_sum({where}, n, {kind}(0))")
        known = self._line(f"load_{_name(result)}({pointer}, 0)")
        earlier = known if scale is None else f"{known} * {scale}"
        self._body.append(f"store_{_name(result)}({pointer}, 0, {_name(result)}({earlier} + {total}))")

    def _let(self, node: fx.Node, expression: str, dtype: torch.dtype) -> None:
        result = node.meta["dtype"]
        self._known[node] = Held(self._cast(self._line(expression), dtype, result), result)

    def _line(self, expression: str) -> str:
        name = self.writer.let(expression)
        self._body.append(self.writer.lines[-1])
        return name


def memory_type(dtype: torch.dtype) -> torch.dtype:
    """The type in which a row of values is kept."""
    if not dtype.is_floating_point:
        return torch.int64
    return torch.float64 if dtype == torch.float64 else torch.float32


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
