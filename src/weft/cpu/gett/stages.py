"""Stages: what happens to values between packing and the products, and between the products and D.

    operand    stored type -> product type -> a_fn -> the accumulator's type
    result     epilogue(alpha * sum + beta * c_fn(C)) -> D's type, and what an epilogue yields besides

Each is one function of contiguous values, written as a loop that numba compiles, and called by its address. Functions
of users are inlined in it. A conversion alone is a stage without one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from weft.cpu.gett import params
from weft.cpu.gett.forms import GettForm
from weft.cpu.jit import compiled
from weft.errors import UnsupportedError
from weft.fn import Pointwise
from weft.fn.numba.writer import NumbaWriter
from weft.fn.pointwise import inlined
from weft.fn.writer import Held, past_e4m3
from weft.spec import Contraction
from weft.spec.dtypes import dtype_name, value_type


class GettStage(NamedTuple):
    """A compiled stage, and what it reads alongside the values and writes: (bytes of an item, base)."""

    address: int
    size: int  # bytes of an item that comes in
    reads: tuple[tuple[int, int], ...] = ()
    writes: tuple[tuple[int, int], ...] = ()
    constants: bytes = b""  # of its functions, for where its loop finds them: see `StageSource`


def words_of(constants: bytes) -> np.ndarray:
    """A stage's constants as a plan keeps them."""
    return np.frombuffer(constants, np.int64)


class StageSource:
    """The source of one stage while it is written. Pointers: the values, what is read alongside them, what is written.

    `constants`: words that lead from the call's to the address of the functions' constants, each in the block that the
    one before points to; functions that differ in those alone then share their code. None: they are in the code.
    """

    def __init__(self, dtype: torch.dtype, constants: Sequence[int] | None = None) -> None:
        self.writer = NumbaWriter(parameters=constants is not None)
        self._path = constants or ()
        self._types = [dtype]
        self._pointers = 1
        self._stores: list[str] = []
        self._scalars: list[str] = []
        self.value = self._load(0, dtype)

    def read(self, dtype: torch.dtype) -> Held:
        self._pointers += 1
        return self._load(self._pointers - 1, dtype)

    def _load(self, pointer: int, dtype: torch.dtype) -> Held:
        return Held(self.writer.let(f"load_{dtype_name(dtype)}(p{pointer}, i)"), dtype)

    def write(self, value: Held, dtype: torch.dtype, pointer: int | None = None) -> None:
        if pointer is None:
            pointer, self._pointers = self._pointers, self._pointers + 1
        name = self.writer.cast(value.name, value.dtype, dtype)
        self._stores.append(f"store_{dtype_name(dtype)}(p{pointer}, i, {name})")

    def scalar(self, name: str, place: int, dtype: torch.dtype) -> Held:
        """alpha or beta: in double precision, or as an integer of 64 bits, where the call has it."""
        wide = "complex128" if dtype.is_complex else "float64" if dtype.is_floating_point else "int64"
        index = place // 2 if dtype.is_complex else place
        self._scalars.append(f"{name} = {dtype_name(dtype)}(load_{wide}(scalars, {index}))")
        return Held(name, dtype)

    @property
    def constants(self) -> bytes:
        return b"".join(each.content for each in self.writer.parameters)

    def _parameters(self) -> list[str]:
        """Lines that load the constants."""
        if not self.writer.parameters:
            return []
        found = "scalars"
        for word in self._path:
            found = f"load_int64({found}, {word})"
        loads = [
            f"{each.name} = load_{dtype_name(each.dtype)}(constants, {16 * at // each.dtype.itemsize})"
            for at, each in enumerate(self.writer.parameters)
        ]
        return [f"constants = {found}", *loads]

    @property
    def source(self) -> str:
        lines, head = [*self.writer.lines, *self._stores], [*self._scalars, *self._parameters()]
        memory = memory_functions([*lines, *head])
        pointers = [f"p{at} = load_int64(pointers, {at})" for at in range(self._pointers)]
        return _TEMPLATE.format(
            memory=memory,
            head="\n    ".join([*pointers, *head]),
            body="\n        ".join(lines),
        )


HEAD = """\
import math

import numpy as np
from numba import boolean, cfunc, complex64, complex128, float32, float64, int8, int16, int32, int64, uint8

from weft.fn.numba import math as vector
from weft.fn.numba.values import LOADS, ROUNDS, STORES, bits_of, of_bits

load_int64 = LOADS["int64"]
"""
_TEMPLATE = HEAD + """\
from weft.cpu.gett.vector import whole_vectors
{memory}

@cfunc("void(int64, int64, int64)", error_model="numpy")
def entry(pointers, count, scalars):
    whole_vectors()
    {head}
    for i in range(count):
        {body}
"""


