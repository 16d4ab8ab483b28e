"""Functions with operands and coordinates, and epilogues that yield several results: every backend against torch.

What a call refuses is refused before any backend is asked, so it is tested once.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft.spec import Role
from weft.testing import poisoned, random_operand

ON = {"backend": "reference"}


def whole(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32, **options: Any) -> torch.Tensor:
    """Whole numbers, whose sums are exact."""
    return random_operand(shape, dtype, seed, integers=True, **options)


A, B = whole((4, 5), 1), whole((5, 6), 2)
BIAS = whole((6,), 3)


def shifted(value: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return value + bias


class TestOperands:
    def test_bias_along_one_mode(self, on: dict[str, Any]) -> None:
        d = weft.contract("mk,kn->mn", A, B, epilogue=shifted, operands={"bias": ("n", BIAS)}, **on)
        assert torch.equal(d, A @ B + BIAS)

    def test_modes_in_another_order_with_any_strides(self, on: dict[str, Any]) -> None:
        bias = whole((6, 4), 4, layout="strided")
        d = weft.contract("mk,kn->mn", A, B, epilogue=shifted, operands={"bias": ("nm", bias)}, **on)
        assert torch.equal(d, A @ B + bias.T)

    def test_extent_one_broadcasts_and_no_modes_are_a_scalar(self, on: dict[str, Any]) -> None:
        column, scalar = whole((4, 1), 5), torch.tensor(3.0)
        both = {"bias": ("mn", column), "factor": ("", scalar)}
        d = weft.contract("mk,kn->mn", A, B, epilogue=lambda x, bias, factor: x * factor + bias, operands=both, **on)
        assert torch.equal(d, 3 * (A @ B) + column)

    def test_diagonal(self, on: dict[str, Any]) -> None:
        square = whole((6, 6), 6)
        d = weft.contract("mk,kn->mn", A, B, epilogue=shifted, operands={"bias": ("nn", square)}, **on)
        assert torch.equal(d, A @ B + square.diagonal())

    def test_labels_of_a_sequence_and_an_ellipsis(self, on: dict[str, Any]) -> None:
        a, b, bias = whole((2, 4, 5), 7), whole((2, 5, 6), 8), whole((2, 6), 9)
        named = weft.contract(
            (("b", "row", "k"), ("b", "k", "col"), ("b", "row", "col")), a, b, epilogue=shifted,
            operands={"bias": (["b", "col"], bias)}, **on,
        )  # fmt: skip
        dotted = weft.contract("...mk,...kn->...mn", a, b, epilogue=shifted, operands={"bias": ("...n", bias)}, **on)
        assert torch.equal(named, a @ b + bias[:, None])
        assert torch.equal(dotted, named)

    def test_on_a_and_b_along_summed_lone_and_batch_modes(self, on: dict[str, Any]) -> None:
        a, b = whole((3, 4, 5, 2), 10), whole((3, 5, 6), 11)
        scale, gate = whole((5, 2), 12), whole((3, 6), 13)
        d = weft.contract(
            "bmkl,bkn->bmn", a, b, a_fn=lambda x, scale: x * scale, b_fn=lambda x, gate: x + gate,
            operands={"scale": ("kl", scale), "gate": ("bn", gate)}, **on,
        )  # fmt: skip
        assert torch.equal(d, torch.einsum("bmkl,bkn->bmn", a * scale, b + gate[:, None]))

    def test_on_a_broadcast_operand(self, on: dict[str, Any]) -> None:
        """A has extent 1 along a batch mode that the operand moves along: the function makes it a full one."""
        a, b, scale = whole((1, 4, 5), 14), whole((3, 5, 6), 15), whole((3,), 16)
        options = {"a_fn": lambda x, scale: x * scale, "operands": {"scale": ("b", scale)}}
        d = weft.contract("bmk,bkn->bmn", a, b, **options, **on)
        assert torch.equal(d, (a * scale[:, None, None]) @ b)
        contraction = weft.plan("bmk,bkn->bmn", a, b, **options, **on).contraction
        assert contraction.of_role(Role.BATCH)[0].strides == (0, 30, 0, 24, 1)

    def test_on_c(self, on: dict[str, Any]) -> None:
        c, gate = whole((4, 6), 17), whole((4,), 18)
        d = weft.contract(
            "mk,kn->mn", A, B, c=c, beta=2.0, c_fn=lambda x, gate: x * gate, operands={"gate": ("m", gate)}, **on
        )
        assert torch.equal(d, A @ B + 2 * c * gate[:, None])

    def test_of_c_alone_is_not_needed_without_c(self, on: dict[str, Any]) -> None:
        gate = whole((4,), 18, torch.float64)
        plan = weft.plan("mk,kn->mn", A, B, c_fn=lambda x, gate: x * gate, operands={"gate": ("m", gate)}, **on)
        assert plan.contraction.aux == ()
        assert torch.equal(plan(A, B, operands={"gate": gate}), A @ B)

    def test_serves_several_functions(self, on: dict[str, Any]) -> None:
        row = whole((4,), 19)
        d = weft.contract("mk,kn->mn", A, B, a_fn=shifted, epilogue=shifted, operands={"bias": ("m", row)}, **on)
        assert torch.equal(d, (A + row[:, None]) @ B + row[:, None])

    def test_comes_in_its_own_dtype(self, on: dict[str, Any]) -> None:
        mask = torch.tensor([True, False, True, True, False, True])
        d = weft.contract(
            "mk,kn->mn", A, B, epilogue=lambda x, mask, half: torch.where(mask, x, half.float()),
            operands={"mask": ("n", mask), "half": ("n", BIAS.half())}, **on,
        )  # fmt: skip
        assert torch.equal(d, torch.where(mask, A @ B, BIAS))
        with pytest.raises(weft.FunctionError, match="bitwise"):
            weft.contract("mk,kn->mn", A, B, epilogue=lambda x, bias: x + (bias & 1), operands={"bias": ("n", BIAS)})

    def test_arrays_of_other_libraries_and_lazy_conjugates(self, on: dict[str, Any]) -> None:
        d = weft.contract("mk,kn->mn", A, B, epilogue=shifted, operands={"bias": ("n", BIAS.numpy())}, **on)
        assert torch.equal(d, A @ B + BIAS)
        phase = torch.tensor([1j, 2j, 3j, 0j, 1 + 1j, 2])
        complex_operands = {"epilogue": shifted, "operands": {"bias": ("n", phase.conj())}, **on}
        assert torch.equal(weft.contract("mk,kn->mn", A + 0j, B + 0j, **complex_operands), A @ B + phase.conj())

    @pytest.mark.parametrize("kind", ["partial", "module", "callable", "keyword only", "default"])
    def test_every_kind_of_function(self, kind: str, on: dict[str, Any]) -> None:
        class Layer(torch.nn.Module):
            def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
                return x + bias

        class Callable:
            def __call__(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
                return x + bias

        def keyword(x: torch.Tensor, *, bias: torch.Tensor) -> torch.Tensor:
            return x + bias

        def scaled(x: torch.Tensor, factor: float, bias: torch.Tensor) -> torch.Tensor:
            return factor * x + bias

        def optional(x: torch.Tensor, factor: float = 1.0, bias: torch.Tensor | float = 0.0) -> torch.Tensor:
            return factor * x + bias

        functions = {
            "partial": functools.partial(scaled, factor=1.0),
            "module": Layer(),
            "callable": Callable(),
            "keyword only": keyword,
            "default": optional,
        }
        d = weft.contract("mk,kn->mn", A, B, epilogue=functions[kind], operands={"bias": ("n", BIAS)}, **on)
        assert torch.equal(d, A @ B + BIAS)


class TestIndices:
    def test_mask_by_coordinates(self, on: dict[str, Any]) -> None:
        def causal(s: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
            return torch.where(i >= j, s, -torch.inf)

        q, k = whole((7, 3), 1), whole((7, 3), 2)
        d = weft.contract("ik,jk->ij", q, k, epilogue=causal, indices={"i": "i", "j": "j"}, **on)
        assert torch.equal(d, (q @ k.T).masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf))

    def test_of_every_tensor(self, on: dict[str, Any]) -> None:
        a, b, c = whole((2, 4, 5), 1), whole((2, 5, 6), 2), whole((2, 4, 6), 3)
        d = weft.contract(
            "bmk,bkn->bmn", a, b, c=c, a_fn=lambda x, k, p: x * k + p, b_fn=lambda x, n: x - n,
            c_fn=lambda x, m: x * m, epilogue=lambda x, p, n: x + 2 * p + n,
            indices={"k": "k", "p": "b", "n": "n", "m": "m"}, **on,
        )  # fmt: skip
        batch, row, column = torch.arange(2).reshape(2, 1, 1), torch.arange(4).reshape(4, 1), torch.arange(6)
        expected = (a * torch.arange(5) + batch) @ (b - column) + c * row + 2 * batch + column
        assert torch.equal(d, expected.float())

    def test_is_int32_and_never_merged_away(self, on: dict[str, Any]) -> None:
        seen, name = [], str(on)

        def counted(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
            seen.append((name, m.dtype))  # a function that computes the same is not traced again
            return x + m

        a, b = whole((3, 4, 5), 1), whole((5, 6), 2)
        plan = weft.plan("lmk,kn->lmn", a, b, epilogue=counted, indices={"m": "m"}, **on)
        assert set(seen) == {(name, torch.int32)}
        assert [mode.labels for mode in plan.contraction.of_role(Role.M)] == [("l",), ("m",)]
        assert len(weft.plan("lmk,kn->lmn", a, b, **on).contraction.of_role(Role.M)) == 1
        assert torch.equal(plan(a, b), a @ b + torch.arange(4)[:, None])

    def test_is_int64_past_32_bits(self, on: dict[str, Any]) -> None:
        long = torch.empty(1, dtype=torch.int8).expand(2**31 + 1)
        scalar = torch.ones((), dtype=torch.int8)
        options = {"out_dtype": torch.int64, "epilogue": lambda x, i: x + i, "indices": {"i": "i"}}
        from weft.planner.options import Options
        from weft.plans.resolving import resolved
        from weft.spec import parse

        asked = Options(torch.int64, functions=(None, None, None, options["epilogue"]), indices={"i": "i"}, **on)
        (named,) = resolved(parse("i,->i"), "i,->i", long, scalar, asked).named
        assert named.dtype == torch.int64
        (named,) = resolved(parse("i,->i"), "i,->i", long[:-1], scalar, asked).named
        assert named.dtype == torch.int32

    def test_of_a_mode_of_extent_one_is_zero(self, on: dict[str, Any]) -> None:
        d = weft.contract("mk,kn->mn", A[:1], B, epilogue=lambda x, m: x + m + 1, indices={"m": "m"}, **on)
        assert torch.equal(d, A[:1] @ B + 1)

    def test_of_a_broadcast_mode(self, on: dict[str, Any]) -> None:
        """A's function may ask for the coordinate of a mode along which A has extent 1."""
        d = weft.contract("mk,kn->mn", A[:, :1], B, a_fn=lambda x, k: x * k, indices={"k": "k"}, **on)
        assert torch.equal(d, (A[:, :1] * torch.arange(5)) @ B)


