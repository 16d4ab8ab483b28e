"""The list of differentiable calls that tests share: functions, operands, tuples, diagonals, broadcast, C, algebras.

Each is a function of tensors alone; `expected` is the same in torch's operations, where that says it plainly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

import weft

Call = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """`shapes` of the tensors; `complex_too`: whether it is run in complex128 as well."""

    name: str
    call: Call
    shapes: tuple[tuple[int, ...], ...]
    expected: Call | None = None
    complex_too: bool = False
    twice: bool = True  # whether it has second derivatives

    def __str__(self) -> str:
        return self.name

    def tensors(self, dtype: torch.dtype, **where: Any) -> list[torch.Tensor]:
        made = torch.Generator().manual_seed(sum(map(ord, self.name)))
        return [
            torch.randn(shape, generator=made, dtype=dtype).to(**where).requires_grad_() for shape in self.shapes
        ]


def contract(*arguments: Any, **keywords: Any) -> Any:
    return weft.contract(*arguments, **keywords)


MK_KN = ((3, 4), (4, 5))

PRODUCTS = [
    Case("product", lambda a, b: contract("mk,kn->mn", a, b), MK_KN, lambda a, b: a @ b, True),
    Case("batch", lambda a, b: contract("bmk,bkn->nbm", a, b, alpha=0.5), ((2, 3, 4), (2, 4, 5)),
         lambda a, b: 0.5 * torch.einsum("bmk,bkn->nbm", a, b), True),
    Case("dot", lambda a, b: contract("k,k->", a, b, epilogue=torch.sin), ((4,), (4,)),
         lambda a, b: torch.sin(a @ b), True),
    Case("outer", lambda a, b: contract("m,n->nm", a, b), ((3,), (4,)), lambda a, b: torch.outer(b, a)),
    Case("nothing to sum", lambda a, b: contract("mk,kn->mn", a, b, epilogue=torch.exp), ((3, 0), (0, 5)),
         lambda a, b: torch.exp(a @ b)),
    Case("diagonals", lambda a, b: contract("iik,kkj->ij", a, b), ((3, 3, 4), (4, 4, 5)),
         lambda a, b: torch.einsum("iik,kkj->ij", a, b), True),
    Case("modes of one operand", lambda a, b: contract("mkl,kpn->mn", a, b), ((3, 4, 2), (4, 2, 5)),
         lambda a, b: torch.einsum("mkl,kpn->mn", a, b), True),
    Case("modes of one operand, functions",
         lambda a, b: contract("mkl,kpn->mn", a, b, a_fn=torch.sin, b_fn=torch.tanh), ((3, 4, 2), (4, 2, 5)),
         lambda a, b: torch.einsum("mkl,kpn->mn", torch.sin(a), torch.tanh(b)), True),
    Case("extents of 1", lambda a, b: contract("bmk,bkn->bmn", a, b, a_fn=torch.sin), ((1, 3, 1), (2, 4, 5)),
         lambda a, b: torch.sin(a).expand(2, 3, 4) @ b, True),
    Case("one tensor twice", lambda a: contract("mk,nk->mn", a, a, epilogue=torch.sigmoid), ((3, 4),),
         lambda a: torch.sigmoid(a @ a.T)),
    Case("strided, expanded", lambda a, b: contract("mk,kn->mn", a.T, b.expand(4, 5)[:, ::2]), ((4, 3), (4, 1)),
         lambda a, b: a.T @ b.expand(4, 5)[:, ::2]),
    Case("conjugates", lambda a, b: contract("mk,kn->mn", a.conj(), b.conj(), a_fn=torch.sin), MK_KN,
         lambda a, b: torch.sin(a.conj()) @ b.conj(), True),
]  # fmt: skip

FUSED = [
    Case("a layer",
         lambda a, b, u: contract("mk,kn->mn", a, b, epilogue=lambda s, u: F.silu(s + u), operands={"u": ("n", u)}),
         (*MK_KN, (5,)), lambda a, b, u: F.silu(a @ b + u)),
    Case("functions everywhere",
         lambda a, b, u, v:
         contract("mk,kn->mn", a, b, a_fn=lambda x, u: x * torch.sin(u), b_fn=lambda y, v: y + v * y * y,
                  epilogue=lambda s: s * s + s, operands={"u": ("k", u), "v": ("kn", v)}),
         (*MK_KN, (4,), (4, 5)),
         lambda a, b, u, v: (lambda s: s * s + s)((a * torch.sin(u)) @ (b + v * b * b)), True),
    Case("an operand of two functions",
         lambda a, b, u: contract("mk,kn->mn", a, b, a_fn=lambda x, u: x * u,
                                  epilogue=lambda s, u: torch.tanh(s) * u, operands={"u": ("m", u)}),
         (*MK_KN, (3,)), lambda a, b, u: torch.tanh((a * u[:, None]) @ b) * u[:, None]),
    Case("an operand along a mode that A broadcasts",
         lambda a, b, u: contract("bmk,kn->bmn", a, b, a_fn=lambda x, u: x * torch.sin(u), operands={"u": ("b", u)}),
         ((1, 3, 4), (4, 5), (1,)), lambda a, b, u: (a * torch.sin(u)) @ b),
    Case("several results",
         lambda a, b, u: contract("mk,kn->mn", a, b, operands={"u": ("mn", u)},
                                  epilogue=lambda s, u: (torch.sigmoid(s * u), s + u, torch.exp(s))),
         (*MK_KN, (3, 5)), lambda a, b, u: (torch.sigmoid(a @ b * u), a @ b + u, torch.exp(a @ b))),
    Case("coordinates",
         lambda a, b: contract("mk,kn->mn", a, b, indices={"i": "m", "j": "n"},
                               epilogue=lambda s, i, j: torch.where(i >= j, torch.sin(s), 0.0)),
         MK_KN, lambda a, b: torch.tril(torch.sin(a @ b))),
    Case("C", lambda a, b, c: contract("mk,kn->mn", a, b, c=c, alpha=0.5, beta=2.0), (*MK_KN, (3, 5)),
         lambda a, b, c: 0.5 * (a @ b) + 2 * c, True),
    Case("C that broadcasts, with functions",
         lambda a, b, c, u: contract("mk,kn->mn", a, b, c=c, beta=2.0, c_fn=lambda x, u: torch.sin(x) * u,
                                     epilogue=torch.tanh, operands={"u": ("m", u)}),
         (*MK_KN, (1, 5), (3,)), lambda a, b, c, u: torch.tanh(a @ b + 2 * torch.sin(c) * u[:, None])),
    Case("factors that are tensors",
         lambda a, b, c, x, y: contract("mk,kn->mn", a, b, c=c, alpha=x, beta=y, epilogue=torch.tanh),
         (*MK_KN, (1, 5), (), ()), lambda a, b, c, x, y: torch.tanh(x * (a @ b) + y * c)),
    Case("parts of complex numbers", lambda a, b: contract("mk,kn->mn", a, b, epilogue=lambda s: s.real * s.imag),
         MK_KN, lambda a, b: (a @ b).real * (a @ b).imag, True),
    Case("a complex factor", lambda a, b, c: contract("mk,kn->mn", a, b, c=c, alpha=0.5 + 1j, beta=1j,
                                                      c_fn=lambda x: x * x.conj()), (*MK_KN, (3, 1)),
         lambda a, b, c: (0.5 + 1j) * (a @ b) + 1j * (c * c.conj()), True),
    # gradgradcheck takes no gradient that is constant
    Case("a factor of 0", lambda a, b, c, u: contract("mk,kn->mn", a, b, c=c, beta=0.0, operands={"u": ("m", u)},
                                                      c_fn=lambda x, u: x * u, epilogue=lambda s, u: s * u),
         (*MK_KN, (3, 5), (3,)), lambda a, b, c, u: (a @ b) * u[:, None] + 0 * c, True, twice=False),
]  # fmt: skip

OTHERS = [
    Case("einsum of three", lambda a, b, c: weft.einsum("ab,bc,cd->ad", a, b, c), ((3, 4), (4, 5), (5, 2)),
         lambda a, b, c: a @ b @ c, True),
    Case("einsum of one", lambda a: weft.einsum("iij->j", a), ((3, 3, 4),), lambda a: torch.einsum("iij->j", a), True),
    Case("einsum that moves", lambda a: weft.einsum("ij->ji", a), ((3, 4),), lambda a: a.T, True),
    Case("matmul", lambda a, b: weft.matmul(a, b, transpose_a=True), ((2, 4, 3), (4, 5)), lambda a, b: a.mT @ b, True),
    Case("permute", lambda a, c: weft.permute(a, "abc->cab", fn=torch.sin, alpha=2.0, c=c, beta=0.5),
         ((2, 3, 4), (4, 2, 3)), lambda a, c: 2 * torch.sin(a).permute(2, 0, 1) + 0.5 * c, True),
    Case("permute that repeats", lambda a: weft.permute(a, "aa->ba", extents={"b": 3}), ((2, 2),),
         lambda a: a.diagonal().expand(3, 2), True),
]  # fmt: skip

ACTIVATIONS = (
    *("gelu", "silu", "elu", "leaky_relu", "relu", "mish", "softplus", "hardswish", "hardsigmoid", "logsigmoid"),
    *("hardtanh", "selu", "celu", "softsign", "tanhshrink", "softshrink", "hardshrink", "relu6"),
)


def _layered(name: str) -> Case:
    function = getattr(F, name)
    return Case(name, lambda a, b: contract("mk,kn->mn", a, b, epilogue=function), MK_KN, lambda a, b: function(a @ b))


FUNCTIONS = [_layered(name) for name in ACTIVATIONS]

MINE = weft.Algebra(lambda x, y: torch.sin(x * y) + x, torch.add, 0, "mine")
EXPLICIT = weft.Algebra(
    torch.add, torch.logaddexp, "lowest", "with vjp",
    vjp=lambda x, y, total, grad: (grad * torch.exp(x + y - total),) * 2,
)


def _sums(combine: Call, reduce: Call) -> Call:
    return lambda a, b: reduce(combine(a[:, :, None], b[None]))


def _algebra(algebra: Any, expected: Call, twice: bool) -> Case:
    name = algebra if isinstance(algebra, str) else algebra.name
    return Case(name, lambda a, b: contract("mk,kn->mn", a, b, algebra=algebra), MK_KN, expected, twice=twice)


def _whole(algebra: Any, expected: Call, twice: bool) -> Case:
    """The same with functions, C, operands, and a mode of B alone."""

    def call(a: Any, b: Any, c: Any, u: Any) -> Any:
        return contract("bmk,kln->nbm", a, b, c=c, algebra=algebra, a_fn=torch.sin, c_fn=lambda x: 2 * x,
                        epilogue=lambda s, u: s * u, operands={"u": ("m", u)})  # fmt: skip

    name = algebra if isinstance(algebra, str) else algebra.name
    return Case(f"{name} with functions", call, ((2, 3, 4), (4, 2, 5), (5, 2, 1), (3,)), twice=twice)


_REDUCED: dict[Any, tuple[Call, bool]] = {
    "max_plus": (_sums(torch.add, lambda p: p.amax(1)), True),
    "min_plus": (_sums(torch.add, lambda p: p.amin(1)), True),
    "max_times": (_sums(torch.mul, lambda p: p.amax(1)), True),
    "min_max": (_sums(torch.maximum, lambda p: p.amin(1)), True),
    "max_min": (_sums(torch.minimum, lambda p: p.amax(1)), True),
    "log": (_sums(torch.add, lambda p: p.logsumexp(1)), True),
    MINE: (_sums(lambda x, y: torch.sin(x * y) + x, lambda p: p.sum(1)), True),
    EXPLICIT: (_sums(torch.add, lambda p: p.logsumexp(1)), True),
}
ALGEBRAS = [
    make(algebra, expected, twice) for algebra, (expected, twice) in _REDUCED.items() for make in (_algebra, _whole)
]
