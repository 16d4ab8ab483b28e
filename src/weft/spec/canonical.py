"""The canonical form of a contraction: as few modes as describe the same memory accesses.

Unit modes go; a mode that an operand does not move along counts as absent from it; modes that lie contiguously
together in every tensor become one. So a plain matrix product looks like one however it was written, and a batch
whose A is expanded is the cheaper product that it really is.
"""

from __future__ import annotations

from dataclasses import replace

from weft.spec.contraction import Contraction, Mode, Role

_ORDER = {Role.BATCH: 0, Role.M: 1, Role.N: 2, Role.K: 3}


def canonical(contraction: Contraction) -> Contraction:
    """An equal contraction with the fewest modes, outermost first within each role (in D; in A for k).

    An invariant contraction has its modes of k in the order in which they come, whatever the layouts.
    """
    modes = [_classed_by_strides(mode, contraction) for mode in contraction.modes if mode.extent != 1]
    summed: list[Mode] = []
    if contraction.invariant:
        for mode in modes:
            if mode.role is Role.K:
                summed[-1:] = merged([*summed[-1:], mode])
        modes = [mode for mode in modes if mode.role is not Role.K]
    modes.sort(key=_outermost_first)
    return replace(contraction, modes=(*merged(modes), *summed))


def _classed_by_strides(mode: Mode, contraction: Contraction) -> Mode:
    """Stride 0 in an operand, and in all that its function takes beside the value, is absence from it."""
    if mode.role is Role.K:
        return mode
    strides = mode.strides
    in_a = strides.a or any(strides.aux[at] for at in contraction.a_args)
    in_b = strides.b or any(strides.aux[at] for at in contraction.b_args)
    if in_a and in_b:
        role = Role.BATCH
    else:
        role = Role.N if in_b else Role.M
    return mode._replace(role=role)


def _outermost_first(mode: Mode) -> tuple[int, ...]:
    strides = mode.strides
    return (_ORDER[mode.role], -strides.d, -strides.a, -strides.b, -mode.extent)


def merged(modes: list[Mode]) -> list[Mode]:
    """Merge greedily: sorted by stride, a mode's only possible inner partners come after it."""
    found: list[Mode] = []
    for mode in modes:
        for at, outer in enumerate(found):
            if together(outer, mode):
                found[at] = Mode(outer.labels + mode.labels, outer.extent * mode.extent, outer.role, mode.strides)
                break
        else:
            found.append(mode)
    return found


def together(outer: Mode, inner: Mode) -> bool:
    """Whether stepping `outer` once is stepping past the end of `inner`, in every tensor."""
    return outer.role is inner.role and all(
        far == near * inner.extent for far, near in zip(outer.strides, inner.strides, strict=True)
    )
