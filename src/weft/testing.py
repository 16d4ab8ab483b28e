"""Tools for holding a contraction against the oracle: error bounds, comparison, poisoned memory, awkward operands.

They work on any device and are public: tests of code that calls weft need the same things.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from weft.algebra import Algebra, find, plus_times
from weft.base.memory import check_room
from weft.errors import DTypeError, ShapeError, UnsupportedError
from weft.oracle.bounds import expectation as _expectation
from weft.oracle.judgement import distance, judged, unwritten
from weft.oracle.problem import flat, random_values, span
from weft.oracle.reference import Equation, wide
from weft.oracle.rounding import epsilon
from weft.spec import Layout
from weft.spec.arguments import reads

LAYOUTS = ("contiguous", "permuted", "padded", "strided", "offset", "expanded", "overlapping")
#: See `weft.oracle.bounds.expectation`.
expectation = reads("testing.expectation")(_expectation)
_TRIPLES_OF = 24  # samples of which `check_algebra` tries every triple
_GUARD = 64  # elements before and after a guarded tensor; a multiple of 16 bytes in every type


@reads("testing.tolerance")
def tolerance(equation: Equation, a: torch.Tensor, b: torch.Tensor, **options: Any) -> torch.Tensor:
    """The bound alone of `expectation`, whose arguments it takes: float64, in D's shape."""
    return cast(torch.Tensor, expectation(equation, a, b, **options)[1])


@reads("testing.assert_close")
def assert_close(actual: torch.Tensor, reference: torch.Tensor, bound: torch.Tensor) -> None:
    """Every element of `actual` is within `bound` of `reference`, or `AssertionError` names the worst one.

    NaN must meet NaN and infinity the same infinity; a finite reference may overflow where the type of `actual` does.
    Raises `ValueError` when most of the bounds are infinite: such a comparison would say nothing.
    """
    assert tuple(actual.shape) == tuple(reference.shape), f"shape {tuple(actual.shape)}, not {tuple(reference.shape)}"
    _check_alike(actual=actual, bound=bound)
    if bound.numel() and 2 * int(bound.isinf().sum()) > bound.numel():
        raise ValueError("most bounds are infinite: the epilogue leaves its domain within the rounding of its argument")
    found = judged(actual, reference, bound)
    if found.right:
        return
    place = torch.tensor(found.at, device="cpu")
    at = tuple(int(i) for i in torch.unravel_index(place, actual.shape)) if actual.dim() else ()
    raise AssertionError(
        f"{found.wrong} of {found.of} elements are off; the worst at {at}: {actual[at].item()}, expected "
        f"{reference[at].item()}, error over bound {found.worst:.3g} (bound {bound[at].item():.3g})"
    )


@reads("testing.max_error_over_bound")
def max_error_over_bound(actual: torch.Tensor, reference: torch.Tensor, bound: torch.Tensor) -> float:
    """The largest error in units of its bound: at most 1 for a correct result, 0 for an exact or empty one."""
    _check_alike(actual=actual, reference=reference, bound=bound)
    return judged(actual, reference, bound).worst


def _check_alike(**tensors: torch.Tensor) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1:
        raise ShapeError(f"shapes differ: {', '.join(f'{name} {shape}' for name, shape in shapes.items())}")
    bound = tensors.get("bound")
    if bound is not None and not bound.is_floating_point():
        raise DTypeError("bound holds real numbers")


@reads("testing.max_norm")
def max_norm(actual: torch.Tensor, reference: torch.Tensor) -> float:
    """Largest absolute difference."""
    _check_alike(actual=actual, reference=reference)
    difference = (wide(actual) - wide(reference)).abs()
    return float(difference.max()) if difference.numel() else 0.0


@reads("testing.l2_norm")
def l2_norm(actual: torch.Tensor, reference: torch.Tensor) -> float:
    """Square root of the sum of squared absolute differences."""
    _check_alike(actual=actual, reference=reference)
    return float((wide(actual) - wide(reference)).abs().double().square().sum().sqrt())


