"""Launches through the driver: what it is told, and on a GPU that results, streams, threads and graphs are right."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import weft

pytest.importorskip("triton")
from weft.gpu.common import direct as launching
from weft.gpu.common.cubins import Cubin, parameter_sizes
from weft.gpu.common.direct import DirectLaunch
from weft.spec import Layout


class FakeDriver:
    """A driver that knows one kernel, and reads its parameters as CUDA's does."""

    def __init__(self, sizes: list[int], status: int = 0) -> None:
        self.sizes, self.status, self.seen = sizes, status, []  # type: ignore[var-annotated]
        self.encoded: list[Any] = []
        self.map_status = 0

    def cuFuncGetParamInfo(self, function: Any, at: Any, offset: Any, size: Any) -> int:
        if at.value >= len(self.sizes):
            return 1
        size._obj.value = self.sizes[at.value]
        return 0

    def cuLaunchKernelEx(self, config: Any, function: Any, params: Any, extra: Any) -> int:
        given = config._obj
        kinds = {128: ctypes.c_int64, 8: ctypes.c_int64, 4: ctypes.c_int32}
        values = [kinds[size].from_address(at).value for size, at in zip(self.sizes, params, strict=True)]
        follows = given.attributes[0].id, given.attributes[0].value, given.count
        self.seen.append(((given.grid_x, given.block_x, given.shared), given.stream, values, follows))
        return self.status

    def cuTensorMapEncodeTiled(self, place: Any, element: int, rank: int, tensor: Any, *rest: Any) -> int:
        extents, strides, block = (list(each) for each in rest[:3])
        self.encoded.append((element, rank, extents, strides, block, rest[5]))
        return self.cuTensorMapReplaceAddress(place, tensor)

    def cuTensorMapReplaceAddress(self, place: Any, tensor: Any) -> int:
        ctypes.c_int64.from_address(place.value).value = tensor.value or 0
        return self.map_status

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:
        device._obj.value = ordinal
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        context._obj.value = 100 + device.value
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:
        self.context, self.status = context.value, 0
        return 0

    def cuGetErrorName(self, status: int, name: Any) -> int:
        name._obj.value = b"CUDA_ERROR_OF_THE_TEST"
        return 0


def compiled(signature: dict[str, Any], **metadata: Any) -> Cubin:
    known = {
        "num_ctas": 1, "launch_cooperative_grid": False, "global_scratch_size": 0, "profile_scratch_size": 0,
        "name": "kernel", "num_warps": 4, "warp_size": 32, "shared": 8192, "launch_pdl": True,
    } | metadata  # fmt: skip
    asm = {"ptx": "bar.sync 0;", "cubin": b"\x7fELF"}
    found = SimpleNamespace(src=SimpleNamespace(signature=signature), metadata=SimpleNamespace(**known), asm=asm)
    return Cubin.of(found)


SIGNATURE = {"a": "*fp16", "c": "constexpr", "alpha": "i64", "extents": ("i32", "i64"), "pointers": ("*fp32",)}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    found = FakeDriver([8, 8, 4, 8, 8, 8, 8])
    monkeypatch.setattr(launching, "loaded_driver", lambda: found)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 4242 + device, raising=False)
    return found


def test_the_driver_gets_each_parameter_in_its_place(driver: FakeDriver) -> None:
    launch = DirectLaunch.of(compiled(SIGNATURE), 77, 12, 1)
    assert launch is not None
    launch((0x7F0000001000, -3, -5, 6, 0x7F0000002000))
    [(grid, stream, values, follows)] = driver.seen
    assert grid == (12, 128, 8192)
    assert stream == 4243
    assert values == [0x7F0000001000, -3, -5, 6, 0x7F0000002000, 0, 0]
    assert follows == (6, 1, 1)


def test_a_launch_that_follows_nobody_says_so(driver: FakeDriver) -> None:
    launch = DirectLaunch.of(compiled(SIGNATURE, launch_pdl=False), 77, 12, 0)
    assert launch is not None
    launch((1, 2, 3, 4, 5))
    assert driver.seen[0][3][2] == 0


