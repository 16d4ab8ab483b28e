"""The way by torch's own operations: what it takes, says and allocates."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import weft
from cpu.extended import Extended, check_exact
from cpu.problems import TARGET, Problem, operands
from support import slowness
from weft.fn.pointwise import TritonFunction
from weft.library import algebras, family, permutations
from weft.machine import exactness
from weft.planner.schedule import Target
from weft.spec import Arithmetic, Contraction

EXTENTS = {"m": 8, "n": 9, "k": 10}


def contraction_of() -> Contraction:
    problem = Problem("mk,kn->mn", *operands("mk,kn->mn", EXTENTS))
    return problem.contraction(torch.empty(8, 9))


def test_supports() -> None:
    contraction = contraction_of()
    for kind in ("cpu", "cuda", "hip"):
        assert family.supports(contraction, Target(kind)) is None
    assert "interpreter" in str(family.supports(contraction, Target("interpreter")))
    boolean = dataclasses.replace(contraction, a=contraction.a._replace(dtype=torch.bool))
    assert "bool" in str(family.supports(boolean, TARGET))
    parts = dataclasses.replace(contraction, arithmetic=Arithmetic(torch.complex64, torch.float32))
    assert family.supports(parts, TARGET) == "products in complex64 do not add up in float32"


def test_no_triton_function() -> None:
    triton = pytest.importorskip("triton")

    @triton.jit
    def twice(x):  # type: ignore[no-untyped-def]
        return 2 * x

    function = TritonFunction(twice, "twice", ("x",), (torch.float32,))
    sentence = "twice is a Triton function; torch needs it written with its own operations"
    described = dataclasses.replace(contraction_of(), epilogue=function)
    assert family.supports(described, TARGET) == sentence
    assert family.choice(described, "cpu", TARGET) == sentence


def test_schedules_are_values_that_print_themselves() -> None:
    contraction = contraction_of()
    first, again = (family.schedules(contraction, TARGET).schedules for _ in range(2))
    assert first == again
    assert str(first[0]) == "library: matrix products by torch; workspace 0 KiB"
    assert 0 < family.predict(contraction, first[0], TARGET) < 1  # type: ignore[arg-type]


@pytest.mark.parametrize("algebra", ["plus_times", "max_plus"])
def test_parts(algebra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large tensors in small parts, along every mode; coordinates count on."""
    monkeypatch.setitem(family.MOST, "cpu", 200)
    monkeypatch.setitem(algebras.TABLE, "cpu", 8)
    options = {
        "algebra": algebra, "a_fn": lambda x, k, s: x * s + k, "epilogue": lambda x, m: (x - m, m + x),
        "indices": {"k": "k", "m": "m"}, "operands": {"s": ("m", torch.arange(9.0))},
    }  # fmt: skip
    a, b = (torch.randint(-3, 4, shape).float() for shape in ((2, 9, 3, 11), (2, 11, 7)))
    problem = Extended("bmlk,bkn->bnm", a, b, options=options)
    (schedule, *_) = family.schedules(problem.contraction(), TARGET).schedules
    assert schedule.parts is not None  # type: ignore[attr-defined]
    check_exact(problem)


def test_workspace_is_bounded() -> None:
    a, b = torch.empty(300, 400, 500, device="meta"), torch.empty(500, 400, 300, device="meta")
    shapes = {"abc,cde->abde": (300, 400, 400, 300), "abc,cba->": (), "abc,cba->cab": (500, 300, 400)}
    for equation, shape in shapes.items():
        contraction = Problem(equation, a, b).contraction(torch.empty(shape, device="meta"))
        for schedule in family.schedules(contraction, TARGET).schedules:
            assert schedule.workspace_bytes <= family.MOST["cpu"]


class Copies(TorchDispatchMode):
    """The last dimension of each place that is copied to."""

    def __init__(self) -> None:
        super().__init__()
        self.last: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            self.last.append(args[0].shape[-1])
        return func(*args, **(kwargs or {}))


def test_windows_that_overlap_are_packed_along_the_image() -> None:
    """Along a row of pixels, which lies in memory as the three of a window do: the other way took ten times as long."""
    images, weights = torch.randn(1, 2, 8, 32), torch.randn(4, 2, 3, 3)
    windows = images.unfold(2, 3, 1).unfold(3, 3, 1)
    problem = Problem("bcyxuv,ocuv->boyx", windows, weights)
    d = torch.empty(1, 4, 6, 30)
    choice = family.choice(problem.contraction(d), "cpu", TARGET)
    assert not isinstance(choice, str)
    launch = choice.build()
    with Copies() as copies:
        launch(windows, weights, None, d, 1, 0)
    assert copies.last == [30]
    torch.testing.assert_close(d, torch.nn.functional.conv2d(images, weights), rtol=1e-4, atol=1e-4)


