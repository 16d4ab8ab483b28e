"""Small cases: odd and empty extents first, then every class of modes, number type, scalar, layout and function."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch

from weft.selftest.case import FUNCTIONS, Case
from weft.selftest.case import from_letters as case
from weft.testing import LAYOUTS

HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
COMPLEX, COMPLEX_DOUBLE = torch.complex64, torch.complex128
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


@cache
def general() -> tuple[Case, ...]:
    """The list; names are unique."""
    parts = (_empty(), _odd(), _classes(), _broadcasts(), _labels(), _types(), _scalars(), _layouts(), _functions())
    return tuple(each for part in parts for each in part)


def _empty() -> Iterator[Case]:
    yield case("empty-k", "mk,kn->mn", "empty", m=5, k=0, n=7)
    yield case("empty-m", "mk,kn->mn", "empty", m=0, k=3, n=7)
    yield case("empty-n", "mk,kn->mn", "empty", m=5, k=3, n=0)
    yield case("empty-batch", "bmk,bkn->bmn", "empty", b=0, m=5, k=3, n=7)
    yield case("empty-everything", "bmk,bkn->bmn", "empty", b=0, m=0, k=0, n=0)
    yield case("empty-dot", "k,k->", "empty", k=0)
    yield case("empty-lone-mode", "mkx,kn->mn", "empty", m=5, k=3, n=7, x=0)
    yield case("empty-against-one", "mk,kn->mn", "empty", shapes=((5, 1), (0, 7)))
    yield case("empty-diagonal", "mkk,kn->mn", "empty", m=5, k=0, n=7)
    yield case("empty-k-plus-c", "mk,kn->mn", "empty", m=5, k=0, n=7, add=True, beta=2.0)
    yield case("empty-k-epilogue", "mk,kn->mn", "empty", m=5, k=0, n=7, epilogue="exp")


def _odd() -> Iterator[Case]:
    yield case("ones", "mk,kn->mn", "odd", m=1, k=1, n=1)
    yield case("odd-product", "mk,kn->mn", "odd", m=17, k=19, n=23)
    yield case("odd-product-half", "mk,kn->mn", "odd", m=33, k=65, n=31, dtypes=(HALF, HALF, SINGLE))
    yield case("odd-one-past-a-tile", "mk,nk->mn", "odd", m=65, k=17, n=33)
    yield case("odd-one-before-a-tile", "km,kn->mn", "odd", m=63, k=15, n=31)
    yield case("odd-tall", "mk,kn->mn", "odd", m=131, k=3, n=2)
    yield case("odd-deep", "mk,kn->mn", "odd", m=3, k=257, n=5)
    yield case("odd-six-modes", "adbec,ecf->dfab", "odd", a=3, b=5, c=2, d=7, e=3, f=5)


def _classes() -> Iterator[Case]:
    yield case("scalars", ",->", "class")
    yield case("scalar-times-vector", ",n->n", "class", n=13)
    yield case("dot", "k,k->", "class", k=101)
    yield case("outer", "m,n->mn", "class", m=13, n=11)
    yield case("outer-transposed", "m,n->nm", "class", m=13, n=11)
    yield case("matrix-vector", "mk,k->m", "class", m=37, k=29)
    yield case("vector-matrix", "k,kn->n", "class", k=29, n=37)
    yield case("elementwise", "ab,ab->ab", "class", a=11, b=13)
    yield case("elementwise-transposed", "ab,ba->ab", "class", a=11, b=13)
    yield case("full-sum-of-products", "ab,ba->", "class", a=11, b=13)
    yield case("batch", "bmk,bkn->bmn", "class batch", b=3, m=9, k=7, n=5)
    yield case("batch-innermost", "mkb,knb->mnb", "class batch", b=3, m=9, k=7, n=5)
    yield case("batch-twice", "xmyk,ykxn->mxny", "class batch", x=2, y=3, m=5, k=7, n=4)
    yield case("batch-of-dots", "bk,bk->b", "class batch", b=11, k=13)
    yield case("batch-of-outers", "bm,bn->nbm", "class batch", b=5, m=7, n=3)
    yield case("batch-many", "bk,bk->b", "class batch", b=300, k=2)
    yield case("lone-a", "mkx,kn->mn", "class lone", m=9, k=7, n=5, x=3)
    yield case("lone-b", "mk,knx->mn", "class lone", m=9, k=7, n=5, x=3)
    yield case("lone-both", "mx,ny->mn", "class lone", m=9, n=5, x=3, y=4)
    yield case("lone-only", "ab,cd->", "class lone", a=3, b=4, c=5, d=2)
    yield case("row-sums", "mk,n->mn", "class lone", m=9, k=7, n=5)
    yield case("diagonal-k", "kmk,kn->mn", "class diagonal", m=9, k=7, n=5)
    yield case("diagonal-m", "mmk,kn->mn", "class diagonal", m=9, k=7, n=5)
    yield case("diagonal-batch", "bbk,bkn->bn", "class diagonal", b=5, k=7, n=3)
    yield case("diagonal-thrice", "iii,ij->ji", "class diagonal", i=5, j=3)
    yield case("diagonal-twice", "ijij,jk->ik", "class diagonal", i=3, j=5, k=4)
    yield case("trace", "kk,kk->", "class diagonal", k=9)
    yield case("trace-of-b", "m,xx->m", "class diagonal lone", m=9, x=5)
    yield case("implicit", "ij,jk", "class", i=5, j=7, k=3)
    yield case("implicit-sorted", "ba,cb", "class", a=5, b=7, c=3)
    yield case("implicit-spaces", " b a , c b ", "class", shapes=((7, 5), (3, 7)))
    yield case("ellipsis", "...mk,...kn->...mn", "class ellipsis batch", shapes=((2, 3, 5, 7), (2, 3, 7, 4)))
    yield case("ellipsis-ranks", "...mk,...kn->...mn", "class ellipsis batch", shapes=((3, 5, 7), (2, 3, 7, 4)))
    yield case("ellipsis-inside", "m...k,k...n->n...m", "class ellipsis batch", shapes=((5, 2, 7), (7, 2, 4)))
    yield case("ellipsis-of-one", "...k,kn->...n", "class ellipsis", shapes=((2, 3, 7), (7, 4)))
    yield case("ellipsis-of-none", "...mk,...kn->...mn", "class ellipsis", shapes=((5, 7), (7, 4)))
    yield case("ellipsis-ones", "...mk,...kn->...mn", "class ellipsis broadcast", shapes=((1, 3, 5, 7), (2, 1, 7, 4)))
    yield case("ellipsis-implicit", "...mk,...kn", "class ellipsis batch", shapes=((2, 5, 7), (2, 7, 4)))


def _broadcasts() -> Iterator[Case]:
    yield case("broadcast-k-of-a", "mk,kn->mn", "broadcast", shapes=((5, 1), (7, 3)))
    yield case("broadcast-k-of-b", "mk,kn->mn", "broadcast", shapes=((5, 7), (1, 3)))
    yield case("broadcast-batch-of-a", "bmk,bkn->bmn", "broadcast", shapes=((1, 5, 7), (4, 7, 3)))
    yield case("broadcast-batch-of-b", "bmk,bkn->bmn", "broadcast", shapes=((4, 5, 7), (1, 7, 3)))
    yield case("broadcast-crossed", "ab,ab->ab", "broadcast", shapes=((1, 5), (4, 1)))
    yield case("broadcast-nothing-left", "ab,ab->ba", "broadcast", shapes=((1, 5), (1, 5)))
    yield case("broadcast-diagonal", "kk,kn->n", "broadcast", shapes=((1, 1), (5, 3)))
    yield case("broadcast-c", "mk,kn->mn", "broadcast", m=5, k=7, n=3, add=True, beta=2.0, c_ones=(0,))
    yield case("broadcast-c-wholly", "mk,kn->mn", "broadcast", m=5, k=7, n=3, add=True, beta=2.0, c_ones=(0, 1))


def _labels() -> Iterator[Case]:
    words = (("row", ("col", 1)), (("col", 1), 7), (7, "row"))
    yield Case("labels-of-any-kind", words, ((5, 7), (7, 3)), tags=frozenset({"labels"}))
    dots = ((..., (-1,)), ((-1,), "n"), (..., "n"))
    yield Case("labels-beside-an-ellipsis", dots, ((5, 7), (7, 3)), tags=frozenset({"labels"}))
    yield Case("labels-greek", "μκ,κν->μν", ((5, 7), (7, 3)), tags=frozenset({"labels"}))
    # 60 labels: 12 of extent 2, the others of extent 1, spread over both operands, some shared, D in another order.
    extents = [2 if at % 5 == 0 else 1 for at in range(60)]
    in_a, in_b = tuple(range(40)), tuple(range(25, 60))
    in_d = (*range(59, 39, -1), *range(25))
    shapes = (tuple(extents[at] for at in in_a), tuple(extents[at] for at in in_b))
    yield Case("labels-sixty", (in_a, in_b, in_d), shapes, tags=frozenset({"labels", "many"}))
    pairs = ("abcdefghij", "efghijklmn", "abcdnmlk")
    yield case("labels-twos", "{},{}->{}".format(*pairs), "labels many", **dict.fromkeys("abcdefghijklmn", 2))


def _types() -> Iterator[Case]:
    product = {"a": 3, "m": 17, "k": 11, "n": 13}
    for name, dtype, results in (
        ("half", HALF, (HALF, SINGLE)),
        ("bfloat", BRAIN, (BRAIN, SINGLE)),
        ("single", SINGLE, (SINGLE, HALF, DOUBLE)),
        ("double", DOUBLE, (DOUBLE, SINGLE)),
    ):
        for result in results:
            name_d = str(result).removeprefix("torch.")
            yield case(f"type-{name}-to-{name_d}", "amk,nka->mn", "type", **product, dtypes=(dtype, dtype, result))
    yield case("type-tf32", "amk,nka->mn", "type", **product, precision="tf32")
    yield case("type-tf32x3", "amk,nka->mn", "type", **product, precision="tf32x3")
    yield case("type-single-as-half", "amk,nka->mn", "type", **product, precision=HALF)
    yield case("type-single-as-bfloat", "amk,nka->mn", "type", **product, precision=BRAIN)
    yield case("type-half-as-single", "amk,nka->mn", "type", **product, dtypes=(HALF, HALF, SINGLE), precision=SINGLE)
    yield case("type-single-in-double", "amk,nka->mn", "type", **product, accumulate=DOUBLE)
    yield case("type-half-in-double", "amk,nka->mn", "type", **product, dtypes=(HALF, HALF, DOUBLE), accumulate=DOUBLE)
    for integer in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
        name = str(integer).removeprefix("torch.")
        result = torch.int64 if integer is torch.int64 else torch.int32
        dtypes = (integer, integer, result)
        yield case(f"type-{name}", "amk,nka->mn", "type integer", **product, dtypes=dtypes)
    for name, pair, result in (
        ("e4m3-to-half", (E4M3, E4M3), HALF),
        ("e5m2-to-single", (E5M2, E5M2), SINGLE),
        ("e4m3-times-e5m2", (E4M3, E5M2), SINGLE),
    ):
        yield case(f"type-{name}", "amk,nka->mn", "type fp8", **product, dtypes=(*pair, result))
    dtypes = (E4M3, E4M3, SINGLE)
    yield case("type-e4m3-as-stored", "amk,nka->mn", "type fp8", **product, dtypes=dtypes, precision=E4M3)
    yield case("type-e4m3-function", "amk,nka->mn", "type fp8", **product, dtypes=dtypes, a_fn="affine", b_fn="elu")
    kinds = (("complex64", COMPLEX, SINGLE), ("complex128", COMPLEX_DOUBLE, DOUBLE))
    for name, dtype, real in kinds:
        yield case(f"type-{name}", "amk,nka->mn", "type complex", **product, dtypes=(dtype, dtype, dtype))
        yield case(f"type-{name}-times-real", "amk,nka->mn", "type complex", **product, dtypes=(dtype, real, dtype))
        yield case(f"type-real-times-{name}", "amk,nka->mn", "type complex", **product, dtypes=(real, dtype, dtype))
    for flags in ((True, False), (False, True), (True, True)):
        name = "-".join("conjugate" if flag else "plain" for flag in flags)
        dtypes = (COMPLEX, COMPLEX, COMPLEX)
        yield case(f"type-{name}", "mk,nk->mn", "type complex", m=9, k=7, n=5, dtypes=dtypes, conjugate=flags)
    yield case(
        "type-complex-everything", "mk,nk->mn", "type complex", m=9, k=7, n=5, dtypes=(COMPLEX,) * 3, add=True,
        alpha=0.5 + 2j, beta=1 - 1j, conjugate=(True, False), a_fn="double_it", epilogue="double_it",
    )  # fmt: skip
    yield case(
        "type-complex-to-real", "mk,nk->mn", "type complex", m=9, k=7, n=5, dtypes=(COMPLEX, COMPLEX, SINGLE),
        epilogue="modulus",
    )  # fmt: skip


def _scalars() -> Iterator[Case]:
    for alpha in (0.0, 1.0, -0.5):
        yield case(f"alpha={alpha:g}", "mk,kn->mn", "scalar", m=9, k=7, n=5, alpha=alpha)
        for beta in (0.0, 1.0, 2.5):
            yield case(
                f"alpha={alpha:g}-beta={beta:g}", "mk,kn->nm", "scalar", m=9, k=7, n=5, alpha=alpha, beta=beta, add=True
            )
    yield case(
        "alpha-beta-integers", "mk,kn->mn", "scalar integer", m=9, k=7, n=5, alpha=3, beta=-2, add=True,
        dtypes=(torch.int8, torch.int8, torch.int32),
    )  # fmt: skip
    yield case(
        "alpha-beta-half", "mk,kn->mn", "scalar", m=9, k=7, n=5, alpha=0.3, beta=0.7, add=True, dtypes=(HALF,) * 3
    )


def _layouts() -> Iterator[Case]:
    here = "contiguous"
    extents = {"a": 5, "b": 7, "c": 6, "d": 9}
    for layout in LAYOUTS[1:]:
        yield case(f"layout-{layout}-a", "abc,dcb->ad", "layout", **extents, layouts=(layout, here, here, here))
        yield case(f"layout-{layout}-b", "abc,dcb->ad", "layout", **extents, layouts=(here, layout, here, here))
        yield case(
            f"layout-{layout}-c", "abc,dcb->ad", "layout", **extents, add=True, beta=2.0,
            layouts=(here, here, layout, here),
        )  # fmt: skip
        if layout not in ("expanded", "overlapping"):
            yield case(f"layout-{layout}-d", "abc,dcb->ad", "layout", **extents, layouts=(here, here, here, layout))
            yield case(
                f"layout-{layout}-everywhere", "abc,bcd->da", "layout", **extents, layouts=(layout,) * 4, add=True,
                dtypes=(HALF, HALF, HALF),
            )  # fmt: skip


def _functions() -> Iterator[Case]:
    for name in (name for name in FUNCTIONS if name != "modulus"):  # that one is for complex values
        yield case(f"function-{name}-a", "mk,kn->mn", "function", m=9, k=7, n=5, a_fn=name)
        yield case(f"function-{name}-epilogue", "mk,kn->mn", "function", m=9, k=7, n=5, epilogue=name)
    for name in ("relu", "leaky_relu", "elu", "affine"):
        dtypes = (HALF, HALF, SINGLE)
        yield case(f"function-{name}-b-half", "mk,nk->mn", "function", m=17, k=19, n=15, b_fn=name, dtypes=dtypes)
    hooks = {"a_fn": "affine", "b_fn": "elu", "c_fn": "tanh", "epilogue": "leaky_relu"}
    for name, dtype, result in (("half", HALF, SINGLE), ("bfloat", BRAIN, BRAIN), ("double", DOUBLE, DOUBLE)):
        yield case(
            f"function-all-{name}", "bmk,bnk->nbm", "function batch", b=3, m=9, k=11, n=7,
            dtypes=(dtype, dtype, result), alpha=0.5, beta=2.0, add=True, **hooks,
        )  # fmt: skip
    yield case("function-lone", "mkx,kn->mn", "function lone", m=9, k=7, n=5, x=3, a_fn="affine", b_fn="affine")
    yield case("function-broadcast", "mk,kn->mn", "function broadcast", shapes=((5, 1), (7, 3)), a_fn="affine")
    yield case("function-as-half", "mk,kn->mn", "function type", m=9, k=7, n=5, a_fn="sin", precision=HALF)
