"""Small problems that together need each part of the kernels.

Extents are of a few tiles with ends that fill none, so that masks and rings are at work, and a sanitizer is done soon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from weft.api.describe import hypothetical
from weft.planner.schedule import Description
from weft.spec import Layout, parse
from weft.spec.permutation import Permutation, canonical_modes

HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64
COMPLEX, COMPLEX_DOUBLE = torch.complex64, torch.complex128
E4M3 = torch.float8_e4m3fn
HALVES: dict[str, Any] = {"dtype": HALF, "out_dtype": SINGLE}
ELU = torch.nn.functional.elu

Problems = dict[str, Callable[[], Description]]


def contracted(equation: str, extents: dict[str, int], added: bool = False, **options: Any) -> Description:
    """A contraction of contiguous tensors; `added`: with a C."""
    request = hypothetical(equation, extents, backend="triton", target="sm_90", **options)
    result = Layout.contiguous([extents[str(label)] for label in request.notation.output], request.d_dtype)
    return request.contraction(result if added else None, result)


def permuted(equation: str, shape: tuple[int, ...], dtype: torch.dtype, out: torch.dtype | None = None) -> Permutation:
    """A permutation of a contiguous tensor."""
    notation = parse(equation)
    extents = dict(zip(notation.inputs[0], shape, strict=True))
    x = Layout.contiguous(shape, dtype)
    d = Layout.contiguous([extents[label] for label in notation.output], out or dtype)
    return Permutation(canonical_modes(notation, x, None, d, extents), x, None, d, d.dtype, text=equation)


def _each(equation: str, extents: dict[str, int], **named: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """One contraction with several sets of options, by name."""
    for name, options in named.items():
        yield name.replace("_", " "), partial(contracted, equation, extents, **options)


def _halves() -> Iterator[tuple[str, Any]]:
    """Problems for the fast families: whole sums, long ones, one operand that is kept, functions of either and both."""
    both = HALVES | {"a_fn": ELU, "b_fn": ELU, "epilogue": ELU}
    one = HALVES | {"a_fn": ELU, "epilogue": ELU}
    yield from _each("mk,nk->mn", {"m": 600, "n": 488, "k": 328}, product=HALVES, product_with_functions=both)
    modes = {"a": 136, "b": 296, "c": 9, "d": 136}
    yield from _each("dca,bd->cba", modes, modes=HALVES, modes_with_one=one, modes_with_functions=both)
    yield from _each("dca,cbd->ba", modes, sums=HALVES, sums_with_functions=both)
    short = dict.fromkeys("bcd", 24) | {"a": 72, "e": 72}
    yield from _each("ae,dcbe->dcba", short, kept=HALVES, kept_with_one=one, kept_with_functions=both)
    pairs = dict.fromkeys("cd", 24) | dict.fromkeys("abe", 72)
    yield from _each("ceda,bed->cba", pairs, abreast=HALVES, abreast_with_functions=one)
    yield from _each("aebf,dfce->abcd", {**dict.fromkeys("abcd", 23), "e": 20, "f": 24}, odd=HALVES)
    yield from _each("aebf,dfce->abcd", dict.fromkeys("abcdef", 24), packed={"dtype": HALF})


def _general() -> Iterator[tuple[str, Any]]:
    """Other types of numbers, classes of modes, a C, operands of functions, and several results."""
    numbers: dict[str, dict[str, Any]] = {
        "single": {}, "tf32": {"precision": "tf32"}, "tf32x3": {"precision": "tf32x3"}, "double": {"dtype": DOUBLE},
        "int8": {"dtype": torch.int8, "out_dtype": torch.int32}, "int64": {"dtype": torch.int64},
        "fp8": {"dtype": E4M3, "out_dtype": HALF, "precision": E4M3}, "fp8_as_half": {"dtype": E4M3, "out_dtype": HALF},
    }  # fmt: skip
    yield from _each("mk,kn->mn", {"m": 144, "n": 112, "k": 208}, **numbers)
    yield "with C", partial(contracted, "amk,kn->nam", {"a": 3, "m": 65, "n": 70, "k": 97}, added=True)
    yield "batch", partial(contracted, "bmk,bkn->mbn", {"b": 5, "m": 33, "n": 34, "k": 35}, dtype=HALF)
    yield "diagonal", partial(contracted, "iik,kn->in", {"i": 50, "k": 40, "n": 60})
    yield "own mode", partial(contracted, "mkx,kn->mn", {"m": 70, "k": 65, "x": 20, "n": 50})
    yield "vector", partial(contracted, "mk,k->m", {"m": 130, "k": 515}, added=True)
    yield "elements", partial(contracted, "ab,ba->ab", {"a": 130, "b": 70})
    yield "deep", partial(contracted, "mk,nk->mn", {"m": 17, "n": 18, "k": 5000}, dtype=HALF)
    yield "operands", partial(
        contracted, "mk,nk->mn", {"m": 150, "n": 140, "k": 136}, dtype=HALF,
        operands={"gate": ("mk", HALF), "bias": ("n", HALF)}, indices={"row": "m", "column": "n"},
        a_fn=lambda x, gate: x * gate,
        epilogue=lambda x, bias, row, column: (torch.where(row >= column, x + bias, 0.0), x > 0),
    )  # fmt: skip


def _algebras() -> Iterator[tuple[str, Any]]:
    extents = {"m": 130, "n": 140, "k": 300}
    for name, dtype in (("max_plus", SINGLE), ("max_plus", HALF), ("min_max", torch.int32), ("or_and", torch.bool)):
        text = f"{name} {str(dtype).removeprefix('torch.')}"
        yield text, partial(contracted, "mk,nk->mn", extents, algebra=name, dtype=dtype)
    pieces = {"a": 40, "b": 33, "c": 24, "d": 70}
    yield "max_plus in pieces", partial(contracted, "adb,cd->cba", pieces, algebra="max_plus")
    yield "max_plus of vectors", partial(contracted, "mk,k->m", {"m": 130, "k": 515}, algebra="max_plus")
    yield "log", partial(contracted, "mk,nk->mn", {"m": 260, "n": 250, "k": 140}, algebra="log")


def _complex() -> Iterator[tuple[str, Any]]:
    gate = {"p": 2, "q": 2, "a": 2, "b": 2, "x": 9, "y": 10, "z": 33}
    for dtype in (COMPLEX, COMPLEX_DOUBLE):
        name = str(dtype).removeprefix("torch.")
        yield f"gate {name}", partial(contracted, "pqab,xaybz->xpyqz", gate, dtype=dtype)
        yield f"modes {name}", partial(contracted, "aebf,dfce->abcd", dict.fromkeys("abcdef", 11), dtype=dtype)
    yield "gate complex64 tf32", partial(contracted, "pqab,xaybz->xpyqz", gate, dtype=COMPLEX, precision="tf32")
    yield "modes complex128 3m", partial(
        contracted, "aebf,dfce->abcd", dict.fromkeys("abcdef", 12), dtype=COMPLEX_DOUBLE, precision="3m"
    )
    yield "complex functions", partial(
        contracted, "mk,kn->mn", {"m": 65, "n": 66, "k": 67}, dtype=COMPLEX, operands={"full": ("mn", COMPLEX)},
        a_fn=torch.exp, epilogue=lambda z, full: (z * full, torch.abs(z)),
    )  # fmt: skip


def _permutations() -> Iterator[tuple[str, Any]]:
    for dtype in (torch.uint8, HALF, SINGLE, DOUBLE, COMPLEX_DOUBLE):
        name = str(dtype).removeprefix("torch.")
        yield f"permuted {name}", partial(permuted, "abc->cab", (17, 130, 70), dtype)
        yield f"transposed {name}", partial(permuted, "ab->ba", (264, 136), dtype)
    yield "permuted many", partial(permuted, "abcdefghij->jihgfedcba", (2,) * 10, HALF)
    yield "copied and cast", partial(permuted, "abc->acb", (30, 40, 50), SINGLE, HALF)
    yield "permuted to complex128", partial(permuted, "abc->cab", (17, 30, 40), COMPLEX, COMPLEX_DOUBLE)


def problems() -> Problems:
    """All of them, by names that are unique."""
    groups = (_halves(), _general(), _algebras(), _complex(), _permutations())
    return {name: describe for group in groups for name, describe in group}
