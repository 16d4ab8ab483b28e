"""Predicted seconds of torch's operations on a CPU; those of a GPU are `weft.library.gpu_model`'s."""

from __future__ import annotations

from weft.cpu.host import costs
from weft.library.scheme import LibraryScheme
from weft.planner.coefficients import fitted
from weft.planner.schedule import Target

_CALL, _RATE = 8e-6, 4e9  # of permutations: seconds of a call, bytes that are moved in a second


def seconds(scheme: LibraryScheme, parts: int, target: Target, *, alone: bool = False) -> float:
    """Seconds of a call in so many parts; `alone`: as the tier that runs first takes, and not as a candidate among
    kernels.

    A candidate's constants are those of its slow cases, for which it is chosen.
    """
    return _alone(scheme, parts, target) if alone else _as_a_candidate(scheme, parts, target)


def _as_a_candidate(scheme: LibraryScheme, parts: int, target: Target) -> float:
    contraction = scheme.contraction
    batch, m, n, k = (max(getattr(contraction, name), 1) for name in ("batch", "m", "n", "k"))
    cost, cores = costs("library"), max(target.processors, 1)
    each = cost("byte" if scheme.types.way == "bytes" else "pair" if scheme.form == "algebra" else "product")
    return parts * cost("call") + batch * (cost("pass") * (m * k + k * n + m * n) + each * m * n * k) / cores


def _alone(scheme: LibraryScheme, parts: int, target: Target) -> float:
    """Seconds of the tier that runs first.

    Fitted to twelve products of float32 on one core, within a factor of 1.6 but for many tiny ones.
    """
    contraction = scheme.contraction
    batch, m, n, k = (max(getattr(contraction, name), 1) for name in ("batch", "m", "n", "k"))
    cost, cores = fitted("library", "cpu-64.json"), max(target.processors, 1)
    each = cost("pair") if scheme.form == "algebra" else cost("alone_product")
    wide = scheme.accumulate.itemsize / 4
    moved = cost("alone_pass") * (m * k + k * n + m * n) * wide
    return parts * cost("alone_call") + batch * (moved + each * m * n * k * wide) / cores


def moving(size: int) -> float:
    """Seconds of a permutation that reads and writes so many bytes."""
    return _CALL + size / _RATE