def memory_functions(lines: Sequence[str]) -> str:
    """Assignments of the loads, stores and roundings that lines of code call by name."""
    tables = {"load": "LOADS", "store": "STORES", "round": "ROUNDS"}
    used = sorted(set(re.findall(r"\b(load|store|round)_(?!word)(\w+)\(", "\n".join(lines))))
    named = "".join(f"{verb}_{name} = {tables[verb]}[{name!r}]\n" for verb, name in used)
    # Compiled code is kept by its source: what its conversions depend on stands there too.
    return named + (f"# past the largest: {past_e4m3():#x}\n" if "e4m3" in named else "")


def operand_stage(contraction: Contraction, form: GettForm, name: str) -> GettStage | None:
    """The prologue of A's or B's panels; None where values are packed as they are stored."""
    first = name == "A"
    stored = (contraction.a if first else contraction.b).dtype
    function = contraction.a_fn if first else contraction.b_fn
    arithmetic, matrix = contraction.arithmetic, form.matrix
    value = value_type(stored, arithmetic.product)
    conjugated = (contraction.conjugate_a if first else contraction.conjugate_b) and stored.is_complex
    here = conjugated and (function is not None or contraction.algebra is not None)
    if form.real_parts or (function is None and not here and matrix is None and stored == form.dtype == value):
        return None
    args = (contraction.a_args if first else contraction.b_args) if function is not None else ()
    values, factor = _Values(stored, value, arithmetic.accumulate, form.dtype), None
    parts: tuple[AuxRead, ...] = ()
    if matrix is not None:
        factor = matrix.a_factor if first else matrix.b_factor
        parts = (AuxRead(torch.int64, (params.INT64_COORDINATE, form.axes.bases - 1)),) if matrix.parts > 1 else ()
    place = params.A_CONSTANTS if first else params.B_CONSTANTS
    return _operand(place, values, function, factor, here, aux_reads(contraction, args), parts)


class _Values(NamedTuple):
    """Types that an operand's values pass through."""

    stored: torch.dtype
    value: torch.dtype  # what its function sees
    accumulate: torch.dtype
    compute: torch.dtype  # what is packed


@lru_cache(maxsize=512)
def _operand(
    place: int, types: _Values, function: Pointwise | None, factor: Pointwise | None, conjugated: bool,
    aux: tuple[AuxRead, ...], parts: tuple[AuxRead, ...],
) -> GettStage:  # fmt: skip
    stored, value, accumulate, compute = types
    loop = StageSource(stored, in_the_plan(place))
    extra, part = ([loop.read(each.dtype) for each in group] for group in (aux, parts))
    found = Held(loop.writer.cast(loop.value.name, stored, value), value)
    if conjugated:
        found = Held(loop.writer.let(f"{found.name}.conjugate()"), value)
    if function is not None:
        (found,) = inlined(loop.writer, function, [found, *extra])
        found = Held(loop.writer.cast(found.name, found.dtype, value), value)
    if factor is not None:
        found = Held(loop.writer.cast(found.name, value, accumulate), accumulate)
        (found,) = inlined(loop.writer, factor, [found, *part])
    same = stored.itemsize == compute.itemsize
    # In place through one pointer: with two LLVM would have to assume that an element is read after it is written.
    loop.write(found, compute, 0 if same else None)
    reads = tuple(each.entry for each in (*aux, *parts))
    return GettStage(compiled(loop.source), stored.itemsize, reads, constants=loop.constants)


def in_the_plan(place: int) -> tuple[int, int]:
    """How a stage comes to its constants: by way of the plan that a call names."""
    return params.PLAN - params.ALPHA, place


@lru_cache(maxsize=64)
def in_place(function: Pointwise, constants: tuple[int, ...] | None = None) -> GettStage:
    """A loop that puts a function of values, one of one type, in their place."""
    loop = StageSource(function.dtypes[0], constants)
    (found,) = inlined(loop.writer, function, [loop.value])
    loop.write(found, function.dtypes[0], 0)
    return GettStage(compiled(loop.source), function.dtypes[0].itemsize, constants=loop.constants)


class AuxRead(NamedTuple):
    """An operand or coordinate that a function takes alongside the value."""

    dtype: torch.dtype
    entry: tuple[int, int]  # bytes of an item and base


def aux_reads(contraction: Contraction, args: Sequence[int]) -> tuple[AuxRead, ...]:
    found = []
    for arg in args:
        each = contraction.aux[arg]
        coordinate = params.INT32_COORDINATE if each.dtype == torch.int32 else params.INT64_COORDINATE
        size = each.dtype.itemsize if each.kind != "index" else coordinate
        found.append(AuxRead(each.dtype, (size, params.AUX_BASE + arg)))
    return tuple(found)