@pytest.mark.parametrize(
    "other",
    [{"num_ctas": 2}, {"launch_cooperative_grid": True}, {"global_scratch_size": 128}, {"profile_scratch_size": 8}],
    ids=lambda each: next(iter(each)),
)
def test_what_asks_for_more_is_left_to_triton(driver: FakeDriver, other: dict[str, Any]) -> None:
    assert DirectLaunch.of(compiled(SIGNATURE, **other), 77, 12, 0) is None


def test_so_is_a_kernel_whose_parameters_are_others(driver: FakeDriver) -> None:
    driver.sizes = [8, 8, 8, 8, 8, 8, 8]
    assert DirectLaunch.of(compiled(SIGNATURE), 77, 12, 0) is None
    driver.sizes = [8, 8, 4, 8, 8, 8, 8, 8]
    assert DirectLaunch.of(compiled(SIGNATURE), 77, 12, 0) is None
    assert parameter_sizes({"a": "tensordesc<fp16[64, 64]>"}) is None
    assert parameter_sizes({"alpha": "fp32"}) is None


MAPPED = {"a": "tensordesc<fp16[64, 32]>", "c": "constexpr", "d": "*fp32", "alpha": "i64", "numbers": ("i32",)}
FORM = {"swizzle": 3, "elem_size": 2, "elem_type": 8, "block_size": [64, 32], "fp4_padded": False}


@pytest.fixture
def mapped(driver: FakeDriver) -> DirectLaunch:
    """A launch of a kernel that takes a tensor map, a pointer, a factor, and a number that is fixed."""
    driver.sizes = [128, 4, 4, 8, 8, 8, 8, 4, 8, 8]
    cubin = compiled(MAPPED, tensordesc_meta=[FORM])
    assert Cubin.from_bytes(cubin.to_bytes()) == cubin
    layout = Layout((100, 48), (56, 1), torch.float16)
    launch = DirectLaunch.of(cubin, 77, 12, 0, fixed=(9,), maps=[layout])
    assert launch is not None
    return launch


def test_a_tensor_map_is_written_once_and_follows_its_tensor(driver: FakeDriver, mapped: DirectLaunch) -> None:
    mapped((0x1000, 0x2000, -3))
    mapped((0x1000, 0x2000, -3))
    mapped((0x4000, 0x5000, 7))
    mapped.at(5, (11,))((0x6000, 0x7000, 1))
    behind = [100, 48, 56, 1]
    assert [values for _, _, values, _ in driver.seen] == [
        [0x1000, *behind, 0x2000, -3, 9, 0, 0],
        [0x1000, *behind, 0x2000, -3, 9, 0, 0],
        [0x4000, *behind, 0x5000, 7, 9, 0, 0],
        [0x6000, *behind, 0x7000, 1, 11, 0, 0],
    ]
    assert driver.encoded == [(10, 2, [48, 100], [112], [32, 64], 3)] * 2


def test_a_tensor_map_that_the_driver_does_not_write_is_an_error(driver: FakeDriver, mapped: DirectLaunch) -> None:
    driver.map_status = 1
    with pytest.raises(RuntimeError, match="writes no tensor map: CUDA_ERROR_OF_THE_TEST"):
        mapped((0x1000, 0x2000, -3))
    assert not driver.seen
    driver.map_status = 0
    mapped((0x1000, 0x2000, -3))
    assert len(driver.encoded) == 2


@pytest.mark.parametrize("other", [None, FORM | {"fp4_padded": True}, FORM | {"is_im2col": True}], ids=str)
def test_a_tensor_map_of_another_kind_is_left_to_triton(driver: FakeDriver, other: Any) -> None:
    assert DirectLaunch.of(compiled(MAPPED, tensordesc_meta=[other]), 77, 12, 0) is None


def test_an_error_of_the_driver_is_named(driver: FakeDriver) -> None:
    driver.status = 700
    launch = DirectLaunch.of(compiled(SIGNATURE), 77, 12, 0)
    assert launch is not None
    with pytest.raises(RuntimeError, match="did not launch a kernel: CUDA_ERROR_OF_THE_TEST"):
        launch((1, 2, 3, 4, 5))


