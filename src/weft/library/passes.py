"""What follows on sums in one pass on an NVIDIA GPU: beta, C and its function, the epilogue, all results.

A kernel of `weft.gpu.pointwise` reads the sums and writes D and further results in their types. Torch's operations do
the same where there is none, and in the first call of a process that has yet to compile it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from weft.fn.cuda.emit import inlined
from weft.fn.cuda.lowering import LOWERINGS
from weft.fn.cuda.writer import CudaWriter
from weft.fn.inliner import Held
from weft.gpu.pointwise.form import PassTensor, passage
from weft.gpu.pointwise.launch import Pass, made_pass
from weft.library.products import wrapped
from weft.library.scheme import LibraryScheme
from weft.library.views import FIRST, C, D, Frame, Group
from weft.planner.schedule import AuxTensors, Scalar, Target
from weft.spec import Contraction, Layout


class FinishPass:
    """Sums to D and further results. It runs on new pointers; `serves` is asked once in each call."""

    def __init__(self, contraction: Contraction, fused: Pass) -> None:
        self._fused = fused
        self._with_c = contraction.c is not None
        self._operands = tuple([at for at in _beside(contraction) if contraction.aux[at].kind == "operand"])
        self._outputs = contraction.outputs
        self._dtype = contraction.arithmetic.accumulate if self._with_c and contraction.algebra is None else None

    def serves(self, c: Tensor | None, beta: Scalar) -> bool:
        """Whether it does this call; with C it was made for those that add C."""
        return (c is not None and beta != 0) == self._with_c and self._fused.serves

    def __call__(self, total: Tensor, c: Tensor | None, d: Tensor, beta: Scalar, aux: AuxTensors) -> None:
        """`total` are the sums, or D as it is given where they are stored there; C is given where it is added."""
        tensors = [total, *([c] if c is not None and self._with_c else ())]
        tensors += [aux[at] for at in self._operands]  # type: ignore[misc]
        tensors.append(d)
        tensors += [aux[at] for at in self._outputs]  # type: ignore[misc]
        self._fused(tensors, None if self._dtype is None else wrapped(beta, self._dtype))

    @property
    def state(self) -> str:
        return self._fused.state


def finish_pass(scheme: LibraryScheme, frame: Frame, kept: Group, placed: bool, target: Target) -> FinishPass | str:
    """The pass over a part's sums, which stand in D or, contiguous, in memory of their own; or why there is none."""
    contraction = scheme.contraction
    if scheme.roles.repeat != 1 and contraction.algebra is None:
        return "equal products are added"
    if scheme.types.result != scheme.accumulate:
        return "the product rounds its sums"
    tensors = _tensors(scheme, frame, kept, placed)
    found = passage([frame.extents[at] for at in kept], tensors, 1 + len(contraction.outputs))
    if isinstance(found, str):
        return found
    factor = scheme.accumulate if contraction.c is not None and contraction.algebra is None else None
    fused = made_pass(found, factor, _Body(contraction), target)
    return fused if isinstance(fused, str) else FinishPass(contraction, fused)


def _tensors(scheme: LibraryScheme, frame: Frame, kept: Group, placed: bool) -> list[PassTensor]:
    contraction = scheme.contraction
    d = _of_layout(contraction.d, D, frame, kept)
    own = Layout.contiguous([frame.extents[at] for at in kept], scheme.accumulate)
    found = [d if placed else PassTensor(own.dtype, own.strides)]
    if contraction.c is not None:
        found.append(_of_layout(contraction.c, C, frame, kept))
    for at in _beside(contraction):
        aux = contraction.aux[at]
        if aux.layout is None:
            strides = tuple([frame.modes[mode].strides[FIRST + at] for mode in kept])
            found.append(PassTensor(aux.dtype, strides, frame.start(FIRST + at), is_index=True))
        else:
            found.append(_of_layout(aux.layout, FIRST + at, frame, kept))
    found.append(d)
    for at in contraction.outputs:
        layout = contraction.aux[at].layout
        assert layout is not None, "a result has a place"
        found.append(_of_layout(layout, FIRST + at, frame, kept))
    return found


def _of_layout(layout: Layout, place: int, frame: Frame, kept: Group) -> PassTensor:
    strides = tuple([frame.modes[mode].strides[place] for mode in kept])
    return PassTensor(layout.dtype, strides, frame.start(place), layout.alignment)


def _beside(contraction: Contraction) -> tuple[int, ...]:
    """Operands and coordinates that functions behind the sums take, each once."""
    c_args = contraction.c_args if contraction.c is not None else ()
    return tuple(dict.fromkeys((*c_args, *contraction.epilogue_args)))


class _Body:
    """What is computed of an element: sums + beta * c_fn(C), then the epilogue."""

    def __init__(self, contraction: Contraction) -> None:
        self._contraction = contraction

    def __call__(self, w: CudaWriter, values: list[Held], factor: Held | None) -> Sequence[Held]:
        contraction = self._contraction
        total, *rest = values
        addend = rest.pop(0) if contraction.c is not None else None
        beside = dict(zip(_beside(contraction), rest, strict=True))
        if addend is not None:
            total = self._added(w, total, addend, [beside[at] for at in contraction.c_args], factor)
        if contraction.epilogue is None:
            return [total]
        return inlined(w, contraction.epilogue, [total, *(beside[at] for at in contraction.epilogue_args)])

    def _added(self, w: CudaWriter, total: Held, c: Held, arguments: list[Held], factor: Held | None) -> Held:
        contraction, dtype = self._contraction, total.dtype
        value = Held(w.converted(c.name, c.dtype, dtype), dtype)
        if contraction.c_fn is not None:
            value = _one(w, inlined(w, contraction.c_fn, [value, *arguments]), dtype)
        if contraction.algebra is not None:
            return _one(w, inlined(w, contraction.algebra.reduce, [total, value]), dtype)
        assert factor is not None, "C has a factor"
        scaled = w.typed(LOWERINGS["mul"](w, dtype, factor.name, value.name), dtype)
        return Held(w.typed(LOWERINGS["add"](w, dtype, total.name, scaled), dtype), dtype)


def _one(w: CudaWriter, results: Sequence[Held], dtype: torch.dtype) -> Held:
    (result,) = results
    return Held(w.converted(result.name, result.dtype, dtype), dtype)
