"""Names that are there after `import weft`, and what they stand for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

import weft
from commands import python

A, B = torch.arange(6.0).reshape(2, 3), torch.arange(12.0).reshape(3, 4) - 5
AB = A @ B


class TestNamesAtHand:
    def test_after_import_weft_alone(self) -> None:
        code = (
            "import weft; print(weft.functions.relu, weft.testing.poisoned, weft.algebra.max_plus.name)\n"
            "print(weft.cache.folder())"
        )
        assert "max_plus" in python(code)

    @pytest.mark.parametrize(
        ("function", "expected"),
        [
            (weft.functions.relu, torch.relu), (weft.functions.relu(), torch.relu),
            (weft.functions.silu, functional.silu), (weft.functions.gelu, functional.gelu),
            (weft.functions.gelu(), functional.gelu),
            (weft.functions.gelu("tanh"), lambda v: functional.gelu(v, approximate="tanh")),
            (weft.functions.gelu(approximate="tanh"), lambda v: functional.gelu(v, approximate="tanh")),
            (weft.functions.leaky_relu, lambda v: functional.leaky_relu(v, 0.01)),
            (weft.functions.leaky_relu(0.2), lambda v: functional.leaky_relu(v, 0.2)),
            (weft.functions.elu, functional.elu), (weft.functions.softcap(2.0), lambda v: 2 * torch.tanh(v / 2)),
            (weft.functions.sigmoid(), torch.sigmoid), (weft.functions.tanh, torch.tanh),
        ],
    )  # fmt: skip
    def test_with_and_without_brackets(self, function: Any, expected: Any, on: dict[str, str]) -> None:
        found = weft.contract("mk,kn->mn", A / 9, B, epilogue=function, **on)
        torch.testing.assert_close(found, expected(A / 9 @ B))
        torch.testing.assert_close(function(B), expected(B))

    def test_a_function_called_with_neither_a_tensor_nor_its_options(self) -> None:
        with pytest.raises(weft.FunctionError, match=r"leaky_relu is called with a tensor.*its options are slope"):
            weft.functions.leaky_relu(alpha=2)
        with pytest.raises(weft.FunctionError, match=r"relu is called .*it has no options"):
            weft.functions.relu(0.5)

    def test_attention(self, on: dict[str, str]) -> None:
        f, q, k = weft.functions, torch.randn(2, 5, 8), torch.randn(2, 7, 8)
        scores = torch.einsum("hid,hjd->hij", q, k)
        i, j = torch.arange(5)[:, None], torch.arange(7)
        slope = f.alibi_slopes(2)
        assert slope.tolist() == [2.0**-4, 2.0**-8]
        places: dict[str, Any] = {"indices": {"i": "i", "j": "j"}, **on}
        for function, expected in (
            (f.causal, torch.where(j <= i, scores, -torch.inf)),
            (f.causal(2, fill=0.0), torch.where(j <= i + 2, scores, 0.0)),
            (f.banded(1, 2), torch.where((j >= i - 1) & (j <= i + 2), scores, -torch.inf)),
            (f.sliding_window(3), torch.where((j > i - 3) & (j <= i), scores, -torch.inf)),
            (f.decay(rate=0.5), torch.where(j <= i, scores * 0.5 ** (i - j).clamp(min=0), 0.0)),
            (f.chain(f.softcap(3.0), f.causal), torch.where(j <= i, 3 * torch.tanh(scores / 3), -torch.inf)),
        ):
            torch.testing.assert_close(weft.contract("hid,hjd->hij", q, k, epilogue=function, **places), expected)
        found = weft.contract("hid,hjd->hij", q, k, epilogue=f.alibi, operands={"slope": ("h", slope)}, **places)
        torch.testing.assert_close(found, scores + slope[:, None, None] * (j - i))
        mask = torch.rand(5, 7) > 0.5
        for function in (f.masked, f.masked()):
            found = weft.contract("hid,hjd->hij", q, k, epilogue=function, operands={"mask": ("ij", mask)}, **on)
            torch.testing.assert_close(found, torch.where(mask, scores, -torch.inf))

    def test_rotary_embedding(self) -> None:
        """Of pairs seen as complex numbers: scores depend on the distance of positions alone."""
        q, k = torch.randn(5, 4, dtype=torch.complex64), torch.randn(7, 4, dtype=torch.complex64)
        angle = torch.arange(7.0)[:, None] * 100.0 ** (-torch.arange(4.0) / 4)
        turn = torch.polar(torch.ones_like(angle), angle)
        rotary = weft.functions.rotary(pairs=4, base=100.0)
        found = weft.contract("id,jd->ij", q.conj(), k, b_fn=rotary, indices={"i": "j", "d": "d"})
        torch.testing.assert_close(found, q.conj() @ (k * turn).T)

    def test_quantize(self) -> None:
        scale = torch.tensor([0.5, 1.0, 2.0, 4.0])
        f = weft.functions
        found = weft.contract(
            "mk,kn->mn", A, B, epilogue=f.quantize("int8"), operands={"scale": ("n", scale)}, out_dtype="int8"
        )
        assert torch.equal(found, (AB / scale).round().clamp(-128, 127).to(torch.int8))
        assert torch.equal(f.saturate("fp16")(torch.tensor([1e6, -1e6])), torch.tensor([65504.0, -65504.0]).half())

    @pytest.mark.parametrize(
        ("alias", "name"),
        [("tropical", "min_plus"), ("logsumexp", "log"), ("boolean", "or_and"), ("Max-Plus", "max_plus"),
         ("viterbi", "max_times"), ("bottleneck", "min_max"), ("widest_path", "max_min"),
         ("sum_product", "plus_times")],
    )  # fmt: skip
    def test_aliases_of_algebras(self, alias: str, name: str) -> None:
        assert weft.algebra.find_named(alias) is weft.algebra.NAMED[name]
        a, b = A.bool() if name == "or_and" else A, B.bool() if name == "or_and" else B
        assert torch.equal(
            weft.contract("mk,kn->mn", a, b, algebra=alias), weft.contract("mk,kn->mn", a, b, algebra=name)
        )

    def test_max_min_is_the_widest_path(self, on: dict[str, str]) -> None:
        found = weft.contract("mk,kn->mn", A, B, algebra="max_min", **on)
        assert torch.equal(found, torch.minimum(A[:, :, None], B).amax(1))
        weft.testing.check_algebra("max_min")
