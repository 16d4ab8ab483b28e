"""The field's bugs in plans, caches and surroundings; docstrings name the reports that tests guard against."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest
import torch

import weft
from support import Backend, integers
from weft.testing import random_operand


def scale_of(module: ModuleType | SimpleNamespace) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x * module.SCALE


def helper(x: torch.Tensor) -> torch.Tensor:
    return x + 1


FACTOR = 2.0


class TestCache:
    """Plan caches that hand a similar call the wrong plan: cupy#7318, cupy#7812, triton#7348, triton#586."""

    def test_strides(self, backend: Backend) -> None:
        """cupy#7318: the same shape and type, one stride different."""
        square = integers((8, 8), backend, 1)
        eye = torch.eye(8, device=backend.device)
        wide = integers((8, 16), backend, 2)
        for a in (square, square.T, wide[:, :8], wide[:, ::2], wide[:, :1].expand(8, 8), square):
            assert torch.equal(weft.contract("mk,kn->mn", a, eye, backend=backend.name), a)

    def test_types(self, backend: Backend) -> None:
        """cupy#7812: the same shapes, other types of operands, result, C."""
        for dtype in (torch.float32, torch.float64, torch.float16, torch.float32):
            a = integers((4, 4), backend, 1, dtype)
            for result in (dtype, torch.float32, torch.float64):
                d = weft.contract("mk,kn->mn", a, a, out_dtype=result, backend=backend.name)
                assert d.dtype == result
                assert torch.equal(d, (a @ a).to(result))

    def test_conjugate_bits(self) -> None:
        """cupy#7318: nothing differs but a bit."""
        a = random_operand((4, 4), torch.complex64, 1, integers=True)
        eye = torch.eye(4, dtype=torch.complex64)
        for x in (a, a.conj(), a):
            assert torch.equal(weft.contract("mk,kn->mn", x, eye), x.resolve_conj())

    def test_constants_of_functions(self, backend: Backend) -> None:
        """cupy#7812: one constant in a closure, a default, a partial, an attribute."""
        a, eye = integers((4, 4), backend, 1), torch.eye(4, device=backend.device)
        for scale in (2.0, 3.0, -0.0, 2.0):
            for function in (
                lambda x: x * scale,  # noqa: B023
                lambda x, factor=scale: x * factor,
                scale_of(SimpleNamespace(SCALE=scale)),
            ):
                d = weft.contract("mk,kn->mn", a, eye, a_fn=function, backend=backend.name)
                assert torch.equal(d, a * scale @ eye), scale

    def test_module_attribute(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        """triton#7348: a global that a function reads changes between two calls of the same function object."""
        module = ModuleType("constants")
        module.SCALE = 2.0  # type: ignore[attr-defined]
        function = scale_of(module)
        a, eye = integers((4, 4), backend, 1), torch.eye(4, device=backend.device)
        assert torch.equal(weft.contract("mk,kn->mn", a, eye, a_fn=function, backend=backend.name), 2 * a)
        module.SCALE = 5.0  # type: ignore[attr-defined]
        assert torch.equal(weft.contract("mk,kn->mn", a, eye, a_fn=function, backend=backend.name), 5 * a)

    def test_global(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        """triton#7348: the same with a global of the function's own module."""

        def function(x: torch.Tensor) -> torch.Tensor:
            return x * FACTOR

        a, eye = integers((4, 4), backend, 1), torch.eye(4, device=backend.device)
        assert torch.equal(weft.contract("mk,kn->mn", a, eye, epilogue=function, backend=backend.name), 2 * a)
        monkeypatch.setitem(function.__globals__, "FACTOR", 7.0)
        assert torch.equal(weft.contract("mk,kn->mn", a, eye, epilogue=function, backend=backend.name), 7 * a)

    def test_helper_function(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        """triton#586: a function that a function calls is exchanged."""

        def function(x: torch.Tensor) -> torch.Tensor:
            return helper(x) * 2

        a, eye = integers((4, 4), backend, 1), torch.eye(4, device=backend.device)
        first = weft.contract("mk,kn->mn", a, eye, epilogue=function, backend=backend.name)
        assert torch.equal(first, (a + 1) * 2)
        monkeypatch.setitem(function.__globals__, "helper", lambda x: x - 1)
        second = weft.contract("mk,kn->mn", a, eye, epilogue=function, backend=backend.name)
        assert torch.equal(second, (a - 1) * 2)

    def test_attribute_deep_inside(self, backend: Backend) -> None:
        """triton#7348: state of an object that a bound method reads."""

        class Scaler:
            def __init__(self) -> None:
                self.options = {"scale": 2.0}

            def apply(self, x: torch.Tensor) -> torch.Tensor:
                return x * self.options["scale"]

        scaler = Scaler()
        a, eye = integers((4, 4), backend, 1), torch.eye(4, device=backend.device)
        assert torch.equal(weft.contract("mk,kn->mn", a, eye, a_fn=scaler.apply, backend=backend.name), 2 * a)
        scaler.options["scale"] = 3.0
        assert torch.equal(weft.contract("mk,kn->mn", a, eye, a_fn=scaler.apply, backend=backend.name), 3 * a)

    def test_extents_and_equations(self, backend: Backend) -> None:
        """cupy#7318: other extents, and equations that differ in the output's order alone."""
        for extent in (3, 4, 3):
            a, b = integers((extent, 5), backend, 1), integers((5, extent), backend, 2)
            assert torch.equal(weft.contract("mk,kn->mn", a, b, backend=backend.name), a @ b)
            assert torch.equal(weft.contract("mk,kn->nm", a, b, backend=backend.name), (a @ b).T)


class TestSurroundings:
    """Switches of the process and of the thread that must not reach into a result."""

    def test_path_keeps_the_type(self, backend: Backend) -> None:
        """numpy#11059: a path of several steps that changes the dtype."""
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            a = integers((3, 3), backend, 1, dtype)
            assert weft.einsum("ab,bc,cd,de->ae", a, a, a, a, backend=backend.name).dtype == dtype

    def test_single_with_int16(self) -> None:
        """float32 with int16: no library agrees on what that should be, so it is an error."""
        with pytest.raises(weft.DTypeError, match="float32 and int16"):
            weft.contract("k,k->", torch.ones(3), torch.ones(3, dtype=torch.int16))

    def test_autocast(self, backend: Backend) -> None:
        """Under autocast the arithmetic is what the call says, and where it says nothing what autocast says."""
        a = torch.full((8, 8), 1 + 2.0**-20, device=backend.device)
        eye = torch.eye(8, device=backend.device)
        for _ in range(2):
            with torch.autocast(backend.device, dtype=torch.bfloat16):
                d = weft.contract("mk,kn->mn", a, eye, a_fn=lambda x: x * 1, precision="ieee", backend=backend.name)
                e = weft.contract("mk,kn->mn", a, eye, a_fn=lambda x: x * 1, backend=backend.name)
            assert d.dtype == torch.float32
            assert torch.equal(d, a)
            assert e.dtype == torch.bfloat16
            assert torch.equal(e, torch.ones_like(e))

    def test_default_type_and_device(self, backend: Backend) -> None:
        """The defaults for new tensors change neither a function's constants nor where work is done."""
        a = torch.full((4, 4), 3.0, device=backend.device)
        eye = torch.eye(4, device=backend.device)
        before = torch.get_default_dtype()
        try:
            torch.set_default_dtype(torch.float64)
            with torch.device("meta"):
                d = weft.contract("mk,kn->mn", a, eye, a_fn=lambda x: x / 3 + 0.1, backend=backend.name)
                e = weft.einsum("ab->ba", d, backend=backend.name)
        finally:
            torch.set_default_dtype(before)
        assert d.dtype == torch.float32
        assert torch.equal(d, a / 3 + 0.1)
        assert torch.equal(e, d.T)

    def test_matmul_precision_switch(self, backend: Backend) -> None:
        """torch's process-wide permission for shorter products is not permission here."""
        a = torch.full((64, 64), 1 + 2.0**-20, device=backend.device)
        eye = torch.eye(64, device=backend.device)
        before = torch.get_float32_matmul_precision()
        try:
            torch.set_float32_matmul_precision("medium")
            assert torch.equal(weft.contract("mk,kn->mn", a, eye, backend=backend.name), a)
        finally:
            torch.set_float32_matmul_precision(before)

    def test_inference_mode_and_no_grad(self, backend: Backend) -> None:
        """A tensor that requires a gradient is fine where none is recorded."""
        a = torch.ones(3, 3, device=backend.device, requires_grad=True)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                d = weft.contract("mk,kn->mn", a, a, backend=backend.name)
            assert torch.equal(d, torch.full((3, 3), 3.0, device=backend.device))
        assert weft.contract("mk,kn->mn", a, a, backend=backend.name).requires_grad

    def test_threads(self, quick_backend: Backend) -> None:
        """triton#11494: several threads meet a new contraction at once."""
        backend = quick_backend
        results: list[bool] = []
        start = threading.Barrier(4)

        def work(seed: int) -> None:
            a, b = integers((37, 41), backend, seed), integers((41, 29), backend, seed + 10)
            start.wait()
            for _ in range(5):
                d = weft.contract("mk,kn->mn", a, b, epilogue=lambda x: x + 3.25, backend=backend.name)
                results.append(torch.equal(d, a @ b + 3.25))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [True] * 20


@pytest.mark.gpu
class TestDevice:
    def test_capture_in_a_graph(self) -> None:
        """triton#10596, triton#10712: loading modules during graph capture. A plan that has run can be captured."""
        a, b = (random_operand((64, 64), torch.float16, seed, integers=True, device="cuda") for seed in (1, 2))
        out = torch.zeros(64, 64, dtype=torch.float16, device="cuda")
        p = weft.plan("mk,kn->mn", a, b, out=out)
        p(a, b, out=out)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            p(a, b, out=out)
        a.copy_(a.flip(0))
        out.zero_()
        graph.replay()
        assert torch.equal(out, (a.float() @ b.float()).half())

    def test_stream(self) -> None:
        """Work goes to the current stream: the result is there when that stream is done."""
        stream = torch.cuda.Stream()
        a = torch.ones(512, 512, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            b = torch.zeros(512, 512, device="cuda")
            torch.cuda._sleep(10_000_000)
            b.fill_(1)
            d = weft.contract("mk,kn->mn", a, b)
        stream.synchronize()
        assert torch.equal(d, torch.full((512, 512), 512.0, device="cuda"))

    def test_other_device(self) -> None:
        """Another device's tensor is an error, not an illegal access."""
        with pytest.raises(weft.ShapeError, match=r"cuda:0.*cpu"):
            weft.contract("mk,kn->mn", torch.ones(2, 2, device="cuda"), torch.ones(2, 2))