@dataclass(frozen=True, slots=True)
class Guarded:
    """A tensor in the middle of poisoned memory: NaN before it, behind it and between its elements.

    Integer types, which have no NaN, hold a pattern there.
    """

    tensor: torch.Tensor
    memory: torch.Tensor  # bytes
    guards: torch.Tensor  # bool, one for each byte: not part of `tensor`
    poison: int

    def check_guards(self) -> None:
        """Raise `AssertionError` if a byte outside the tensor has changed."""
        changed = (self.memory != self.poison) & self.guards
        if bool(changed.any()):
            count, first = int(changed.sum()), int(changed.nonzero()[0])
            raise AssertionError(f"{count} bytes outside the tensor were written, the first at byte {first}")


@reads("testing.poisoned")
def poisoned(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    *,
    layout: str = "contiguous",
    strides: tuple[int, ...] | None = None,
    device: torch.device | str = "cpu",
) -> Guarded:
    """An output to write to: poison inside and around. `strides` (elements) overrides `layout`, one of `LAYOUTS`."""
    at = 0
    if strides is None:
        strides, at = layout_strides(shape, layout)
    _check_lying(shape, strides)
    elements = 2 * _GUARD + at + span(Layout(shape, strides, dtype))
    poison = unwritten(dtype)
    size = dtype.itemsize
    check_room(torch.device(device), 2 * elements * size)
    memory = torch.full((elements * size,), poison, dtype=torch.uint8, device=device)
    guards = torch.ones(elements, size, dtype=torch.bool, device=device)
    if 0 not in shape:
        # A dimension of stride 0 is one element: torch refuses to fill its copies.
        once = tuple(1 if stride == 0 else extent for stride, extent in zip(strides, shape, strict=True))
        steps = tuple(stride * size for stride in strides)
        guards.as_strided((*once, size), (*steps, 1), (_GUARD + at) * size).fill_(False)
    tensor = memory.view(dtype).as_strided(shape, strides, _GUARD + at)
    return Guarded(tensor, memory, guards.view(-1), poison)


def _check_lying(shape: Sequence[int], strides: Sequence[int]) -> None:
    if len(shape) != len(strides) or min((*shape, *strides), default=0) < 0:
        raise ShapeError(f"shape {tuple(shape)} with strides {tuple(strides)}: as many of both, none negative")


