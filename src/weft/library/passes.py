"""Functions in one pass on an NVIDIA GPU: what follows on sums, and functions of A and of B before the product.

A kernel of `weft.gpu.pointwise` reads the sums and C, and writes D and further results in their types; or it reads an
operand and writes the matrix that is multiplied. Torch's operations do the same where there is none, and in the first
call of a process that has yet to compile it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from weft.fn import Pointwise
from weft.fn.cuda import CudaWriter
from weft.fn.operations import lowering_of
from weft.fn.pointwise import inlined
from weft.fn.writer import Held
from weft.gpu.pointwise.launch import Pass, made_pass
from weft.gpu.pointwise.source import Body, PassTensor, passage
from weft.library.products import wrapped
from weft.library.scheme import LibraryScheme
from weft.library.views import FIRST, A, B, C, D, Frame
from weft.planner.schedule import AuxTensors, Scalar, Target
from weft.spec import Contraction, Layout
from weft.spec.permutation import Permutation

#: Elements of a thread from which a pass moves them faster than torch's copy: 0.2 to 1.0 of its time with 4 and 8 on an
#: H200, 1.1 to 2.6 with 1 and 2, as each thread finds its place anew (`results/h200/moving_passes.json`).
_LEAST_WIDTH = 4
_TORCH_MODES = 25  # of torch's copies on a GPU
#: Types that elements of so many bytes are moved as.
_MOVED = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class FunctionPass:
    """Functions of sums, of products of elements, or of an operand, with places for the results.

    It runs on new pointers. `serves` is asked once in each call.
    """

    def __init__(
        self, fused: Pass, contraction: Contraction, args: Sequence[int], *, factors: Sequence[torch.dtype] = (),
        finishes: bool = False,
    ) -> None:  # fmt: skip
        """`args` are what functions take; `factors` the types of alpha and beta; `finishes`: D and the results beside
        it are written, C is read."""
        self._fused, self._factors = fused, factors
        self._with_c = finishes and contraction.c is not None
        self._operands = [at for at in dict.fromkeys(args) if contraction.aux[at].kind == "operand"]
        self._outputs = contraction.outputs if finishes else ()

    def serves(self, c: Tensor | None, beta: Scalar) -> bool:
        """Whether it does this call; with C it was made for those that add C."""
        return (c is not None and beta != 0) == self._with_c and self._fused.serves

    def follow(self, total: Tensor, d: Tensor, aux: AuxTensors) -> None:
        """Sums without C to D alone, or an operand to the matrix of the product."""
        self._fused([total, *[aux[at] for at in self._operands], d])  # type: ignore[list-item]

    def __call__(
        self, sources: list[Tensor], c: Tensor | None, d: Tensor, scalars: Sequence[Scalar], aux: AuxTensors
    ) -> None:
        """`sources` are the sums, or D as it is given where they are stored there; or A and B, multiplied on the way.

        C is given where it is added; `scalars` are beta, and before it alpha where elements are multiplied.
        """
        if c is not None and self._with_c:
            sources.append(c)
        factors = [wrapped(*each) for each in zip(scalars, self._factors, strict=False)]
        beside = (aux[at] for at in self._operands)
        self._fused([*sources, *beside, d, *(aux[at] for at in self._outputs)], *factors)  # type: ignore[list-item]

    @property
    def state(self) -> str:
        return self._fused.state


def finish_pass(
    scheme: LibraryScheme, frame: Frame, kept: Sequence[int], placed: bool, target: Target
) -> FunctionPass | str:
    """The pass over a part's sums, which stand in D or, contiguous, in memory of their own; or why there is none."""
    if scheme.types.result != scheme.accumulate:
        return "torch's operations: the product rounds its sums"
    own = Layout.contiguous([frame.extents[at] for at in kept], scheme.accumulate)
    d = _of_layout(scheme.contraction.d, D, frame, kept)
    return _finishing(scheme, frame, kept, [d if placed else PassTensor(own.dtype, own.strides)], target)


def elements_pass(scheme: LibraryScheme, frame: Frame, kept: Sequence[int], target: Target) -> FunctionPass | str:
    """The pass over A and B of products without a sum; or why there is none."""
    if any(scheme.roles.alone):
        return "torch's operations: an operand is summed alone"
    layouts = scheme.contraction.a, scheme.contraction.b
    sources = [_of_layout(layout, place, frame, kept) for place, layout in zip((A, B), layouts, strict=True)]
    return _finishing(scheme, frame, kept, sources, target)