class _Ending(NamedTuple):
    """The epilogue of sums, as far as the code depends on it."""

    compute: torch.dtype  # what sums are held in
    accumulate: torch.dtype
    form: Pointwise | None  # from sums of products to values of the algebra
    reduce: Pointwise | None  # of another algebra than plus-times
    scaled: bool
    addend: torch.dtype | None
    weighted: bool
    c_fn: Pointwise | None
    c_aux: tuple[AuxRead, ...]
    epilogue: Pointwise | None
    aux: tuple[AuxRead, ...]
    results: tuple[tuple[torch.dtype, int], ...]  # types and bases


def result_stage(
    contraction: Contraction, form: GettForm, scaled: bool, added: bool, weighted: bool
) -> GettStage | None:
    """The epilogue of sums; None where they are stored as they are."""
    d, algebra = contraction.d.dtype, contraction.algebra
    if form.real_parts:
        d = d.to_real()
    plain = not (scaled or added or contraction.epilogue or contraction.outputs or form.matrix)
    if plain and d == form.dtype and (form.real_parts or form.dtype == contraction.arithmetic.accumulate):
        return None
    accumulate = contraction.arithmetic.accumulate if not form.real_parts else form.dtype
    outputs = tuple((contraction.aux[at].dtype, params.AUX_BASE + at) for at in contraction.outputs)
    c = contraction.c
    return _result(
        _Ending(
            form.dtype, accumulate, form.matrix.result if form.matrix is not None else None,
            algebra.reduce if algebra is not None else None,
            scaled, c.dtype if added and c is not None else None, weighted,
            contraction.c_fn if added else None,
            aux_reads(contraction, contraction.c_args if added and contraction.c_fn is not None else ()),
            contraction.epilogue,
            aux_reads(contraction, contraction.epilogue_args if contraction.epilogue is not None else ()),
            ((d, params.D_BASE), *outputs),
        )
    )  # fmt: skip


@lru_cache(maxsize=512)
def _result(ending: _Ending) -> GettStage:
    accumulate = ending.accumulate
    loop = StageSource(ending.compute, in_the_plan(params.D_CONSTANTS))
    writer, value = loop.writer, loop.value
    addend = loop.read(ending.addend) if ending.addend is not None else None
    c_extra = [loop.read(each.dtype) for each in ending.c_aux]
    extra = [loop.read(each.dtype) for each in ending.aux]
    if ending.form is not None:
        (value,) = inlined(writer, ending.form, [value])
    value = Held(writer.cast(value.name, value.dtype, accumulate), accumulate)
    if ending.scaled:
        alpha = loop.scalar("alpha", 0, accumulate)
        value = Held(writer.typed(f"{alpha.name} * {value.name}", accumulate), accumulate)
    if addend is not None:
        c = Held(writer.cast(addend.name, addend.dtype, accumulate), accumulate)
        if ending.c_fn is not None:
            (c,) = inlined(writer, ending.c_fn, [c, *c_extra])
            c = Held(writer.cast(c.name, c.dtype, accumulate), accumulate)
        if ending.weighted:
            beta = loop.scalar("beta", 2, accumulate)
            c = Held(writer.typed(f"{beta.name} * {c.name}", accumulate), accumulate)
        if ending.reduce is not None:
            (value,) = inlined(writer, ending.reduce, [value, c])
            value = Held(writer.cast(value.name, value.dtype, accumulate), accumulate)
        else:
            value = Held(writer.typed(f"{value.name} + {c.name}", accumulate), accumulate)
    values = [value]
    if ending.epilogue is not None:
        values = inlined(writer, ending.epilogue, [value, *extra])
    for result, (dtype, _) in zip(values, ending.results, strict=True):
        loop.write(result, dtype)
    reads = [(ending.addend.itemsize, params.C_BASE)] if ending.addend is not None else []
    reads += [each.entry for each in (*ending.c_aux, *ending.aux)]
    writes = tuple((dtype.itemsize, base) for dtype, base in ending.results)
    return GettStage(compiled(loop.source), ending.compute.itemsize, tuple(reads), writes, loop.constants)


def emittable(contraction: Contraction) -> str | None:
    """Why a function of the contraction has no code here; None where all have. Compiles nothing."""
    hooks = ("a_fn", "b_fn", "c_fn", "epilogue")
    return next((why for hook in hooks if (why := function_fault(hook, getattr(contraction, hook))) is not None), None)


def function_fault(hook: str, function: Pointwise | None) -> str | None:
    """Why a function has no code here; None where it has, or there is none."""
    if function is not None:
        try:
            inlined(NumbaWriter(), function, [Held(f"x{at}", dtype) for at, dtype in enumerate(function.dtypes)])
        except UnsupportedError as error:
            return f"{hook}: {error}"
    return None