@reads("testing.random_operand")
def random_operand(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    seed: int,
    *,
    integers: bool = False,
    layout: str = "contiguous",
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Random values in poisoned memory, laid out as `layout` says; the same for the same `seed` and device.

    Floating types hold normal values, or with `integers` whole numbers from -3 to 3, so that sums are exact in any
    order; integer types hold those always (0 to 3 where unsigned). Overlapping layouts repeat their values.
    """
    if torch.device(device).type == "meta":
        raise UnsupportedError("an operand on the meta device has no values")
    tensor = poisoned(shape, dtype, layout=layout, device=device).tensor
    generator = torch.Generator(device).manual_seed(seed)
    # Fill the memory and not the indices: where those overlap, each address must get one value.
    target = flat(tensor) if layout in ("expanded", "overlapping") else tensor
    target.copy_(random_values(target.shape, dtype, generator, integers))
    return tensor


@reads("testing.layout_strides")
def layout_strides(shape: tuple[int, ...], layout: str) -> tuple[tuple[int, ...], int]:
    """Strides and offset in elements.

    contiguous: row-major. permuted: column-major. padded: rows 3 elements longer than their extent. strided: every
    second element. offset: contiguous, one element past an aligned address. expanded: the first dimension of extent
    over 1 has stride 0. overlapping: every stride is 1, so that neighbours share elements.
    """
    rank = len(shape)
    dense = list(_row_major(shape))
    if layout == "contiguous":
        return tuple(dense), 0
    if layout == "permuted":
        return tuple(reversed(_row_major(shape[::-1]))), 0
    if layout == "padded":
        pitch = (*shape[:-1], shape[-1] + 3) if shape else ()
        return _row_major(pitch), 0
    if layout == "strided":
        return tuple(2 * stride for stride in dense), 0
    if layout == "offset":
        return tuple(dense), 1
    if layout == "expanded":
        at = next((i for i, extent in enumerate(shape) if extent > 1), None)
        if at is None:
            return tuple(dense), 0
        strides = list(_row_major((*shape[:at], 1, *shape[at + 1 :])))
        strides[at] = 0
        return tuple(strides), 0
    if layout == "overlapping":
        return (1,) * rank, 0
    raise ShapeError(f"layout {layout!r} is none of {', '.join(LAYOUTS)}")


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    return Layout.contiguous(shape, torch.uint8).strides


@reads("testing.check_algebra")
def check_algebra(
    algebra: str | Algebra, dtype: torch.dtype = torch.float32, *, seed: int = 0, operands: int = 2
) -> None:
    """Whether `reduce` is associative and commutative and leaves the identity out, on samples; an algebra's promise.

    The samples are what `reduce` meets: `combine` of pairs of seeded values of the accumulator type `dtype` (whole
    numbers and normal ones, infinities of both signs, extreme integers) and the identity. Floating-point results may
    differ by rounding, 16 units in the last place of the largest magnitude involved; triples whose results are NaN
    either way agree. With `operands` of 3 and more also whether `combine` distributes over `reduce`, without which a
    network keeps every label up to its last step. Raises `AssertionError` with the first triple that fails, and
    `DTypeError` where the algebra does not work on `dtype`.
    """
    found = find(algebra) or plus_times
    found.traced(dtype)
    if operands > 2 and (broken := found.early(dtype).broken):
        raise AssertionError(broken)

    def reduce(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(found.reduce(p, q), device="cpu").to(dtype).expand(p.shape)

    values = _algebra_samples(dtype, seed)
    combined = torch.as_tensor(found.combine(values[:, None], values[None, :]), device="cpu").to(dtype).reshape(-1)
    identity = torch.tensor([found.identity_in(dtype)], dtype=dtype, device="cpu")
    picked = torch.randperm(len(combined), generator=torch.Generator().manual_seed(seed), device="cpu")[:_TRIPLES_OF]
    samples = torch.cat([combined[picked], identity])
    x, y, z = (one.reshape(-1) for one in torch.meshgrid(samples, samples, samples, indexing="ij"))
    laws = {
        "reduce is not commutative": (reduce(x, y), reduce(y, x)),
        "reduce is not associative": (reduce(reduce(x, y), z), reduce(x, reduce(y, z))),
        "reduce with the identity changes x": (reduce(x, identity.expand(x.shape)), x),
    }
    for law, (one, other) in laws.items():
        wrong = _disagree(one, other, torch.stack([x, y, z]))
        if bool(wrong.any()):
            at = int(wrong.nonzero()[0])
            raise AssertionError(
                f"{found.name}: {law} for x={x[at].item()}, y={y[at].item()}, z={z[at].item()}: "
                f"{one[at].item()} and {other[at].item()}"
            )


def _algebra_samples(dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Values of one type, its extreme ones among them."""
    if dtype is torch.bool:
        return torch.tensor([False, True], device="cpu")
    whole = random_operand((6,), dtype, seed, integers=True)
    if dtype.is_complex:
        return torch.cat([whole, random_operand((6,), dtype, seed + 1)])
    if dtype.is_floating_point:
        extreme = torch.tensor([-math.inf, math.inf, 0.0], dtype=dtype, device="cpu")
        return torch.cat([whole, random_operand((6,), dtype, seed + 1), extreme])
    limits = torch.iinfo(dtype)
    return torch.cat([whole, torch.tensor([limits.min, limits.max, 97 % limits.max], dtype=dtype, device="cpu")])


def _disagree(one: torch.Tensor, other: torch.Tensor, involved: torch.Tensor) -> torch.Tensor:
    """Where two results differ by more than rounding."""
    if not (one.is_floating_point() or one.is_complex()):
        return one != other
    size = torch.cat([involved, one[None], other[None]]).abs().nan_to_num(0.0, 0.0, 0.0).amax(0)
    size = torch.maximum(size, torch.ones_like(size))  # a logarithm's rounding is that of 1
    return distance(one, other) > 16 * epsilon(one.dtype) * size
