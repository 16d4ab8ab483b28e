"""Contractions of few flops, which memory bounds: equations and extents of their labels."""

from __future__ import annotations

import torch

WITH_VECTORS = {
    "ij,j->i": "i=200 j=150", "ij,i->j": "i=200 j=150", "bij,bj->bi": "b=16 i=60 j=50", "bij,bi->bj": "b=16 i=60 j=50",
    "ijb,jb->ib": "i=30 j=20 b=64", "ac,abc->cb": "a=30 b=40 c=50", "ac,abc->bc": "a=30 b=40 c=50",
    "abc,c->ab": "a=30 b=40 c=50", "abc,b->ac": "a=30 b=40 c=50", "abc,a->bc": "a=30 b=40 c=50",
}  # fmt: skip
DOTS = {
    "i,i->": "i=70000", "ij,ij->": "i=300 j=250", "ij,ji->": "i=300 j=250", "ijab,ijba->": "i=9 j=7 a=40 b=30",
    "ijab,jiab->": "i=9 j=7 a=40 b=30", "bi,bi->b": "b=200 i=300", "ib,ib->b": "b=300 i=200",
}  # fmt: skip
DIAGONALS = {
    "ii->": "i=400", "ijij->": "i=20 j=20", "ijji->": "i=20 j=20", "iijj->": "i=20 j=20", "iij->j": "i=100 j=50",
    "bii->b": "b=100 i=40", "ijj->i": "i=100 j=40",
}  # fmt: skip
PRODUCTS = {
    "i,j->ij": "i=300 j=250", "i,j->ji": "i=300 j=250", "bi,bj->bij": "b=30 i=50 j=60",
    "ab,cd->acbd": "a=17 b=19 c=18 d=30",
    "i,i->i": "i=70000", "ij,ij->ij": "i=300 j=250", "ij,j->ij": "i=300 j=250", "ij,i->ij": "i=300 j=250",
    "ij,ji->ij": "i=300 j=250", "ijkl,kl->ijkl": "i=9 j=10 k=30 l=31", "ijkl,ij->ijkl": "i=9 j=10 k=30 l=31",
    "ijk,kj->ikj": "i=30 j=50 k=40", "bij,bjk->bik": "b=500 i=3 j=3 k=3", "bij,jk->bik": "b=500 i=3 j=3 k=3",
}  # fmt: skip
SUMS = {
    "abc->a": "a=40 b=50 c=60", "abc->b": "a=40 b=50 c=60", "abc->c": "a=40 b=50 c=60", "abc->": "a=40 b=50 c=60",
    "abc->ac": "a=40 b=50 c=60", "abc->ca": "a=40 b=50 c=60", "abc->ab": "a=40 b=50 c=60", "abc->bc": "a=40 b=50 c=60",
    "abc->cb": "a=40 b=50 c=60", "abcd->bd": "a=9 b=20 c=30 d=21", "ab->a": "a=40 b=30", "ab->b": "a=40 b=30",
}  # fmt: skip
OF_THREE = {
    "ijk,uj,vk->uvi": "i=100 j=20 k=20 u=8 v=8", "nij,nj,ni->n": "n=1000 i=8 j=8", "i,ij,j->": "i=300 j=300",
    "a,b,c->abc": "a=40 b=40 c=40", "ij,j,k->ik": "i=100 j=100 k=100",
}  # fmt: skip
FORMS = {**WITH_VECTORS, **DOTS, **DIAGONALS, **PRODUCTS, **SUMS}


def shapes(equation: str, extents: str, scale: float = 1.0) -> list[tuple[int, ...]]:
    """The operands' shapes, every extent of more than 10 times `scale`."""
    sizes = {each[0]: int(each[2:]) for each in extents.split()}
    sizes = {label: max(2, round(size * scale)) if size > 10 else size for label, size in sizes.items()}
    return [tuple(sizes[label] for label in term) for term in equation.split("->")[0].split(",")]


def operands(equation: str, extents: str, dtype: torch.dtype, scale: float = 1.0) -> list[torch.Tensor]:
    """Random numbers, whole ones of integer types."""
    draw = torch.Generator().manual_seed(1)
    given = shapes(equation, extents, scale)
    if dtype.is_floating_point or dtype.is_complex:
        return [torch.randn(shape, generator=draw, dtype=dtype) for shape in given]
    return [torch.randint(-3, 4, shape, generator=draw, dtype=dtype) for shape in given]
