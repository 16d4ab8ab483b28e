"""Bad input: the right error class, a message that names what is at fault, and nothing written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

import weft
from commands import python
from support import Backend
from weft.planner.validity import outdate
from weft.testing import poisoned


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


@dataclass(frozen=True)
class Bad:
    """One call that must fail: `words` all stand in its message."""

    name: str
    error: type[weft.WeftError]
    words: tuple[str, ...]
    equation: Any = "mk,kn->mn"
    a: Any = field(default_factory=lambda: ones(2, 3))
    b: Any = field(default_factory=lambda: ones(3, 4))
    options: dict[str, Any] = field(default_factory=dict)


N, S, D, F, U = (
    weft.NotationError, weft.ShapeError, weft.DTypeError, weft.FunctionError, weft.UnsupportedError
)  # fmt: skip
I8, I16, I32 = torch.int8, torch.int16, torch.int32
C64, C128, F64, F16 = torch.complex64, torch.complex128, torch.float64, torch.float16

NOTATION = [
    Bad("two arrows", N, ("'->'", "more than once"), "mk->kn->mn"),
    Bad("digit", N, ("'1'", "m1", "letters"), "m1,kn->mn"),
    Bad("unknown output label", N, ("'x'", "no input"), "mk,kn->mx"),
    Bad("repeated output label", N, ("'m'", "2 times"), "mk,kn->mmn"),
    Bad("one operand", N, ("two operands", "einsum"), "mk->m"),
    Bad("three operands", N, ("two operands", "names 3", "einsum"), "mk,kn,n->m"),
    Bad("two ellipses", N, ("'...'", "more than once"), "...m...,kn->mn"),
    Bad("stray dots", N, ("'.'",), "..mk,kn->mn"),
    Bad("ellipsis lost", N, ("'...'", "output"), "...k,kn->n", ones(5, 2, 3)),
    Bad("no equation", N, ("int",), 7),
    Bad("None for an equation", N, ("NoneType",), None),
    Bad("set of labels", N, ("sequence", "set"), ({"m", "k"}, ("k", "n"), ("m", "n"))),
    Bad("label that cannot be hashed", N, ("hashable",), ((["m"], "k"), ("k", "n"), ("n",))),
    Bad("tensors as labels", N, ("tensor is no label",), ([*torch.arange(2)], [1, 2], [0, 2])),
    Bad("two sequences", N, ("three sequences", "2 are given"), (("m", "k"), ("k", "n"))),
    Bad("ellipsis twice in a sequence", N, ("more than once",), ((..., ..., "m"), ("k", "n"), ("m", "n"))),
]

SHAPES = [
    Bad("extents clash", S, ("'k'", "3", "operand 0", "5", "operand 1"), b=ones(5, 4)),
    Bad("extents clash with none", S, ("'k'", "3", "0"), b=ones(0, 4)),
    Bad("diagonal", S, ("'k'", "twice", "2 and 3"), "kk,kn->n"),
    Bad("diagonal does not broadcast", S, ("'k'", "twice", "1 and 3"), "kk,kn->n", ones(1, 3)),
    Bad("too few labels", S, ("'m'", "1 label", "2 dim"), "m,kn->mn"),
    Bad("too many labels", S, ("'mkx'", "3 labels", "2 dim"), "mkx,kn->mn"),
    Bad("ellipsis over too few", S, ("3 labels", "2 dim"), "...mkx,kn->mn"),
    Bad("ellipses clash", S, ("3", "2"), "...k,...n->...kn", ones(3, 4), ones(2, 4)),
    Bad("c of another shape", S, ("c has shape (4, 2)", "(2, 4)"), options={"c": ones(4, 2)}),
    Bad("c of another rank", S, ("c has shape (4,)", "(2, 4)"), options={"c": ones(4)}),
    Bad("c larger than the result", S, ("c has shape (5, 4)",), a=ones(1, 3), options={"c": ones(5, 4)}),
    Bad("out of another shape", S, ("out", "(4, 2)", "(2, 4)"), options={"out": ones(4, 2)}),
    Bad("out of another rank", S, ("out", "(2, 4, 1)", "(2, 4)"), options={"out": ones(2, 4, 1)}),
    Bad("out expanded", S, ("out", "overlaps itself", "(0, 1)"), options={"out": ones(4).expand(2, 4)}),
    Bad("out overlapping", S, ("out", "overlaps itself"), options={"out": ones(9).as_strided((2, 4), (3, 1))}),
    Bad("another device", S, ("meta", "cpu"), b=torch.ones(3, 4, device="meta")),
    Bad("out on another device", S, ("out", "meta"), options={"out": torch.ones(2, 4, device="meta")}),
    Bad("c on another device", S, ("c is on meta",), options={"c": torch.ones(2, 4, device="meta")}),
]

TYPES = [
    Bad("half with single", D, ("float16", "float32"), a=ones(2, 3, dtype=F16)),
    Bad("single with int16", D, ("float32", "int16"), b=ones(3, 4, dtype=I16)),
    Bad("single with double", D, ("float32", "float64"), b=ones(3, 4, dtype=F64)),
    Bad("complex with another precision", D, ("complex128", "float32"), a=ones(2, 3, dtype=C128)),
    Bad("bool", D, ("bool",), a=ones(2, 3, dtype=torch.bool), b=ones(3, 4, dtype=torch.bool)),
    Bad("int8 without out_dtype", D, ("int8", "out_dtype"), a=ones(2, 3, dtype=I8), b=ones(3, 4, dtype=I8)),
    Bad("complex as real", D, ("complex64", "float32"), a=ones(2, 3, dtype=C64), b=ones(3, 4, dtype=C64),
        options={"out_dtype": torch.float32}),
    Bad("real as integer", D, ("float32", "int32"), options={"out_dtype": I32}),
    Bad("out contradicts out_dtype", D, ("out", "float32", "float64"),
        options={"out": ones(2, 4), "out_dtype": F64}),
    Bad("out of integers", D, ("float32", "int32"), options={"out": ones(2, 4, dtype=I32)}),
    Bad("out_dtype is no dtype", D, ("out_dtype='flaot16'", "did you mean 'float16'?"),
        options={"out_dtype": "flaot16"}),
    Bad("tf32 of doubles", D, ("tf32", "float64"), a=ones(2, 3, dtype=F64), b=ones(3, 4, dtype=F64),
        options={"precision": "tf32"}),
    Bad("unknown precision", D, ("precision='tf33'", "did you mean 'tf32"), options={"precision": "tf33"}),
    Bad("accumulator too narrow", D, ("float32", "float16"), options={"accumulate": F16}),
    Bad("complex products of real", D, ("float32",), options={"precision": I32}),
    Bad("alpha complex", D, ("alpha", "complex", "float32"), options={"alpha": 1j}),
    Bad("alpha a tensor of several", S, ("alpha", "(2,)"), options={"alpha": torch.ones(2)}),
    Bad("beta text", D, ("beta", "str"), options={"beta": "1"}),
    Bad("alpha no integer", D, ("alpha", "0.5", "int32"), a=ones(2, 3, dtype=I32), b=ones(3, 4, dtype=I32),
        options={"alpha": 0.5}),
    Bad("alpha beyond 64 bits", D, ("alpha", str(2**63), "64"), a=ones(2, 3, dtype=I32), b=ones(3, 4, dtype=I32),
        options={"alpha": 2**63}),
    Bad("beta beyond 64 bits", D, ("beta", "1e+30", "64"), a=ones(2, 3, dtype=I32), b=ones(3, 4, dtype=I32),
        options={"beta": 1e30}),
    Bad("c complex", D, ("c is complex64", "float32"), options={"c": ones(2, 4, dtype=C64)}),
    Bad("foreign byte order", D, ("a has dtype >f8",), a=np.ones((2, 3), ">f8"), b=np.ones((3, 4))),
    Bad("a list", D, ("a is list",), a=[[1.0]]),
    Bad("None", D, ("b is NoneType",), b=None),
]  # fmt: skip

UNSUPPORTED = [
    Bad("tuning", U, ("tune",), options={"tune": "guess"}),
    Bad("unknown backend", U, ("'gpu'", "auto", "triton", "cpu"), options={"backend": "gpu"}),
    Bad("sparse", U, ("a is torch.sparse",), a=ones(2, 3).to_sparse()),
    Bad("negative strides", U, ("a has negative strides",), a=np.ones((2, 3))[::-1], b=np.ones((3, 4))),
    Bad("nested", U, ("nested",), a=torch.nested.nested_tensor([ones(3)], layout=torch.jagged)),
    Bad("read-only out", U, ("out is a read-only ndarray",), a=np.ones((2, 3)), b=np.ones((3, 4)),
        options={"out": np.broadcast_to(np.zeros((2, 4)), (2, 4))}),
    Bad("conjugate out", U, ("out is a conjugate",), a=ones(2, 3, dtype=C64), b=ones(3, 4, dtype=C64),
        options={"out": ones(2, 4, dtype=C64).conj()}),
    Bad("fp8 with half", D, ("float8_e4m3fn", "float16"), a=ones(2, 3).to(torch.float8_e4m3fn), b=ones(3, 4).half()),
]  # fmt: skip


CONSTANT = ones(4)

FUNCTIONS = [
    Bad("reduction", F, ("a_fn", "sum", "equation"), options={"a_fn": lambda x: x - x.sum()}),
    Bad("softmax", F, ("epilogue", "softmax"), options={"epilogue": lambda x: torch.softmax(x, -1)}),
    Bad("matrix product", F, ("epilogue", "mm", "equation"), options={"epilogue": lambda x: x @ x.mT}),
    Bad("axes", F, ("b_fn", "labels"), options={"b_fn": lambda x: x.mT}),
    Bad("control flow", F, ("a_fn", "torch.where"), options={"a_fn": lambda x: x if x[0, 0] > 0 else -x}),
    Bad("item", F, ("a_fn", "torch.where"), options={"a_fn": lambda x: x * x.max().item()}),
    Bad("random", F, ("a_fn", "operands"), options={"a_fn": torch.rand_like}),
    Bad("dropout", F, ("a_fn",), options={"a_fn": torch.nn.functional.dropout}),
    Bad("captured tensor", F, ("epilogue", "operands"), options={"epilogue": lambda x: x + CONSTANT}),
    Bad("two parameters", F, ("epilogue",), options={"epilogue": lambda x, y: x + y}),
    Bad("no parameter", F, ("a_fn",), options={"a_fn": lambda: 1.0}),
    Bad("text returned", F, ("a_fn",), options={"a_fn": lambda x: "x"}),
    Bad("nothing returned", F, ("a_fn",), options={"a_fn": lambda x: None}),
    Bad("not callable", F, ("a_fn",), options={"a_fn": 3.0}),
    Bad("it raises", F, ("c_fn", "KeyError"), options={"c_fn": lambda x: {}["missing"], "c": ones(2, 4)}),
]


@pytest.fixture(autouse=True)
def fresh() -> None:
    """No plan is known yet: a remembered one would answer for calls that must fail while planning."""
    outdate()


def fails(bad: Bad, call: Callable[..., Any], **options: Any) -> str:
    """The message of the error that the call must raise; it carries equation, shapes and dtypes."""
    with pytest.raises(bad.error) as caught:
        call(bad.equation, bad.a, bad.b, **{**bad.options, **options})
    message = str(caught.value)
    for word in bad.words:
        assert word in message
    return message


@pytest.mark.parametrize("bad", [*NOTATION, *SHAPES, *TYPES, *UNSUPPORTED, *FUNCTIONS], ids=lambda bad: bad.name)
def test_contract_says_what_is_wrong(bad: Bad) -> None:
    """Message, class and context; and `out`, given where the case has none of its own, keeps its poison."""
    dtype = bad.options.get("out_dtype", torch.float32)
    guarded = poisoned((2, 4), dtype if isinstance(dtype, torch.dtype) else torch.float32)
    untouched = guarded.memory.clone()
    own = bad.options.get("out")
    before = own.clone() if isinstance(own, torch.Tensor) and own.device.type == "cpu" else None
    settled = own is not None or bad.name == "int8 without out_dtype"  # there `out` would say what the type is
    message = fails(bad, weft.contract, **({} if settled else {"out": guarded.tensor}))
    assert torch.equal(guarded.memory, untouched)
    if before is not None:
        assert torch.equal(own, before)
    assert repr(bad.equation) in message
    assert message.count("contract(") == 1, "the context is added once"
    for name, x in (("a", bad.a), ("b", bad.b)):
        if isinstance(x, torch.Tensor):
            shape = "x".join(map(str, x.shape)) or "0-d"
            assert f"{name}: {shape} {str(x.dtype).removeprefix('torch.')}" in message


@pytest.mark.parametrize("bad", [*NOTATION, *SHAPES, *TYPES, *UNSUPPORTED, *FUNCTIONS], ids=lambda bad: bad.name)
def test_plan_says_the_same(bad: Bad) -> None:
    """But for what only a call brings: alpha and beta."""
    options = {key: value for key, value in bad.options.items() if key not in ("alpha", "beta")}
    if options == bad.options:
        with pytest.raises(bad.error) as caught:
            weft.plan(bad.equation, bad.a, bad.b, **options)
        for word in bad.words:
            assert word in str(caught.value)
        assert str(caught.value).count("plan(") == 1


def test_a_repeated_call_takes_no_larger_numbers() -> None:
    """What was checked before is not checked again, but numbers are."""
    a, b, out = ones(2, 3, dtype=I32), ones(3, 4, dtype=I32), torch.zeros(2, 4, dtype=I32)
    for _ in range(2):
        weft.contract("mk,kn->mn", a, b, out=out, alpha=2)
    with pytest.raises(weft.DTypeError, match="64 bits"):
        weft.contract("mk,kn->mn", a, b, out=out, alpha=2**64)
    assert (out == 6).all()


@pytest.mark.parametrize("at", [0, 1, 2])
def test_einsum_names_its_operands_and_none_is_overwritten(at: int) -> None:
    operands = [torch.rand(4, 4) for _ in range(3)]
    before = [x.clone() for x in operands]
    with pytest.raises(weft.ShapeError, match=f"out overlaps operand {at} "):
        weft.einsum("ab,bc,cd->ad", *operands, out=operands[at])
    assert all(map(torch.equal, operands, before))


def test_einsum_reads_labels_in_tensors() -> None:
    x, y = torch.rand(2, 3), torch.rand(3, 4)
    labels = torch.tensor([[0, 1], [1, 2]])
    for first, second in (labels, labels.numpy()):
        assert torch.allclose(weft.einsum(x, first, y, second), x @ y)


def test_results_that_share_memory_are_named() -> None:
    out = torch.empty(2, 4)
    with pytest.raises(weft.ShapeError, match=r"out\[1\] overlaps out\[0\] .*overwrite the other"):
        weft.contract("mk,kn->mn", ones(2, 3), ones(3, 4), epilogue=lambda x: (x, x + 1), out=(out, out))


class TestOverlap:
    """`out` may be C exactly and shares nothing with any input else."""

    def test_out_is_a(self, backend: Backend) -> None:
        a = torch.ones(3, 3, device=backend.device)
        with pytest.raises(weft.ShapeError, match="out overlaps a"):
            weft.contract("mk,kn->mn", a, torch.eye(3, device=backend.device), out=a, backend=backend.name)
        assert torch.equal(a, torch.ones(3, 3, device=backend.device))

    def test_out_is_part_of_b(self, backend: Backend) -> None:
        b = torch.ones(6, 3, device=backend.device)
        with pytest.raises(weft.ShapeError, match="out overlaps b"):
            weft.contract("mk,kn->mn", torch.ones(2, 6, device=backend.device), b, out=b[2:4], backend=backend.name)
        assert torch.equal(b, torch.ones(6, 3, device=backend.device))

    def test_out_interleaved_by_a_byte(self, backend: Backend) -> None:
        buffer = torch.ones(10, device=backend.device)
        a, out = buffer[:4].reshape(2, 2), buffer[3:7].reshape(2, 2)
        with pytest.raises(weft.ShapeError, match="out overlaps a"):
            weft.contract("mk,kn->mn", a, torch.eye(2, device=backend.device), out=out, backend=backend.name)

    @pytest.mark.parametrize("shifted", ["moved", "turned"])
    def test_out_is_c_otherwise(self, shifted: str, backend: Backend) -> None:
        buffer = torch.ones(12, device=backend.device)
        c = buffer[:9].reshape(3, 3)
        out = buffer[1:10].reshape(3, 3) if shifted == "moved" else c.T
        a = torch.ones(3, 3, device=backend.device)
        with pytest.raises(weft.ShapeError, match="out overlaps c"):
            weft.contract("mk,kn->mn", a, a, c=c, out=out, backend=backend.name)
        assert torch.equal(buffer, torch.ones(12, device=backend.device))


class TestPlanCalls:
    """A plan refuses what it was not made for, and stays usable."""

    @pytest.mark.parametrize(
        ("a", "words"),
        [
            (ones(3, 2), ("a has shape (3, 2)", "planned were (2, 3)")),
            (ones(3, 2).T, ("a has shape (2, 3) and strides (1, 2)", "(3, 1)")),
            (ones(2, 3, dtype=F64), ("a is float64", "planned was float32")),
            (torch.ones(2, 3, device="meta"), ("a is on meta", "planned was cpu")),
            ([1.0], ("a is list",)),
        ],
    )
    def test_other_operands(self, a: Any, words: tuple[str, ...]) -> None:
        p = weft.plan("mk,kn->mn", ones(2, 3), ones(3, 4))
        out = torch.full((2, 4), torch.nan)
        with pytest.raises(weft.WeftError) as caught:
            p(a, ones(3, 4), out=out)
        for word in (*words, "mk,kn->mn"):
            assert word in str(caught.value)
        assert out.isnan().all()
        assert torch.equal(p(ones(2, 3), ones(3, 4)), torch.full((2, 4), 3.0))

    def test_other_alignment(self) -> None:
        aligned, shifted = ones(2, 3), torch.ones(7)[1:].reshape(2, 3)
        p = weft.plan("mk,kn->mn", aligned, ones(3, 4))
        assert torch.equal(p(shifted, ones(3, 4)), torch.full((2, 4), 3.0))
        general = weft.plan("mk,kn->mn", shifted, ones(3, 4))
        assert torch.equal(general(aligned, ones(3, 4)), torch.full((2, 4), 3.0))

    def test_bad_scalars(self) -> None:
        p = weft.plan("mk,kn->mn", ones(2, 3), ones(3, 4))
        with pytest.raises(weft.DTypeError, match="alpha"):
            p(ones(2, 3), ones(3, 4), alpha=1j)


class TestEinsumErrors:
    def test_nothing(self) -> None:
        with pytest.raises(weft.NotationError, match="equation"):
            weft.einsum()

    def test_operands_missing(self) -> None:
        with pytest.raises(weft.NotationError, match="names 2 operands, 1 is given"):
            weft.einsum("ij,jk", ones(2, 2))

    def test_extents_name_the_operand(self) -> None:
        with pytest.raises(weft.ShapeError, match=r"'c' has extent 4 in operand 1 and 5 in operand 2"):
            weft.einsum("ab,bc,cd->ad", ones(2, 3), ones(3, 4), ones(5, 2))

    def test_unsortable_labels_need_an_output(self) -> None:
        with pytest.raises(weft.NotationError, match="explicit output"):
            weft.einsum(ones(2, 3), ("x", 1), ones(3, 4), (1, 2.5))

    def test_context_is_the_public_call(self) -> None:
        """The error of an inner step carries one context, that of einsum."""
        with pytest.raises(weft.DTypeError) as caught:
            weft.einsum("ab,bc,cd->ad", ones(2, 2), ones(2, 2, dtype=F64), ones(2, 2))
        assert str(caught.value).count("\n  in ") == 1
        assert "in einsum('ab,bc,cd->ad'; operand 0: 2x2 float32, operand 1: 2x2 float64" in str(caught.value)


def test_backend_by_name_never_falls_back() -> None:
    """Without the interpreter the Triton backend has nowhere to run on a machine without a GPU, and says so."""
    code = (
        "import torch, weft\n"
        "try: weft.contract('mk,kn->mn', torch.ones(2, 2), torch.ones(2, 2), backend='triton')\n"
        "except weft.UnsupportedError as error: print(error)"
    )
    said = python(code, PATH="", TRITON_INTERPRET="0")
    assert "backend 'triton'" in said
    assert "TRITON_INTERPRET=1" in said


def test_errors_are_also_the_builtin_ones() -> None:
    """Code that knows nothing of weft catches them as what they are."""
    for error, builtin in (
        (weft.NotationError, ValueError), (weft.ShapeError, ValueError), (weft.DTypeError, TypeError),
        (weft.FunctionError, TypeError), (weft.UnsupportedError, NotImplementedError),
        (weft.WorkspaceError, MemoryError),
    ):  # fmt: skip
        assert issubclass(error, weft.WeftError)
        assert issubclass(error, builtin)


def test_a_scalar_past_every_number_is_refused() -> None:
    a = torch.ones(2, 2)
    with pytest.raises(weft.DTypeError, match="alpha is larger than any float32"):
        weft.contract("ij,jk->ik", a, a, alpha=10**400)


def test_a_workspace_limit_is_a_number_of_bytes() -> None:
    a = torch.ones(2, 2)
    with pytest.raises(weft.UnsupportedError, match="workspace_limit is a number of bytes, not '1GB'"):
        weft.contract("ij,jk->ik", a, a, workspace_limit="1GB")  # type: ignore[arg-type]
