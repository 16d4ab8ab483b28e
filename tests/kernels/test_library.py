"""What the vendor's library is and is not asked for; its calls themselves run through torch on any device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import weft
from weft.kernels import library
from weft.plan.schedule import Target
from weft.spec import Contraction, Strides

H200 = Target("cuda", 0, "NVIDIA H200", 90, 132, 232448)


def described(equation: str, a: torch.Tensor, b: torch.Tensor, **options: Any) -> Contraction:
    return weft.plan(equation, a, b, backend="reference", **options).contraction


@pytest.mark.parametrize(
    ("equation", "a_shape", "b_shape"),
    [
        ("ik,kj->ij", (33, 40), (40, 29)),
        ("ki,jk->ji", (40, 33), (29, 40)),
        ("bik,bkj->bij", (3, 33, 40), (3, 40, 29)),
        ("bik,bjk->ibj", (3, 33, 40), (3, 29, 40)),
        ("ik,k->i", (33, 40), (40,)),
        ("abk,kc->abc", (3, 4, 5), (5, 6)),
        ("kcm,nk->cnm", (6, 3, 8), (5, 6)),  # a mode of m as the batch
        ("km,ckn->cnm", (6, 8), (3, 6, 5)),  # and one of n
    ],
)
def test_products_as_they_lie_are_one_call(equation: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-4, 5, shape, generator=generator).double() for shape in (a_shape, b_shape))
    contraction = described(equation, a, b)
    assert library.supports(contraction, H200) is None
    (schedule,) = library.schedules(contraction, H200).schedules
    d = torch.full_like(torch.einsum(equation, a, b), float("nan")).contiguous()
    library.build(contraction, schedule, H200)(a, b, None, d, 2.0, 0.0)  # type: ignore[arg-type]
    assert torch.equal(d, 2 * torch.einsum(equation, a, b))


@pytest.mark.parametrize(
    ("equation", "a_shape", "b_shape", "options", "reason"),
    [
        ("ik,kj->ij", (4, 5), (5, 6), {"epilogue": torch.relu}, "a function is fused"),
        ("ik,kj->ij", (4, 5), (5, 6), {"precision": "tf32"}, "storage type only"),
        ("ik,kj->ij", (4, 5), (5, 6), {"out_dtype": torch.float64}, "not asked for float64 of float32"),
        ("aik,kbj->abij", (2, 4, 5), (5, 3, 6), {}, "the modes of some role do not lie together"),
        ("ik,kj->ij", (4, 0), (0, 6), {}, "a mode is empty"),
    ],
)
def test_what_the_library_is_not_asked_for(
    equation: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...], options: dict[str, Any], reason: str
) -> None:
    contraction = described(equation, torch.ones(a_shape), torch.ones(b_shape), **options)
    assert reason in str(library.supports(contraction, H200))


def test_strides_past_32_bits_are_kept_from_the_library() -> None:
    """FIELD-BUGS 1: 32-bit offsets; BLAS takes leading dimensions as 32-bit integers."""
    contraction = described("ik,kj->ij", torch.ones(2, 4), torch.ones(4, 3))
    far = [replace(mode, strides=Strides(2**31 * mode.strides.a, *mode.strides[1:])) for mode in contraction.modes]
    assert "32-bit" in str(library.supports(replace(contraction, modes=tuple(far)), H200))


@pytest.mark.parametrize("tensor", ["a", "b", "d"])
def test_half_products_are_slow_where_a_tensor_lies_between_words(tensor: str) -> None:
    a, b = (torch.empty(4096, 4096, dtype=torch.float16, device="meta") for _ in range(2))
    contraction = described("ik,kj->ij", a, b)
    (schedule,) = library.schedules(contraction, H200).schedules
    moved = replace(contraction, **{tensor: getattr(contraction, tensor)._replace(alignment=2)})
    aligned, between = (library.predict(each, schedule, H200) for each in (contraction, moved))
    assert between > 3 * aligned
    single = described("ik,kj->ij", a.float(), b.float())
    offset = replace(single, a=single.a._replace(alignment=4))
    assert library.predict(single, schedule, H200) == library.predict(offset, schedule, H200)