class TestSeveralResults:
    def test_types_and_values(self, on: dict[str, Any]) -> None:
        half = [x.half() for x in (A, B)]
        d, sign, raw = weft.contract("mk,kn->mn", *half, epilogue=lambda x: (torch.relu(x), x > 0, x), **on)
        assert (d.dtype, sign.dtype, raw.dtype) == (torch.float16, torch.bool, torch.float32)
        assert torch.equal(d, (A @ B).relu().half())
        assert torch.equal(sign, A @ B > 0)
        assert torch.equal(raw, A @ B)

    def test_out_is_a_tuple_written_in_place(self, on: dict[str, Any]) -> None:
        out = (poisoned((4, 6), torch.float32, layout="permuted"), poisoned((4, 6), torch.float64, layout="strided"))
        tensors = tuple(guarded.tensor for guarded in out)
        result = weft.contract("mk,kn->mn", A, B, epilogue=lambda x: (x, -x), out=tensors, **on)
        assert all(one is tensor for one, tensor in zip(result, tensors, strict=True))
        assert torch.equal(tensors[0], A @ B)
        assert torch.equal(tensors[1], -(A @ B).double())
        for guarded in out:
            guarded.check_guards()

    def test_out_dtype(self, on: dict[str, Any]) -> None:
        pair = {"epilogue": lambda x: (x, x), **on}
        assert [d.dtype for d in weft.contract("mk,kn->mn", A, B, out_dtype=torch.float64, **pair)] == [
            torch.float64, torch.float32,
        ]  # fmt: skip
        both = (torch.float16, torch.bfloat16)
        assert tuple(d.dtype for d in weft.contract("mk,kn->mn", A, B, out_dtype=both, **pair)) == both
        with pytest.raises(weft.DTypeError, match="3 types, the epilogue returns 2"):
            weft.contract("mk,kn->mn", A, B, out_dtype=(torch.half,) * 3, **pair)
        with pytest.raises(weft.DTypeError, match="no tuple"):
            weft.contract("mk,kn->mn", A, B, out_dtype=both, **on)

    def test_constants_and_what_does_not_depend_on_the_sum(self, on: dict[str, Any]) -> None:
        _, one, place = weft.contract("mk,kn->mn", A, B, epilogue=lambda x, m: (x, 1.0, m), indices={"m": "m"}, **on)
        assert torch.equal(one, torch.ones(4, 6))
        assert torch.equal(place, torch.arange(4, dtype=torch.int32)[:, None].expand(4, 6))

    def test_in_kind(self, on: dict[str, Any]) -> None:
        d, e = weft.contract("mk,kn->mn", A.numpy(), B.numpy(), epilogue=lambda x: (x, -x), **on)
        assert isinstance(d, np.ndarray)
        assert np.array_equal(d, -e)

    def test_extras_come_in_order(self, on: dict[str, Any]) -> None:
        plan = weft.plan("mk,kn->mn", A, B, epilogue=lambda x, bias: (x, bias), operands={"bias": ("n", BIAS)}, **on)
        contraction = plan.contraction
        assert [each.kind for each in contraction.aux] == ["operand", "output"]
        assert (contraction.epilogue_args, contraction.outputs) == ((0,), (1,))
        assert [mode.strides.aux for mode in contraction.of_role(Role.M, Role.N)] == [(0, 6), (1, 1)]