def _finishing(
    scheme: LibraryScheme, frame: Frame, kept: Sequence[int], sources: list[PassTensor], target: Target
) -> FunctionPass | str:
    contraction, multiplies = scheme.contraction, len(sources) == 2
    if scheme.roles.repeat != 1 and contraction.algebra is None:
        return "torch's operations: equal products are added"
    tensors = list(sources)
    if contraction.c is not None:
        tensors.append(_of_layout(contraction.c, C, frame, kept))
    tensors += [_of_aux(contraction, at, frame, kept) for at in _beside(contraction, multiplies)]
    tensors.append(_of_layout(contraction.d, D, frame, kept))
    tensors += [_of_aux(contraction, at, frame, kept) for at in contraction.outputs]
    extents = [frame.extents[at] for at in kept]
    # The types of alpha, where elements are multiplied in the pass, and of beta, where C is added.
    count = multiplies + (contraction.c is not None) if contraction.algebra is None else 0
    factors = (scheme.accumulate,) * count
    if len(tensors) == 2 and contraction.epilogue is None and tensors[0].dtype == tensors[1].dtype:
        fused = moving_pass(extents, tensors, target)
    else:
        body = partial(_element, scheme, multiplies)
        fused = _computing(extents, tensors, body, factors, target, results=1 + len(contraction.outputs))
    if isinstance(fused, str):
        return fused
    return FunctionPass(fused, contraction, _beside(contraction, multiplies), factors=factors, finishes=True)


def operand_pass(
    scheme: LibraryScheme, frame: Frame, place: int, modes: Sequence[int], target: Target
) -> FunctionPass | str:
    """The pass over A or B, whose values are written contiguously along these modes; or why there is none."""
    contraction = scheme.contraction
    function = (contraction.a_fn, contraction.b_fn)[place]
    layout, args = ((contraction.a, contraction.a_args), (contraction.b, contraction.b_args))[place]
    if scheme.roles.alone[place]:
        return "torch's operations: values behind the function are summed alone"
    value, wanted = scheme.values[place], (scheme.types.a, scheme.types.b)[place]
    written = Layout.contiguous([frame.extents[at] for at in modes], wanted)
    tensors = [
        _of_layout(layout, place, frame, modes),
        *(_of_aux(contraction, at, frame, modes) for at in dict.fromkeys(args)),
        PassTensor(written.dtype, written.strides),
    ]
    extents = [frame.extents[at] for at in modes]

    def body(w: CudaWriter, values: list[Held], factors: list[Held]) -> Sequence[Held]:
        beside = dict(zip(dict.fromkeys(args), values[1:], strict=True))
        return [_seen(w, values[0], value, function, [beside[at] for at in args], wanted)]

    moves = function is None and layout.dtype == wanted
    fused = moving_pass(extents, tensors, target) if moves else _computing(extents, tensors, body, (), target)
    return fused if isinstance(fused, str) else FunctionPass(fused, contraction, args)


def _computing(
    extents: Sequence[int], tensors: Sequence[PassTensor], body: Body, factors: tuple[torch.dtype, ...], target: Target,
    results: int = 1,
) -> Pass | str:  # fmt: skip
    """The pass that computes the last tensors, its results, of the others; or why there is none."""
    found = passage(extents, tensors, results)
    return f"torch's operations: {found}" if isinstance(found, str) else made_pass(found, factors, body, target)


def moving_pass(extents: Sequence[int], tensors: Sequence[PassTensor], target: Target) -> Pass | str:
    """The pass that moves elements from a layout to another; or why there is none."""
    moved = _MOVED.get(tensors[0].dtype.itemsize)
    if moved is None:
        return f"torch's operations: a pass does not move elements of {tensors[0].dtype.itemsize} bytes"
    found = passage(extents, [each._replace(dtype=moved) for each in tensors], 1)
    if isinstance(found, str):
        return f"torch's operations: {found}"
    if found.form.width < _LEAST_WIDTH and len(extents) <= _TORCH_MODES:
        return f"torch's operations: threads would move {found.form.width} elements each"
    return made_pass(found, (), lambda w, values, factors: values, target)


