"""Bugs that this field has had, each thrown at weft. A docstring names the reports that its test guards against."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import weft
from support import Backend, integers
from weft.testing import assert_close, expectation, poisoned, random_operand

MANY = 1 << 31


@pytest.fixture
def sparse(tmp_path: Path) -> Callable[[int], torch.Tensor]:
    """Makes fp16 tensors of many elements that occupy no memory until they are touched: a file full of holes."""

    def make(elements: int) -> torch.Tensor:
        return torch.from_file(str(tmp_path / "holes"), shared=True, size=elements, dtype=torch.float16)

    return make


class TestOffsets:
    """32-bit offsets: pytorch#196431 (a bmm writes out of bounds), fla-org/flash-linear-attention#1080."""

    @pytest.mark.parametrize("which", ["a", "b", "c", "out"])
    def test_strides_past_2_to_31_elements(
        self, which: str, backend: Backend, sparse: Callable[[int], torch.Tensor]
    ) -> None:
        """pytorch#196431: offsets past 2^31 elements, in each tensor in turn."""
        if backend.device != "cpu":
            far = torch.empty(MANY + 64, dtype=torch.float16, device=backend.device).as_strided((2, 8), (MANY + 40, 1))
        else:
            far = sparse(MANY + 64).as_strided((2, 8), (MANY + 40, 1))
        tensors = {name: integers((2, 8), backend, at, torch.float16) for at, name in enumerate(("a", "b", "c", "out"))}
        far.copy_(tensors[which])
        tensors[which] = far
        a, b, c, out = tensors.values()
        expected = 2 * a * b + c
        weft.contract("bk,bk->bk", a, b, c=c, alpha=2, out=out, backend=backend.name)
        assert torch.equal(out, expected)

    def test_reduced_mode_past_2_to_31(self, backend: Backend, sparse: Callable[[int], torch.Tensor]) -> None:
        """fla-org/flash-linear-attention#1080: the same along a summed mode."""
        if backend.device != "cpu":
            buffer = torch.empty(MANY + 64, dtype=torch.float16, device=backend.device)
        else:
            buffer = sparse(MANY + 64)
        a = buffer.as_strided((2, 5), (MANY + 9, 1))
        a.copy_(integers((2, 5), backend, 1, torch.float16))
        b = integers((2, 7), backend, 2, torch.float16)
        assert torch.equal(weft.contract("km,kn->mn", a, b, backend=backend.name), a.T.contiguous() @ b)

    def test_planning_does_not_grow_with_the_tensor(self, sparse: Callable[[int], torch.Tensor]) -> None:
        """NVIDIA/cuDecomp#112: more than 2^30 elements corrupt a permutation plan. Here: planned, never touched."""
        a = sparse(1 << 31).reshape(1 << 16, 1 << 15)
        p = weft.plan(("ab", "", "ba"), a, torch.ones((), dtype=torch.float16), backend="cpu")
        assert p.shape == (1 << 15, 1 << 16)
        assert p.workspace_bytes < 1 << 28


class TestGrid:
    def test_batch_past_65535(self, quick_backend: Backend) -> None:
        """pytorch#178617, flashinfer#4534: grid y or z over 65535 fails, or leaves the output silently unwritten."""
        backend = quick_backend
        a, b = integers((65537, 2, 3), backend, 1), integers((65537, 3, 2), backend, 2)
        guarded = poisoned((65537, 2, 2), torch.float32, device=backend.device)
        weft.contract("bmk,bkn->bmn", a, b, out=guarded.tensor, backend=backend.name)
        guarded.check_guards()
        assert torch.equal(guarded.tensor, a @ b)