class TestPlan:
    def test_runs_on_new_values(self, on: dict[str, Any]) -> None:
        plan = weft.plan("mk,kn->mn", A, B, epilogue=shifted, operands={"bias": ("n", BIAS)}, **on)
        for bias in (BIAS, -BIAS):
            assert torch.equal(plan(A, B, operands={"bias": bias}), A @ B + bias)

    @pytest.mark.parametrize(
        ("operands", "error", "words"),
        [
            (None, weft.FunctionError, "operand 'bias' is missing"),
            ({"bias": BIAS, "scale": BIAS}, weft.FunctionError, "no operand 'scale': its operands are bias"),
            ({"bias": BIAS[:5]}, weft.ShapeError, "operand 'bias' has shape"),
            ({"bias": whole((6,), 1, layout="strided")}, weft.ShapeError, "strides"),
            ({"bias": BIAS.double()}, weft.DTypeError, "operand 'bias' is float64, planned was float32"),
            ({"bias": torch.empty(6, device="meta")}, weft.ShapeError, "operand 'bias' is on meta"),
            ([BIAS], weft.FunctionError, "mapping"),
        ],
    )
    def test_checks_its_operands(self, operands: Any, error: type[Exception], words: str, on: dict[str, Any]) -> None:
        plan = weft.plan("mk,kn->mn", A, B, epilogue=shifted, operands={"bias": ("n", BIAS)}, **on)
        with pytest.raises(error, match=words):
            plan(A, B, operands=operands)

    @pytest.mark.keeps
    def test_is_shared_by_what_depends_on_values_alone(self, on: dict[str, Any]) -> None:
        def found(bias: torch.Tensor, modes: str = "n") -> weft.Plan:
            return weft.plan("mk,kn->mn", A[:, :4], B[:4, :4], epilogue=shifted, operands={"bias": (modes, bias)}, **on)

        if on["backend"] != "reference":  # which shares no plans that have functions
            assert found(torch.ones(4))._variants is found(torch.zeros(4))._variants
        others = [
            found(torch.ones(4), "m"),
            found(torch.ones(8)[::2]),
            found(torch.ones(4).double()),
            found(torch.ones(1)),
        ]
        assert len({id(plan) for plan in (found(torch.ones(4)), *others)}) == 5

    def test_names_do_not_tell_contractions_apart(self, on: dict[str, Any]) -> None:
        one = weft.plan("mk,kn->mn", A, B, epilogue=lambda x, p: x + p, operands={"p": ("n", BIAS)}, **on)
        two = weft.plan("mk,kn->mn", A, B, epilogue=lambda x, q: x + q, operands={"q": ("n", BIAS)}, **on)
        assert one.contraction == two.contraction
        assert torch.equal(two(A, B, operands={"q": BIAS}), A @ B + BIAS)