def test_a_thread_without_a_context_gets_that_of_the_device(driver: FakeDriver) -> None:
    driver.status = 201
    launch = DirectLaunch.of(compiled(SIGNATURE), 77, 12, 3)
    assert launch is not None
    launch((1, 2, 3, 4, 5))
    assert driver.context == 103
    assert [values for _, _, values, _ in driver.seen] == [[1, 2, 3, 4, 5, 0, 0]] * 2


@pytest.mark.gpu
class TestOnADevice:
    def test_a_thread_that_has_asked_nothing_of_cuda(self) -> None:
        a, b, out = torch.rand(33, 20, device="cuda"), torch.rand(20, 17, device="cuda"), torch.empty(33, 17).cuda()
        plan = weft.plan("mk,kn->mn", a, b)
        plan(a, b, out=out)
        out.zero_()
        torch.cuda.synchronize()
        thread = threading.Thread(target=lambda: plan(a, b, out=out))
        thread.start()
        thread.join()
        torch.testing.assert_close(out, a @ b)

    def test_kernels_are_launched_so(self) -> None:
        a, b = torch.rand(33, 20, device="cuda"), torch.rand(20, 17, device="cuda")
        plan = weft.plan("mk,kn->mn", a, b, backend="triton", epilogue=torch.relu)
        plan(a, b)
        kernels = [kernel for each in plan._variants.values() for kernel in getattr(each.launch, "kernels", ())]
        assert kernels
        assert all(kernel._direct is not None for kernel in kernels)
        torch.testing.assert_close(plan(a, b, alpha=-0.5), torch.relu(-0.5 * (a @ b)))

    def test_those_with_tensor_maps_too(self) -> None:
        if torch.cuda.get_device_capability() < (9, 0):
            pytest.skip("no tensor memory accelerator")
        pairs = [[torch.rand(1024, 1024, device="cuda").half() for _ in range(2)] for _ in range(3)]
        plan = weft.plan("mk,kn->mn", *pairs[0], epilogue=torch.relu, backend="triton", specialize="now")
        for a, b in pairs * 2:
            torch.testing.assert_close(plan(a, b), torch.relu(a @ b), rtol=2e-3, atol=1e-3)
        kernels = [kernel for each in plan._variants.values() for kernel in getattr(each.launch, "kernels", ())]
        assert kernels
        assert all(kernel._direct is not None for kernel in kernels)

    def test_streams_and_threads(self) -> None:
        sizes = (5, 17, 33, 64)
        given = [(torch.rand(n, 20, device="cuda"), torch.rand(20, n, device="cuda")) for n in sizes]
        wanted = [a @ b for a, b in given]
        torch.cuda.synchronize()
        wrong: list[int] = []

        def work(at: int) -> None:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                found = [weft.contract("mk,kn->mn", *given[at]) for _ in range(200)]
                stream.synchronize()
            wrong.extend(at for each in found if not torch.allclose(each, wanted[at]))

        threads = [threading.Thread(target=work, args=(at % len(sizes),)) for at in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong

    def test_graphs_and_hooks(self) -> None:
        import triton

        a, b = torch.rand(33, 20, device="cuda"), torch.rand(20, 17, device="cuda")
        out = torch.empty(33, 17, device="cuda")
        plan = weft.plan("mk,kn->mn", a, b)
        plan(a, b, out=out)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            plan(a, b, out=out)
        a.mul_(3)
        graph.replay()
        torch.testing.assert_close(out, a @ b)
        called: list[Any] = []
        hook = called.append
        plan = weft.plan("mk,kn->mn", a, b, epilogue=torch.relu, backend="triton")
        plan(a, b)
        triton.knobs.runtime.launch_enter_hook.add(hook)
        try:
            plan(a, b)
        finally:
            triton.knobs.runtime.launch_enter_hook.remove(hook)
        assert called