class TestExtents:
    @pytest.mark.parametrize(
        ("equation", "shape_a", "shape_b"),
        [("ij,jk", (3, 1), (4, 2)), ("ij,jk", (3, 4), (1, 2)), ("ij,ij", (1, 4), (3, 1)), ("ij,ij->", (1, 4), (3, 1)),
         ("bij,bjk->bik", (1, 2, 3), (4, 3, 2)), ("bij,bjk->bik", (4, 2, 1), (1, 3, 2)), ("i,i->", (1,), (5,))],
    )  # fmt: skip
    def test_one_that_broadcasts(
        self, equation: str, shape_a: tuple[int, ...], shape_b: tuple[int, ...], backend: Backend
    ) -> None:
        """numpy#10343, numpy#10930, dgasmith/opt_einsum#13: an extent of 1 that broadcasts taken for a product."""
        a, b = integers(shape_a, backend, 1), integers(shape_b, backend, 2)
        expected = np.einsum(equation, a.cpu().numpy(), b.cpu().numpy())
        for call in (weft.contract, weft.einsum):
            np.testing.assert_array_equal(call(equation, a, b, backend=backend.name).cpu().numpy(), expected)

    @pytest.mark.parametrize("empty", list("bmnkxy"))
    @pytest.mark.parametrize("epilogue", [None, torch.exp], ids=["plain", "exp"])
    def test_zero_extents(self, empty: str, epilogue: Callable[..., torch.Tensor] | None, backend: Backend) -> None:
        """pytorch#37628, pytorch#111757: zero extents, in every class of mode."""
        extents = {"b": 2, "m": 3, "n": 4, "k": 5, "x": 2, "y": 3, empty: 0}
        a, b = (integers(tuple(extents[label] for label in term), backend) for term in ("bmkx", "bkny"))
        c = integers(tuple(extents[label] for label in "bmn"), backend, 3)
        guarded = poisoned(tuple(c.shape), torch.float32, device=backend.device)
        weft.contract("bmkx,bkny->bmn", a, b, c=c, beta=2, out=guarded.tensor, epilogue=epilogue, backend=backend.name)
        guarded.check_guards()
        reference, bound = expectation("bmkx,bkny->bmn", a, b, c=c, beta=2, epilogue=epilogue)
        assert_close(guarded.tensor, reference, bound)

    def test_buffer_edge(self, backend: Backend) -> None:
        """8193 elements, one past a power of two, as thrown at vendor libraries."""
        a, b = integers((8193,), backend, 1), integers((8193,), backend, 2)
        assert weft.contract("k,k->", a, b, backend=backend.name) == (a * b).sum()

    def test_twenty_five_modes_of_two(self) -> None:
        """25 modes of extent 2, as thrown at vendor libraries."""
        labels = "abcdefghijklmnopqrstuvwxy"
        a = random_operand((2,) * 25, torch.float16, 1, integers=True)
        b = random_operand((2,) * 5, torch.float16, 2, integers=True)
        d = weft.contract(f"{labels},bdfhj->{labels[:-12:-1]}", a, b, out_dtype=torch.float32)
        kept = labels[:-12:-1]
        expected = torch.einsum(f"{labels},bdfhj->{kept}", a.float(), b.float())
        assert torch.equal(d, expected)

    def test_stride_of_a_mode_of_extent_one(self, backend: Backend) -> None:
        """A huge stride on a mode of extent 1 means nothing."""
        a = torch.ones(6, device=backend.device).as_strided((1, 6), (1 << 40, 1))
        out = torch.zeros(6, device=backend.device).as_strided((1, 6), (1 << 41, 1))
        weft.contract("mk,kn->mn", a, torch.eye(6, device=backend.device), out=out, backend=backend.name)
        assert torch.equal(out, torch.ones(1, 6, device=backend.device))


