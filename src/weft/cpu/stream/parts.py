"""Complex numbers as pairs of real ones, where an operand alone is summed: against a number that is real.

Loops over real numbers are vectors as they lie, and an infinity stays one: a complex product would make NaN of it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace

import torch

from weft.planner.schedule import AuxTensors, Scalar
from weft.spec import Arithmetic, Contraction, Layout, Mode, Role, Strides, canonical
from weft.spec.dtypes import REAL_OF

_REAL = {torch.complex64: ctypes.c_float, torch.complex128: ctypes.c_double}


def in_parts(contraction: Contraction) -> Contraction | None:
    """The same of real numbers, with a mode of both parts; None where B has modes or nothing is complex."""
    accumulate = contraction.arithmetic.accumulate
    if not accumulate.is_complex or any(mode.strides.b for mode in contraction.modes):
        return None
    real = REAL_OF[accumulate]
    modes = [mode._replace(strides=Strides(*(2 * step for step in mode.strides))) for mode in contraction.modes]
    modes.append(Mode(("part",), 2, Role.M, Strides(1, 0, 0, 1)))
    a, d = (
        Layout((*each.shape, 2), (*(2 * step for step in each.strides), 1), real)
        for each in (contraction.a, contraction.d)
    )
    found = replace(
        contraction, modes=tuple(modes), a=a, b=Layout((), (), real), d=d,
        arithmetic=Arithmetic(real, real, contraction.arithmetic.precision), conjugate_a=False, conjugate_b=False,
    )  # fmt: skip
    return canonical(found)


class PartsLaunch:
    """Launches for a number B that is real, and for any."""

    def __init__(self, real: Callable[..., None], whole: Callable[..., None], dtype: torch.dtype) -> None:
        self._real, self._whole, self._part = real, whole, _REAL[dtype]

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, d: torch.Tensor, alpha: Scalar, beta: Scalar,
        aux: AuxTensors = (),
    ) -> None:  # fmt: skip
        imaginary = self._part.from_address(b.data_ptr() + ctypes.sizeof(self._part)).value
        if alpha.imag == 0 and imaginary == 0:
            self._real(a, b, c, d, alpha.real, 0, aux)
        else:
            self._whole(a, b, c, d, alpha, beta, aux)
