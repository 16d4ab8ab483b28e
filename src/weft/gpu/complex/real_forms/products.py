"""The product that is left once operands are packed: of complex numbers, or of real ones with (re, im) as a mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from weft.gpu.common.complex_elements import real, real_arithmetic
from weft.gpu.common.tiling import C, D
from weft.gpu.complex.real_forms import aux_operands
from weft.gpu.complex.real_forms.views import TensorView, strides_of
from weft.spec import Arithmetic, Contraction, Layout, Mode, Role, Strides, canonical

# Names of the modes of extent 2, and of the one of extent 3.
_PAIR = "re·im"
_PAIR_OF_A, _PAIR_OF_B, _PAIR_OF_D = "re·im of A", "re·im of B", "re·im of D"
_THREE = "re·im·sum"


def complex_product(contraction: Contraction, pair: Sequence[TensorView], result: TensorView | None) -> Contraction:
    """What is left of a contraction with these operands, into `result` or into D itself."""
    arithmetic = contraction.arithmetic
    return canonical(
        replace(
            contraction, **_described(contraction, pair, result, (1, 1, 1, 1)),
            arithmetic=Arithmetic(arithmetic.product, arithmetic.accumulate, arithmetic.precision),
            conjugate_a=pair[0].conjugate, conjugate_b=pair[1].conjugate,
        )
    )  # fmt: skip


def real_product(contraction: Contraction, pair: Sequence[TensorView], result: TensorView | None) -> Contraction:
    """The same of real numbers: (re, im) are modes."""
    a, b = pair
    c = contraction.c if result is None else None
    d = result.layout if result is not None else contraction.d
    c_parts, d_parts = (2 if layout is not None and layout.dtype.is_complex else 1 for layout in (c, d))
    described = _described(contraction, pair, result, (a.factor, b.factor, c_parts, d_parts))
    none = (0,) * len(described["aux"])
    further = [
        mode._replace(strides=Strides(*mode.strides, *none)) for mode in _modes_of_parts(a, b, result, c is not None)
    ]
    described |= {name: _as_real(described[name]) for name in "abcd" if described[name] is not None}
    described["modes"] += tuple(further)
    return canonical(
        replace(
            contraction, **described, arithmetic=real_arithmetic(contraction.arithmetic),
            conjugate_a=False, conjugate_b=False,
        )
    )  # fmt: skip


def _described(
    contraction: Contraction, pair: Sequence[TensorView], result: TensorView | None, factors: tuple[int, int, int, int]
) -> dict[str, Any]:
    """Tensors, modes and functions of the product; strides of A, B, C and D multiplied by so much."""
    a, b = pair
    left = aux_operands.of_product(contraction, (a.fn, b.fn))
    d_strides = result.strides if result is not None else strides_of(contraction, D)
    c_strides = (0,) * len(d_strides) if result is not None or contraction.c is None else strides_of(contraction, C)
    modes = [
        mode._replace(
            strides=Strides(
                *(factor * stride for factor, stride in zip(factors, own, strict=True)),
                *aux_operands.steps(mode, left.places),
            )
        )
        for mode, *own in zip(contraction.modes, a.strides, b.strides, c_strides, d_strides, strict=True)
    ]
    return {
        "modes": tuple(modes), "a": a.layout, "b": b.layout, "c": None if result is not None else contraction.c,
        "d": result.layout if result is not None else contraction.d, **left.fields,
    }  # fmt: skip


def _modes_of_parts(a: TensorView, b: TensorView, result: TensorView | None, added: bool) -> list[Mode]:
    """The modes of extent 2 or 3 that the parts of complex elements are in a real product."""
    in_c = int(added)
    if result is not None and result.three_planes:
        return [Mode((_THREE,), 3, Role.BATCH, Strides(a.three_planes, b.three_planes, 0, result.three_planes))]
    if result is not None and result.a_pair:
        return [
            Mode((_PAIR_OF_A,), 2, Role.M, Strides(a.planes or 1, 0, 0, result.a_pair)),
            Mode((_PAIR_OF_B,), 2, Role.N, Strides(0, b.planes or 1, 0, result.b_pair)),
        ]
    if a.d_pair or b.d_pair:
        role = Role.M if a.d_pair else Role.N
        return [
            Mode((_PAIR,), 2, Role.K, Strides(a.k_pair or 1, b.k_pair or 1, 0, 0)),
            Mode((_PAIR_OF_D,), 2, role, Strides(a.d_pair, b.d_pair, in_c, 1)),
        ]
    if a.factor != b.factor:
        role = Role.M if a.factor == 2 else Role.N
        return [Mode((_PAIR,), 2, role, Strides(a.factor - 1, b.factor - 1, in_c, 1))]
    return []


def _as_real(layout: Layout) -> Layout:
    """A complex tensor as the real one that it is in memory."""
    if not layout.dtype.is_complex:
        return layout
    strides = (*(2 * stride for stride in layout.strides), 1)
    return Layout((*layout.shape, 2), strides, real(layout.dtype), layout.alignment)