class TestMemory:
    def test_overlapping_input(self, backend: Backend) -> None:
        """pytorch#42418: an overlapping as_strided input right on the CPU and wrong on the GPU."""
        line = integers((12,), backend, 1)
        windows = line.as_strided((8, 5), (1, 1))
        b = integers((5, 3), backend, 2)
        d = weft.contract("mk,kn->mn", windows, b, backend=backend.name)
        assert torch.equal(d, windows.contiguous() @ b)

    def test_zero_dimensional_out(self, backend: Backend) -> None:
        """numpy#31350: a 0-d `out`."""
        out = torch.tensor(math.nan, device=backend.device)
        a = torch.ones(3, device=backend.device)
        assert weft.contract("k,k->", a, a, out=out, backend=backend.name) is out
        assert out.item() == 3
        array = np.array(np.nan)
        assert weft.contract("k,k->", np.ones(3), np.ones(3), out=array) is array
        assert array == 3

    @pytest.mark.parametrize("shift", [1, 2, 4])
    def test_unaligned_view_after_an_aligned_one(self, shift: int, backend: Backend) -> None:
        """vllm#57669: a kernel compiled for aligned pointers called with views at 2, 4, 8 bytes."""
        for offset in (0, shift, 0):
            buffers = [integers((32 * 32 + offset,), backend, seed, torch.float16) for seed in (1, 2)]
            a, b = (buffer[offset:].reshape(32, 32) for buffer in buffers)
            out = torch.full((32 * 32 + offset,), math.nan, dtype=torch.float16, device=backend.device)[offset:]
            d = weft.contract("mk,kn->mn", a, b, out=out.reshape(32, 32), backend=backend.name)
            assert torch.equal(d.float(), a.float() @ b.float())

    @pytest.mark.parametrize("k", [1, 7, 17, 33])
    def test_tails_read_nothing_else(self, k: int, backend: Backend) -> None:
        """triton#737, triton#10772: masked loads without `other`, NaN in the tail. The operands lie in NaN."""
        a = random_operand((5, k), torch.float32, 1, integers=True, layout="padded", device=backend.device)
        b = random_operand((k, 3), torch.float32, 2, integers=True, layout="padded", device=backend.device)
        d = weft.contract("mk,kn->mn", a, b, a_fn=lambda x: x + 1, b_fn=torch.abs, backend=backend.name)
        assert torch.equal(d, (a + 1) @ b.abs())

    @pytest.mark.parametrize("role", ["k", "lone"])
    def test_masked_lanes_do_not_count(self, role: str, backend: Backend) -> None:
        """triton#10772: a function that is not 0 at 0, or infinite there, meets lanes past the end."""
        a = torch.full((5, 9), 4.0, device=backend.device)
        equation, b = ("mk,kn->mn", torch.ones(9, 3, device=backend.device))
        if role == "lone":
            equation, b = ("mk,n->mn", torch.ones(3, device=backend.device))
        d = weft.contract(equation, a, b, a_fn=lambda x: 1 / x, backend=backend.name)
        assert torch.equal(d, torch.full((5, 3), 9 * 0.25, device=backend.device))