def plus(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return x + bias


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a name no function takes": (
        {"epilogue": plus, "operands": {"bias": ("n", BIAS), "scale": ("n", BIAS)}},
        weft.FunctionError, "no function takes 'scale': epilogue takes bias",
    ),
    "the value's own name": ({"epilogue": plus, "indices": {"x": "m"}}, weft.FunctionError, "no function takes 'x'"),
    "without functions": ({"operands": {"bias": ("n", BIAS)}}, weft.FunctionError, "takes 'bias': there is none"),
    "a built-in": (
        {"epilogue": torch.relu, "indices": {"i": "m"}}, weft.FunctionError, "epilogue has no signature",
    ),
    "a parameter nobody names": ({"epilogue": plus}, weft.FunctionError, "missing a required argument: 'bias'"),
    "a name in both": (
        {"epilogue": plus, "operands": {"bias": ("n", BIAS)}, "indices": {"bias": "n"}},
        weft.FunctionError, "'bias' is given both as an operand and as an index",
    ),
    "a summed label in the epilogue": (
        {"epilogue": plus, "operands": {"bias": ("k", B[:, 0])}},
        weft.NotationError, "epilogue works on elements of D, which has no label 'k' .its modes are 'mn'.",
    ),
    "B's label in a_fn": (
        {"a_fn": plus, "indices": {"bias": "n"}}, weft.NotationError, "elements of A, which has no label 'n'.*'mk'",
    ),
    "an unknown label": (
        {"epilogue": plus, "operands": {"bias": ("z", BIAS)}}, weft.NotationError, "no label 'z'.*operand 'bias'",
    ),
    "another extent": (
        {"epilogue": plus, "operands": {"bias": ("n", BIAS[:5])}},
        weft.ShapeError, "label 'n' has extent 5 in operand 'bias' and 6 in the contraction",
    ),
    "a ragged diagonal": (
        {"epilogue": plus, "operands": {"bias": ("nn", torch.ones(6, 1))}}, weft.ShapeError, "twice in operand 'bias'",
    ),
    "another rank": (
        {"epilogue": plus, "operands": {"bias": ("mn", BIAS)}}, weft.ShapeError, "operand 'bias': 'mn' has 2 labels",
    ),
    "another device": (
        {"epilogue": plus, "operands": {"bias": ("n", torch.empty(6, device="meta"))}},
        weft.ShapeError, "operand 'bias' is on meta, a and b are on cpu",
    ),
    "no pair": ({"epilogue": plus, "operands": {"bias": BIAS}}, weft.FunctionError, "'bias' is a pair .modes, tensor."),
    "no mapping": ({"epilogue": plus, "operands": [BIAS]}, weft.FunctionError, "mapping"),
    "no tensor": ({"epilogue": plus, "operands": {"bias": ("n", [1.0])}}, weft.DTypeError, "operand 'bias' is list"),
    "two terms": ({"epilogue": plus, "operands": {"bias": ("m,n", BIAS)}}, weft.NotationError, "one term"),
    "an unhashable label": ({"epilogue": plus, "indices": {"bias": ["m"]}}, weft.NotationError, "cannot be labels"),
    "several from a_fn": ({"a_fn": lambda x: (x, x)}, weft.FunctionError, "a_fn returns 2 values: only the epilogue"),
    "a tuple of one": ({"epilogue": lambda x: (x,)}, weft.FunctionError, "tuple of one"),
    "a_fn's complex result": (
        {"a_fn": plus, "operands": {"bias": ("m", torch.ones(4) * 1j)}}, weft.DTypeError, "a_fn returns complex64",
    ),
    "a single out for two": (
        {"epilogue": lambda x: (x, x), "out": torch.empty(4, 6)}, weft.ShapeError, "2 values: out is a tuple",
    ),
    "two outs for one": ({"out": (torch.empty(4, 6),) * 2, "out_dtype": torch.float32}, weft.ShapeError, "no tuple"),
    "too many outs": (
        {"epilogue": lambda x: (x, x), "out": (torch.empty(4, 6),) * 3, "out_dtype": torch.float32},
        weft.ShapeError, "out has 3 tensors, the epilogue returns 2 values",
    ),
    "one tensor twice": (
        {"epilogue": lambda x: (x, x), "out": (torch.empty(4, 6),) * 2}, weft.ShapeError, r"out\[1\] overlaps out\[0\]",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("options", "error", "words"), REFUSED.values(), ids=REFUSED)