def permutation_pass(permutation: Permutation, target: Target) -> Pass | str:
    """The pass from X, and from D where that is added to, to D; or why there is none.

    It takes X, C and D, alpha and beta: C and beta where something is added, alpha where values are scaled.
    """
    modes, fn = permutation.modes, permutation.fn
    adds = permutation.c is not None
    places = ((permutation.x, 0), *([(permutation.d, 3)] if adds else []), (permutation.d, 3))
    tensors = [
        PassTensor(layout.dtype, tuple([mode.strides[at] for mode in modes]), alignment=layout.alignment)
        for layout, at in places
    ]

    def body(w: CudaWriter, values: list[Held], factors: list[Held]) -> Sequence[Held]:
        value = Held(w.cast(values[0].name, values[0].dtype, permutation.compute), permutation.compute)
        if fn is not None:
            (value,) = inlined(w, fn, [value])
        for factor in factors[:1]:
            value = _times(w, Held(w.converted(value.name, value.dtype, factor.dtype), factor.dtype), factor)
        if not adds:
            return [value]
        addend = Held(w.cast(values[1].name, values[1].dtype, value.dtype), value.dtype)
        return [_plus(w, value, _times(w, addend, factors[1]))]

    factors = (permutation.scale,) * (permutation.scaled + adds)
    return _computing([mode.extent for mode in modes], tensors, body, factors, target)


def _of_layout(layout: Layout, place: int, frame: Frame, modes: Sequence[int]) -> PassTensor:
    strides = tuple([frame.modes[mode].strides[place] for mode in modes])
    return PassTensor(layout.dtype, strides, frame.start(place), layout.alignment)


def _of_aux(contraction: Contraction, at: int, frame: Frame, modes: Sequence[int]) -> PassTensor:
    """An operand of functions, a further result, or a coordinate, which lies nowhere."""
    aux = contraction.aux[at]
    if aux.layout is not None:
        return _of_layout(aux.layout, FIRST + at, frame, modes)
    strides = tuple([frame.modes[mode].strides[FIRST + at] for mode in modes])
    return PassTensor(aux.dtype, strides, frame.start(FIRST + at), is_index=True)


def _beside(contraction: Contraction, multiplies: bool) -> tuple[int, ...]:
    """Operands and coordinates that the functions of a pass take, each once."""
    of_operands = (*contraction.a_args, *contraction.b_args) if multiplies else ()
    c_args = contraction.c_args if contraction.c is not None else ()
    return tuple(dict.fromkeys((*of_operands, *c_args, *contraction.epilogue_args)))


def _element(
    scheme: LibraryScheme, multiplies: bool, w: CudaWriter, values: list[Held], factors: list[Held]
) -> Sequence[Held]:
    """Code of an element: sums, or a product with alpha, + beta * c_fn(C), then the epilogue."""
    contraction, dtype = scheme.contraction, scheme.accumulate
    others = iter(values[1 + multiplies :])
    addend = next(others) if contraction.c is not None else None
    beside = dict(zip(_beside(contraction, multiplies), others, strict=True))
    total = values[0]
    if multiplies:
        functions = ((contraction.a_fn, contraction.a_args), (contraction.b_fn, contraction.b_args))
        x, y = (
            _seen(w, source, value, function, [beside[at] for at in args], dtype)
            for source, value, (function, args) in zip(values[:2], scheme.values, functions, strict=True)
        )
        total = _times(w, _times(w, x, y), factors[0])
    if addend is not None:
        value = _seen(w, addend, dtype, contraction.c_fn, [beside[at] for at in contraction.c_args], dtype)
        if contraction.algebra is None:
            total = _plus(w, total, _times(w, factors[-1], value))
        else:
            total = _one(w, inlined(w, contraction.algebra.reduce, [total, value]), total.dtype)
    if contraction.epilogue is None:
        return [total]
    return inlined(w, contraction.epilogue, [total, *(beside[at] for at in contraction.epilogue_args)])


def _seen(
    w: CudaWriter, operand: Held, value: torch.dtype, function: Pointwise | None, beside: Sequence[Held],
    wanted: torch.dtype,
) -> Held:  # fmt: skip
    """An element of an operand as its function sees it and leaves it, then as it is wanted."""
    seen = Held(w.cast(operand.name, operand.dtype, value), value)
    if function is not None:
        seen = _one(w, inlined(w, function, [seen, *beside]), value)
    return Held(w.converted(seen.name, seen.dtype, wanted), wanted)


def _times(w: CudaWriter, x: Held, y: Held) -> Held:
    return Held(w.typed(lowering_of("mul", w)(w, x.dtype, x.name, y.name), x.dtype), x.dtype)


def _plus(w: CudaWriter, x: Held, y: Held) -> Held:
    return Held(w.typed(lowering_of("add", w)(w, x.dtype, x.name, y.name), x.dtype), x.dtype)


def _one(w: CudaWriter, results: Sequence[Held], dtype: torch.dtype) -> Held:
    (result,) = results
    return Held(w.converted(result.name, result.dtype, dtype), dtype)