class TestValues:
    def test_conjugate_bit(self) -> None:
        """pytorch#177474: the conjugate bit ignored."""
        z = random_operand((4, 4), torch.complex64, 1)
        d = weft.contract("mk,kn->mn", z.conj(), torch.eye(4, dtype=torch.complex64))
        assert torch.equal(d, z.conj().resolve_conj())

    def test_negative_bit(self, backend: Backend) -> None:
        """pytorch#188023: DLPack drops the negative bit of `z.conj().imag` silently."""
        z = random_operand((4, 4), torch.complex64, 1, device=backend.device)
        x = z.conj().imag
        d = weft.contract("mk,kn->mn", x, torch.eye(4, device=backend.device), backend=backend.name)
        assert torch.equal(d, -z.imag)
        assert torch.equal(weft.einsum("mk->km", x, backend=backend.name), -z.imag.T)

    def test_negative_strides(self) -> None:
        """pytorch#188023: negative strides abort the process; here they are refused by name."""
        with pytest.raises(weft.UnsupportedError, match="b has negative strides"):
            weft.contract("k,k->", np.ones(3), np.ones(3)[::-1])

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_unread_c(self, bad: float, backend: Backend) -> None:
        """pytorch#96037, pytorch#194442: `beta=0` with NaN or Inf in C."""
        a = integers((4, 4), backend, 1)
        c = torch.full((4, 4), bad, device=backend.device)
        for options in ({}, {"c_fn": torch.exp}, {"out": c}):
            d = weft.contract("mk,kn->mn", a, a, c=c, beta=0, backend=backend.name, **options)
            assert torch.equal(d, a @ a)

    @pytest.mark.parametrize("where", [0, 40])
    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_special_values_pass_through(self, where: int, value: float, backend: Backend) -> None:
        """NaN and infinities reach the elements that they belong to, and no others."""
        a = torch.ones(41, 41, device=backend.device)
        b = torch.ones(41, 3, device=backend.device)
        a[where, where] = value
        d = weft.contract("mk,kn->mn", a, b, backend=backend.name)
        expected = torch.full((41, 3), 41.0, device=backend.device)
        expected[where] = value
        assert torch.equal(d.nan_to_num(nan=-1), expected.nan_to_num(nan=-1))

    def test_max_and_clamp_keep_nan(self, backend: Backend) -> None:
        """torch's clamp and relu return NaN for NaN; hardware maxima drop it."""
        a = torch.tensor([[math.nan, -1.0], [2.0, -math.inf]], device=backend.device)
        one = torch.ones((), device=backend.device)
        for function in (torch.relu, lambda x: torch.clamp(x, -3, 1), lambda x: torch.maximum(x, x * 0.5)):
            d = weft.contract("ab,->ab", a, one, epilogue=function, backend=backend.name)
            torch.testing.assert_close(d, function(a), rtol=0, atol=0, equal_nan=True)

    def test_single_is_not_tf32(self, backend: Backend) -> None:
        """pytorch#125557: an fp32 product silently in TF32 loses the last 13 bits of each factor."""
        a = torch.full((32, 32), 1 + 2.0**-20, device=backend.device)
        d = weft.contract("mk,kn->mn", a, torch.eye(32, device=backend.device), backend=backend.name)
        assert torch.equal(d, a)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_subnormals_are_not_flushed(self, dtype: torch.dtype, backend: Backend) -> None:
        """pytorch#125557: subnormals flushed to zero."""
        if backend.interpreted and dtype is torch.bfloat16:
            pytest.skip("Triton's interpreter itself loses bfloat16 subnormals when it loads them as float32")
        info = torch.finfo(dtype)
        values = torch.tensor([info.tiny / 2, -info.tiny / 4, info.tiny, 0.0], dtype=torch.float64).to(dtype)
        times = 2 if backend.interpreted else 8  # a program for each element of D is slow there
        a = values.to(backend.device).repeat(times, times)
        eye = torch.eye(4 * times, dtype=dtype, device=backend.device)
        for function in (None, lambda x: x * 1):
            d = weft.contract("mk,kn->mn", a, eye, a_fn=function, backend=backend.name)
            assert torch.equal(d, a)

    def test_negative_zero(self, backend: Backend) -> None:
        """-0.0 as a constant of a function is not 0.0, and is stored as it is."""
        one = torch.ones(3, device=backend.device)
        d = weft.contract("m,->m", one, one[0], epilogue=lambda x: x * -0.0, backend=backend.name)
        assert torch.equal(d, torch.zeros_like(d))
        assert d.signbit().all()

    @pytest.mark.parametrize("k", [2000, 4097])
    def test_epilogue_runs_once(self, k: int, backend: Backend) -> None:
        """triton#643: a non-linear epilogue applied to each part of a split reduction."""
        a, b = integers((2, k), backend, 1), integers((k, 2), backend, 2)
        d = weft.contract("mk,kn->mn", a, b, epilogue=lambda x: x * x + 1, backend=backend.name)
        assert torch.equal(d, (a @ b) ** 2 + 1)

    @pytest.mark.parametrize("equation", ["xbymk,ybkxn->nxmyb", "bxymk,kyxbn->ybxmn", "mxkyb,xnyb->bnmyx"])
    def test_several_batch_modes(self, equation: str, backend: Backend) -> None:
        """ROCm/ROCm#6559: batched modes returning success and a wrong result."""
        extents = {"x": 2, "y": 3, "b": 2, "m": 5, "k": 4, "n": 3}
        terms = equation.split("->")[0].split(",")
        a, b = (integers(tuple(extents[label] for label in term), backend, at) for at, term in enumerate(terms))
        d = weft.contract(equation, a, b, backend=backend.name)
        assert torch.equal(d, torch.einsum(equation, a, b))