def test_refused(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        weft.contract("mk,kn->mn", A, B, **options, **ON)
    assert "in contract('mk,kn->mn'; a: 4x5 float32" in str(caught.value)


def test_out_may_not_be_an_operand(on: dict[str, Any]) -> None:
    out = torch.ones(4, 6)
    with pytest.raises(weft.ShapeError, match="out overlaps operand 'bias' in memory"):
        weft.contract("mk,kn->mn", A, B, epilogue=plus, operands={"bias": ("mn", out)}, out=out, **on)
    assert torch.equal(out, torch.ones(4, 6))


def test_large_problems_are_cut_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle cuts the widest label: what stands beside A and B is cut with them."""
    from weft.oracle import sums

    a, b, scale = whole((1, 9, 7), 1), whole((4, 7, 5), 2), whole((7, 1), 3)
    options = {
        "a_fn": lambda x, scale, k, p: x * scale + k - p, "b_fn": lambda x, k: x * k,
        "operands": {"scale": ("kb", scale)}, "indices": {"k": "k", "p": "b"},
    }  # fmt: skip
    k, p = torch.arange(7), torch.arange(4).reshape(4, 1, 1)
    expected = ((a * scale[:, 0] + k - p) @ (b * k[:, None])).double()
    for products, elements in ((1 << 22, 0), (16, 0), (16, 1 << 20)):
        monkeypatch.setattr(sums, "_PRODUCTS", products)
        monkeypatch.setattr(sums, "_ELEMENTS", elements)
        assert torch.equal(weft.reference.contract("bmk,bkn->bmn", a, b, **options), expected)
