"""Cases beyond plain matrix products, at sizes worth timing: functions with operands, algebras, and other numbers.

epilogues()    one product with and without a bias and a ReLU
algebras()     max-plus and logarithms on a product, max-plus on some of TCCG
weights()      a half-precision product of few rows, its weights of eight bits with a scale for each column
gradients()    layers, scores, TCCG with functions, and algebras, for their forward and backward passes
numbers()      complex ones on some of TCCG, integers and fp8 beside half precision: (group, case)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import torch

from weft.selftest.case import Case, from_letters
from weft_bench.cases.suite import tccg

EXTENT = 4096  # of the square products
MAX_PLUS = (1, 4, 9, 13, 20, 31)  # numbers of TCCG
COMPLEX = (20, 24, 30)
COMPLEX_TF32 = (1, 4, 9, 13, 16, 19, 20, 24, 30, 31, 40)

_HALF = (torch.float16,) * 3
_SQUARE = dict.fromkeys("mkn", EXTENT)


@cache
def epilogues() -> tuple[Case, ...]:
    """``relu(A B + bias)`` in float16, the bias as an operand of the epilogue and as C, and the product without."""
    plain = from_letters("plain", "mk,kn->mn", "epilogue", **_SQUARE, dtypes=_HALF)
    biased = replace(plain, name="bias-relu", epilogue="relu", add=True, c_ones=(0,), c_as="bias")
    return (
        plain,
        replace(plain, name="relu", epilogue="relu"),
        biased,
        replace(biased, name="bias-relu-as-c", c_as=""),
    )


@cache
def weights() -> tuple[Case, ...]:
    """16 rows by the weights of a layer of 4096 to 11008, in float16, and with weights stored in a byte each."""
    layer = {"m": 16, "k": 4096, "n": 11008}
    half = from_letters("half", "mk,nk->mn", "weights", **layer, dtypes=_HALF)
    scaled = replace(half, add=True, c_ones=(0,), c_as="scale")
    return (
        half,
        replace(scaled, name="int8", dtypes=(torch.float16, torch.int8, torch.float16)),
        replace(scaled, name="e4m3", dtypes=(torch.float16, torch.float8_e4m3fn, torch.float16)),
    )


@cache
def algebras() -> tuple[Case, ...]:
    """In float32. "log" and "log-direct" are the same sums, by matrix products and term by term."""
    product = from_letters("product", "mk,kn->mn", "algebra", **_SQUARE)
    squares = {"max-plus": "max_plus", "log": "log", "log-direct": "log_direct"}
    single = tccg(torch.float32, torch.float32)
    return (
        *(replace(product, name=name, algebra=algebra) for name, algebra in squares.items()),
        *(replace(single[at - 1], algebra="max_plus") for at in MAX_PLUS),
    )


CAUSAL = "causal"  # the tag of scores of which those above the diagonal are masked
LEAKY = (1, 4, 9, 13, 16, 20, 31, 40)  # numbers of TCCG


@cache
def gradients() -> tuple[Case, ...]:
    """A layer with bias and GELU, masked scores, TCCG with leaky ReLU on A, B and D, max-plus and `log`."""
    layer = from_letters("linear-gelu", "mk,nk->mn", "gradients", m=8192, k=4096, n=11008, dtypes=_HALF)
    scores = from_letters("masked-scores", "bhid,bhjd->bhij", f"gradients {CAUSAL}", b=4, h=16, i=2048, j=2048, d=64)
    product = from_letters("max-plus-2048", "mk,kn->mn", "gradients", **dict.fromkeys("mkn", 2048))
    leaky = "leaky_relu"
    return (
        replace(layer, epilogue="gelu", add=True, c_ones=(0,), c_as="bias"),
        replace(scores, dtypes=_HALF),
        *(replace(tccg(*_HALF[:2])[at - 1], a_fn=leaky, b_fn=leaky, epilogue=leaky) for at in LEAKY),
        replace(product, algebra="max_plus"),
        from_letters("log-4096", "mk,kn->mn", "gradients", **_SQUARE, algebra="log"),
    )


@cache
def layers() -> tuple[Case, ...]:
    """One of the two products of a gated layer: its other weight has the same shape."""
    sizes = {"m": 8192, "k": 4096, "n": 11008}
    types = (torch.float16, torch.bfloat16)
    return tuple(
        from_letters(f"swiglu-{str(dtype).removeprefix('torch.')}", "mk,nk->mn", "nn", **sizes, dtypes=(dtype,) * 3)
        for dtype in types
    )


@cache
def numbers() -> tuple[tuple[str, Case], ...]:
    """(group, case): number types as `weft_bench.suites.PAIRS` names them."""
    return tuple(_numbers())


def _numbers() -> Iterator[tuple[str, Case]]:
    single, double = torch.complex64, torch.complex128
    for group, dtype, precision, chosen in (
        ("complex64", single, None, COMPLEX),
        ("complex64_tf32", single, "tf32", COMPLEX_TF32),
        ("complex128", double, None, COMPLEX),
        ("complex64_3m", single, "3m", COMPLEX),
        ("complex128_3m", double, "3m", COMPLEX),
    ):
        suite = tccg(dtype, dtype, precision)
        yield from ((group, suite[at - 1]) for at in chosen)
    product = from_letters("product", "mk,nk->mn", "integer", **_SQUARE, dtypes=_HALF)
    yield "fp16_fp16", product
    yield "int8_int32", replace(product, dtypes=(torch.int8, torch.int8, torch.int32))
    fp8 = torch.float8_e4m3fn
    bytes_wide = replace(product, dtypes=(fp8, fp8, torch.float16), tags=frozenset({"fp8"}))
    yield "e4m3_fp16", bytes_wide
    yield "e4m3_fp16_as_stored", replace(bytes_wide, precision=fp8)
