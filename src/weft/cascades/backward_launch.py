"""The launches of kernels for gradients: which programs they serve, and what they are given."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from weft.base.kept import keep_if_captured
from weft.cascades.arguments import BYTES, Call, Kernel, KernelArguments, Launches, Lying, held, tensor_map, terms_of
from weft.cascades.backward_kernel import ROUNDED, BackwardForm, backward_lines, found_of, known_lines
from weft.cascades.frame import CascadeFrame, size_of
from weft.cascades.hopper import ROWS, hopper_backward_text
from weft.cascades.hopper_sums import hopper_sums_backward_text
from weft.cascades.kernel import jit_text
from weft.cascades.masks import Stretches
from weft.cascades.program import CascadeProgram, Tensors, Values
from weft.cascades.serving import LEAST, LEAST_E, CascadeTile, backward_tiles, hopper_tile, sums_tiles
from weft.cascades.step import StepForm, kept
from weft.fn.triton.device_code import jit_function
from weft.gpu.common.constants import TRITON_TYPES
from weft.gpu.common.constraints import power_of_two


def _sides(frame: CascadeFrame, k: int, e: int) -> tuple[int, int]:
    """The indices of K and E that a tile has."""
    least = LEAST_E if frame.products.product.itemsize == 2 else LEAST
    return max(power_of_two(k), least), max(power_of_two(e), least)


class _Kernel:
    """The kernel of the rows, or of the columns."""

    def __init__(
        self, program: CascadeProgram, arguments: KernelArguments, tile: CascadeTile, columns: bool, step: StepForm,
        lying: Lying, wanted: tuple[int, ...],
    ) -> None:  # fmt: skip
        self.arguments, self.tile, self.columns = arguments, tile, columns
        sides, functions = arguments.sides, arguments.functions
        along, extents = (sides.m, sides.n), (tile.m, tile.n)
        if columns:
            along, extents = along[::-1], extents[::-1]
        both = tile.hopper and not tile.terms  # kernels in one: all gradients are of a tile of columns
        stretches = Stretches(program, along, extents, closed=both)
        _, m, n, k, e = arguments.sizes
        self._tiles = -(-(n if columns else m) // extents[0])
        tile_k, tile_e = _sides(arguments.frame, k, e)
        sides_of: dict[str, int] = {"BM": tile.m, "BN": tile.n, "BK": tile_k, "BE": tile_e}
        if tile.terms:
            moves = {"BN": extents[1], "BK": max(tile_k, LEAST_E)}
            sides_of = {**moves, "TERMS": tile.terms, "STAGES": tile.stages}
        elif tile.hopper:
            sides_of = {"MOVING": tile.m, "SIDE": max(tile_k, tile_e)}
        written = {
            "FIRST": functions.first(), "FIRST_SETTLED": functions.first(stretches.conditions),
            "PULL": functions.pull((), wanted), "PULL_SETTLED": functions.pull(stretches.conditions, wanted),
        }  # fmt: skip
        whole = (True, k == tile_k, e == tile_e)
        if tile.terms:
            step = step._replace(scaled=False)  # the products of terms have the factor
        factor = program.factor is not None and not functions.folds
        form = BackwardForm(step, columns, factor, stretches.present, tuple(map(len, lying.outer)), whole, wanted)
        text = partial(hopper_backward_text if both else hopper_sums_backward_text, form)
        if not tile.hopper:
            text = partial(jit_text, backward_lines(form))
        self._kernel = arguments.kernel(text, tile, written, sides_of)
        self._tables = {"before": stretches.first()} if both else {}
        self._tables["stretches"] = stretches.shared(1)

    def __call__(self, given: Mapping[str, Any], lying: Lying, places: Mapping[str, int]) -> Call:
        """The call of A, B, C, dD, results and vectors, of the labels of their batch, strides and places of inputs."""
        a, b, c, d = (given[name] for name in "abcd")
        (batch, m, n, k, e), tile, sides = self.arguments.sizes, self.tile, self._kernel.constants
        factor, (outer, steps) = "factor_of_s" if tile.terms else "alpha", lying
        numbers = {factor: float(self.arguments.frame.alpha), "B": batch, "M": m, "N": n, "K": k}
        if tile.terms:  # of what stays, and of what moves
            maps, pairs = [], ((b, n), (a, m)) if self.columns else ((a, m), (b, n))
            for (tensor, rows), own in zip(pairs, (ROWS, sides["BN"]), strict=True):
                terms = terms_of(tensor, rows, tile.terms)[0]
                along = [(1, tile.terms, terms.stride(0))]
                maps.append(tensor_map(terms, along, (rows, k), terms.shape[2], (own, sides["BK"]), laid=True))
            (a, b), numbers["sc_n"] = maps, steps[4]
        elif tile.hopper:  # a consumer has half of the tiles of B and C
            side = sides["SIDE"]
            a = tensor_map(a, outer[0], (m, k), steps[0], (tile.m, side), laid=True)
            b = tensor_map(b, outer[1], (n, k), steps[2], (ROWS, side), laid=True, swizzle=side)
            c = tensor_map(c, outer[2], (n, e), steps[4], (ROWS, side), laid=True)
            d = tensor_map(d, [(1, batch, m * e)], (m, e), e, (tile.m, side), laid=True)
            numbers |= {"E": e, **lying.along_batch(("div", "ext"))}
        else:
            numbers |= {"E": e, **lying.strides, **lying.along_batch()}
        keep_if_captured(self.arguments.frame.device, *self._tables.values())
        given = {**given, "a": a, "b": b, "c": c, "d": d, **self._tables, **numbers, **places}
        return self._kernel((batch * self._tiles,), given)


class BackwardLaunch:
    """The kernels for gradients of a program: call it with what the forward pass was given and made."""

    def __init__(self, program: CascadeProgram, hopper: bool = False, terms: bool = False) -> None:
        """`hopper`: the warp-specialised kernels serve; `terms`: those of float32."""
        self.program, self.frame, self._terms = program, program.frame, terms
        self.arguments = KernelArguments(program)
        self.functions = self.arguments.functions
        _, _, _, k, e = self.arguments.sizes
        self.tile = hopper_tile(self.frame, max(k, e)) if hopper else None
        self._kernels: dict[tuple[bool, bool, tuple[int, ...]], _Kernel] = {}

    def __call__(
        self, tensors: Tensors, needs: Sequence[bool], d: Tensor | None, values: Values,
        of_nodes: Values, wanted: Collection[fx.Node] = (),
    ) -> tuple[tuple[Tensor | None, ...], Mapping[fx.Node, Tensor]]:  # fmt: skip
        """Gradients of A, B and C where `needs` says so, in their types, and of wanted operands.

        `d` is the gradient of D, `of_nodes` has those of sums.
        """
        batch, m, _, _, e = self.arguments.sizes
        if self.functions.meets:
            d = tensors[0].new_zeros((batch, m, e)) if d is None else self.ready(d)
        made = self._launches(tensors, needs, d, values, self._vectors(values, of_nodes), wanted)
        made.run()
        shapes = [None if each is None else each.shape for each in tensors]
        of_inputs = {node: grad.sum_to_size(values[node].shape) for node, grad in made.of_inputs.items()}
        return self.as_they_lie(made.found, shapes, needs), of_inputs

    def makes(self, nodes: Collection[fx.Node]) -> bool:
        """Whether kernels make the gradients of these operands, and of what is made of operands alone."""
        return not nodes or (self.tile is None and all(self._along(node) is not None for node in nodes))

    def behind(self, nodes: Collection[fx.Node]) -> list[fx.Node]:
        """The inputs of the function whose gradients those of operands are made of."""
        found = [node for node in self.functions.inputs if node in nodes]
        known = [node for node in self.functions.stage.known if node.meta["dtype"].is_floating_point]
        return [*found, *(known if nodes else [])]

    def _along(self, node: fx.Node) -> bool | None:
        """Whether an input has all columns of S and nothing else; False for all rows, None for others."""
        sides, extents = self.arguments.sides, self.frame.extents
        if self.arguments.sizes[0] != 1 or node not in self.functions.inputs:
            return None
        modes = {label for label in self.program.between.modes[node] if extents[label] > 1}
        for columns, side in enumerate((sides.m, sides.n)):
            if modes and modes == {label for label in side if extents[label] > 1}:
                return bool(columns)
        return None

    def alone(self, tensors: Tensors, needs: Sequence[bool], d: Tensor, out: Tensor, values: Values) -> Launches:
        """The launches where D, `out`, is the only result, and `d` its gradient as `ready` has it."""
        calls, vectors, room = self._known(d, out, values)
        made = self._launches(tensors, needs, d, values, vectors)
        return made._replace(calls=[*calls, *made.calls], room=[*room, *made.room])

    def prepare(self, tensors: Tensors, values: Values, alone: bool) -> None:
        """Compile the kernels for tensors without memory."""
        a, batch, m, e = tensors[0], self.arguments.sizes[0], self.arguments.sizes[1], self.arguments.sizes[4]
        stage, modes = self.functions.stage, self.program.between.modes
        for node in (*stage.peaks, *(each.gives for each in self.functions.sums), self.program.factor):
            if node is not None:
                values[node] = a.new_empty(self.frame.shape(modes[node]), dtype=torch.float32)
        if not alone:
            self(tensors, (True,) * 3, None, values, {})
            return
        d = a.new_empty((batch, m, e))
        self.alone(tensors, (True,) * 3, d, d, values).run()

    def ready(self, d: Tensor) -> Tensor:
        """The gradient of D as kernels read it."""
        d = d.resolve_neg().to(self.frame.products.product).contiguous()
        return d if d.is_meta or d.data_ptr() % BYTES == 0 else d.clone()

    def as_they_lie(
        self, found: Sequence[Tensor], shapes: Sequence[Sequence[int] | None], needs: Sequence[bool]
    ) -> tuple[Tensor | None, ...]:
        """Gradients that kernels have written, in the shapes of A, B and C."""
        da, db, dc = found
        a, b, c = shapes
        return (
            da.reshape(a) if needs[0] and a is not None else None,
            self._repeated(db).reshape(b) if needs[1] and b is not None else None,
            self._repeated(dc).mT.reshape(c) if needs[2] and c is not None else None,
        )

    def _launches(
        self, tensors: Tensors, needs: Sequence[bool], d: Tensor | None, values: Values,
        vectors: Mapping[str, Tensor], wanted: Collection[fx.Node] = (),
    ) -> Launches:  # fmt: skip
        a, b, c = tensors
        arguments, tile = self.arguments, self.tile
        batch, m, n, k, e = arguments.sizes
        step, lying = arguments.form(values), arguments.lying(a, b, c)
        product = self.frame.products.product
        repeats = len(arguments.sides.batch) > len(self.frame.first.batch)
        wide = torch.float32 if repeats else product
        along = {self._along(node) for node in wanted}
        by_rows, by_columns = needs[0] or False in along, tile is not None or needs[1] or needs[2] or True in along
        da = a.new_empty((batch, m, k) if by_rows else 1, dtype=product)
        db = a.new_empty((batch, n, k) if by_columns else 1, dtype=wide)
        dc = a.new_empty((batch, n, e) if by_columns else 1, dtype=wide)
        room = [da]
        if tile is not None:  # sums of dA over tiles of columns, and how many turns each tile of rows has had
            tiles, side = -(-m // tile.m), max(_sides(self.frame, k, e))
            room = [a.new_zeros((batch, tiles * tile.m, side), dtype=torch.float32)]
            room.append(a.new_zeros((batch, tiles), dtype=torch.int32))
        given = {"a": a, "b": b, "c": a if c is None else c, "d": a if d is None else d, "da": room[0], "db": db}
        given |= {"dc": dc} if tile is None else {"dc": dc, "turns": room[1]}
        of_rows = {f"{name}_of": each for name, each in vectors.items()}
        behind = {"factor_of": a, **of_rows, **arguments.operands(values)}
        whole = {node: self.frame.shape(self.program.between.modes[node]) for node in wanted}  # broadcast or not
        of_inputs = {node: a.new_zeros(shape, dtype=torch.float32) for node, shape in whole.items()}
        calls, places, terms = [], arguments.places(values), self._terms and held(a, b)
        for columns, needed in ((False, by_rows and tile is None), (True, by_columns)):
            own = [node for node in wanted if self._along(node) == columns]
            if not needed:
                continue
            key = columns, terms, tuple(self.functions.inputs.index(node) for node in own)
            if key not in self._kernels:
                of_both = sums_tiles(k) if terms else backward_tiles(self.frame, max(k, e))
                made = _Kernel(self.program, arguments, tile or of_both[columns], columns, step, lying, key[2])
                self._kernels[key] = made
            to = {f"dx{at}_to": of_inputs[node] for at, node in zip(key[2], own, strict=True)}
            calls.append(self._kernels[key]({**given, **to, **behind}, lying, places))
        if tile is not None and needs[0]:
            named = {"sums": room[0], "da": da, "alpha": float(self.frame.alpha), "M": m, "K": k}
            named |= {"SIDE": room[0].shape[-1], "BM": tile.m, "num_warps": 8}
            calls.append(Call(jit_function(ROUNDED), (batch * -(-m // tile.m),), named))
        return Launches(calls, [] if tile is None else room, (da, db, dc), of_inputs)

    def _vectors(self, values: Values, of_nodes: Values) -> dict[str, Tensor]:
        """Peaks of each row, gradients of sums, and the factor of D unless it is in the peak."""
        nothing = torch.zeros((), device=self.frame.device)
        shifts = {f"shift{at}": self._of_rows(values[peak]) for at, peak in enumerate(self.functions.stage.peaks)}
        grads = {
            f"grad{at}": self._of_rows(of_nodes.get(target.gives, nothing))
            for at, target in enumerate(self.functions.sums)
        }
        if self.program.factor is None:
            return {**shifts, **grads}
        factor = self._of_rows(values[self.program.factor])
        if not self.functions.folds:
            return {**shifts, **grads, "factor": factor}
        live = factor > 0
        found = {name: torch.where(live, each - factor.log(), torch.inf) for name, each in shifts.items()}
        return found | {name: torch.where(live, each / factor, 0.0) for name, each in grads.items()}

    def _known(self, d: Tensor, out: Tensor, values: Values) -> tuple[list[Call], dict[str, Tensor], list[Tensor]]:
        """The call of a kernel that makes them, where gradients come by D alone; the vectors, and those it makes."""
        functions, arguments = self.functions, self.arguments
        peaks = [values[node] for node in functions.stage.peaks]
        vectors = {f"shift{at}": peak for at, peak in enumerate(peaks)}
        if self.program.factor is None:
            return [], vectors, []
        batch, m, _, _, e = arguments.sizes
        step, small = arguments.form(values), [node for node in functions.inputs if functions.is_small(node)]
        step = step._replace(inputs=tuple(each for each in step.inputs if each.small))
        folds, factor = functions.folds, functions.factor
        assert factor is not None
        names = found_of(step, folds)
        room = list(d.new_zeros((len(names), batch * m), dtype=torch.float32))
        sums = [values[target.gives] for target in functions.sums]
        given: dict[str, Any] = {"d": d, "out": out, **arguments.operands(values, small)}
        given |= zip((f"{name}_of" for name in kept(functions)), (*peaks, *sums), strict=True)
        given |= zip((f"{name}_out" for name in names), room, strict=True)
        given |= {"B": batch, "M": m, "E": e, **arguments.places(values, small)}
        rows, side = 16, min(power_of_two(e), 128)
        sides = {"BM": rows, "BE": side, "FACTOR": factor.jit, "OF_SUMS": functions.of_sums.jit if sums else None}
        sides["SUMS"] = TRITON_TYPES[self.frame.products.accumulate].meant
        kernel = Kernel(partial(jit_text, known_lines(step, folds)), sides, {"num_warps": 4})
        return [kernel((batch * -(-m // rows),), given)], vectors | dict(zip(names, room, strict=True)), room

    def _of_rows(self, value: Tensor) -> Tensor:
        """A value of each row."""
        first = self.frame.first
        rows = self.frame.shape(frozenset((*first.batch, *first.m)))
        return value.to(torch.float32).expand(rows).contiguous()

    def _repeated(self, grad: Tensor) -> Tensor:
        """A gradient of B or C in their type, summed along labels of the batch that those lack."""
        own = size_of(self.frame, self.frame.first.batch)
        if grad.shape[0] == own:
            return grad
        return grad.reshape(own, -1, *grad.shape[1:]).sum(1).to(self.frame.products.product)