def test_serves_empty_sums() -> None:
    p = weft.plan("mk,kn->mn", torch.ones(3, 0), torch.ones(0, 4), backend="cpu")
    assert p.schedule.family == "library"
    assert "gett: a mode is empty" in str(p.explain())


def test_one_element_has_modes_of_its_own() -> None:
    a, b = torch.rand(1, 3, 2, dtype=torch.float64), torch.rand(1, dtype=torch.float64)
    torch.testing.assert_close(weft.contract("abc,a->", a, b, backend="cpu"), a.sum() * b[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_a_given_result_of_one_element_keeps_its_shape(dtype: torch.dtype) -> None:
    a, b, place = torch.full((1,), 3, dtype=dtype), torch.full((1,), 2, dtype=dtype), torch.empty(1, 1, dtype=dtype)
    for _ in range(3):
        place.fill_(torch.nan)
        assert weft.contract("i,j->ij", a, b, out=place, specialize="library") is place
        assert torch.equal(place, torch.full((1, 1), 6, dtype=dtype))


@pytest.mark.parametrize(("equation", "shape"), [("ab,ab->", (3, 4)), ("ab,bc->ac", (4, 5)), ("ab,b->a", (4,))])
def test_all_elements_of_an_operand_may_be_one(equation: str, shape: tuple[int, ...]) -> None:
    a, b = torch.rand(3, 4, dtype=torch.complex128), torch.rand(7, dtype=torch.complex128)[3].expand(shape)
    for _ in range(3):
        assert torch.allclose(weft.contract(equation, a, b, specialize="library"), torch.einsum(equation, a, b))


def test_permutations_on_every_device() -> None:
    permutation = weft.plan_permute(torch.empty(4, 5), "ab->ba", backend="reference").permutation
    for kind in ("cpu", "cuda"):
        assert permutations.supports(permutation, Target(kind)) is None


def test_is_chosen_and_built_quickly() -> None:
    """Some 0.2 ms of a processor, which a first call waits for: twice that where others take its caches."""
    equation = "abk,kcd->cadb"
    a, b = operands(equation, {"a": 3, "b": 5, "c": 4, "d": 6, **EXTENTS})
    contraction = Problem(equation, a, b).contraction(torch.empty(4, 3, 6, 5))
    for target in (TARGET, Target("cuda", name="NVIDIA H100 80GB HBM3")):
        seconds = []
        for _ in range(30):
            begun = time.thread_time()
            choice = family.choice(contraction, "cpu", target)
            assert not isinstance(choice, str)
            choice.build()
            seconds.append(time.thread_time() - begun)
        assert min(seconds) < 4e-4 * slowness()


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_no_sum_of_halves_is_shortened(stored: torch.dtype) -> None:
    """Nor are the permissions others after the product than before it."""
    factors = torch.bfloat16 if stored is torch.bfloat16 else torch.float16
    switches, seen = torch.backends.cuda.matmul, []
    names = ["allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"]
    names.append("allow_fp16_accumulation")
    before = [getattr(switches, name) for name in names]

    def product() -> None:
        seen.append([getattr(switches, name) for name in names])

    try:
        for allowed in (True, False):
            for name in names:
                setattr(switches, name, allowed)
            exactness.guarded(product, factors, stored, "cuda")()
            assert [getattr(switches, name) for name in names] == [allowed] * 3
        wanted = {torch.float16: [False, True, False], torch.bfloat16: [True, False, True]}
        assert seen == [wanted.get(stored, [True, True, False]), [False] * 3]
        with pytest.raises(RuntimeError, match="no room"):
            exactness.guarded(_failing, factors, stored, "cuda")()
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(switches, name, value)


def _failing() -> None:
    raise RuntimeError("no room")


@pytest.mark.parametrize("way", ["fp32_precision", "allow_tf32"])
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_no_product_is_shortened(way: str, kind: str) -> None:
    """What the process allows is taken back while a product is made, and there again afterwards."""
    switches = torch.backends.cuda.matmul if kind == "cuda" else torch.backends.mkldnn.matmul
    if not hasattr(switches, way):
        pytest.skip("this torch has no such switch")
    before = switches.fp32_precision if hasattr(switches, "fp32_precision") else None
    seen = []

    def product() -> None:
        tf32 = torch.backends.cuda.matmul.fp32_precision if kind == "cuda" else None
        seen.append(tf32 if kind == "cuda" else torch.backends.mkldnn.enabled)

    try:
        setattr(switches, way, True if way == "allow_tf32" else "tf32")
        exactness.guarded(product, torch.float32, torch.float32, kind)()
        assert seen == (["ieee"] if kind == "cuda" else [False])
        assert switches.fp32_precision == "tf32"
    finally:
        if kind == "cuda":
            switches.allow_tf32 = False
        switches.fp32_precision = before
