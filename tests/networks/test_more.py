"""Functions, constants, reuse, exponents, faults, slices that are interrupted, reports."""

from __future__ import annotations

import math
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
import torch

import weft
from nets import chain, net_of

LEFT_FIRST = [(0, 1), (0, 1), (0, 1)]


def from_left(count: int) -> list[tuple[int, int]]:
    """The path from left to right: results go to the end of the list."""
    return [(0, 1)] + [(0, count - at - 1) for at in range(1, count - 1)]


def test_a_large_step_with_two_batch_modes_apart() -> None:
    """No layout makes its two batch modes one."""
    x, y, z = torch.rand(2, 256, 2, 300), torch.rand(2, 300, 2, 256), torch.rand(256, 3)
    net = weft.network("xmyk,ykxn,np->xymp", x, y, z, optimize=[(0, 1), (0, 1)], specialize="now")
    expected = torch.einsum("xmyk,ykxn,np->xymp", x.double(), y.double(), z.double())
    for _ in range(4):  # the later ones are known
        torch.testing.assert_close(net(x, y, z).double(), expected, rtol=1e-4, atol=0.0)


def test_functions_are_applied_between_steps() -> None:
    a, b, c = (torch.randn(5, 5) for _ in range(3))
    expected = torch.tanh(torch.relu(a @ b) @ c)
    for functions in ({"ac": torch.relu, "ad": torch.tanh}, {3: torch.relu, 4: torch.tanh}):
        net = weft.network("ab,bc,cd->ad", a, b, c, functions=functions, optimize=from_left(3))
        torch.testing.assert_close(net(a, b, c), expected)
    sliced = weft.network("ab,bc,cd->ad", a, b, c, functions=functions, optimize=from_left(3), slices="c")
    torch.testing.assert_close(sliced(a, b, c), expected)  # the last function waits for the last slice
    with pytest.raises(weft.UnsupportedError, match="'b' cannot be sliced"):
        weft.network("ab,bc,cd->ad", a, b, c, functions=functions, optimize=from_left(3), slices="b")
    with pytest.raises(weft.UnsupportedError, match="bound"):
        net.error_bound(a, b, c)


def test_constants_are_contracted_once() -> None:
    net = chain(6)
    planned = weft.network(net.equation, *net.tensors, constants=[2, 3, 4], optimize=from_left(6))
    torch.testing.assert_close(planned(*net.tensors[:2], net.tensors[5]), net.expected)
    planned = weft.network(net.equation, *net.tensors, constants=[0, 1, 2], optimize=from_left(6))
    assert len(planned.report()["steps"]) == 3
    assert len(planned.path) == 5
    torch.testing.assert_close(planned(*net.tensors[3:]), net.expected)
    torch.testing.assert_close(planned(*[2 * tensor for tensor in net.tensors[3:]]), 8 * net.expected)
    with pytest.raises(weft.ShapeError, match="takes 3 operands besides 3 constants"):
        planned(*net.tensors)
    alone = weft.network(net.equation, *net.tensors, constants=range(6))
    torch.testing.assert_close(alone(), net.expected)
    function = weft.network("ab,bc,cd->ad", *net.tensors[:3], constants=[0, 1], functions={"ac": torch.relu},
                            optimize=from_left(3))  # fmt: skip
    torch.testing.assert_close(function(net.tensors[2]), torch.relu(net.tensors[0] @ net.tensors[1]) @ net.tensors[2])


@pytest.mark.keeps
def test_reuse_repeats_what_changed_alone() -> None:
    net = chain(6)
    tensors = list(net.tensors)
    planned = weft.network(net.equation, *tensors, reuse=True)
    torch.testing.assert_close(planned(*tensors), net.expected)
    program = planned.latest
    assert program is not None
    assert not list(program._above(program.each, set()))
    for at in (0, 5, 3):
        tensors[at] = tensors[at] + 1  # another tensor
        torch.testing.assert_close(planned(*tensors), torch.linalg.multi_dot(tensors))
        tensors[at].mul_(1.5)  # the same tensor, written in place
        torch.testing.assert_close(planned(*tensors), torch.linalg.multi_dot(tensors))
    before = tensors[2].clone()
    tensors[2].data.add_(1.0)  # past torch's count of versions
    stale = planned(*tensors)
    torch.testing.assert_close(stale, torch.linalg.multi_dot([*tensors[:2], before, *tensors[3:]]))
    torch.testing.assert_close(planned(*tensors, changed=[2]), torch.linalg.multi_dot(tensors))
    tensors[2].data.add_(1.0)
    planned.refresh()
    torch.testing.assert_close(planned(*tensors), torch.linalg.multi_dot(tensors))
    with pytest.raises(weft.ArgumentError, match="changed names operand 9"):
        planned(*tensors, changed=[9])
    with pytest.raises(weft.ArgumentError, match="changed is a collection of places of operands, not 1"):
        planned(*tensors, changed=1)


def test_threads_that_share_a_network_which_reuses_take_turns() -> None:
    a, b, c = chain(3, seed=6).tensors
    planned = weft.network("ab,bc,cd->ad", a, b, c, reuse=True)

    def calls(at: int) -> bool:
        mine = a + at
        return all(torch.allclose(planned(mine, b, c), mine @ b @ c) for _ in range(40))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(calls, range(8)))


@pytest.mark.parametrize("scale", [1e-9, 1e9, 1.0])
@pytest.mark.parametrize("slices", ["", "c", "ac"])
def test_exponents_are_stripped_where_values_over_and_underflow(scale: float, slices: str) -> None:
    net = chain(8, seed=1)
    tensors = [(tensor * scale).float() for tensor in net.tensors]
    planned = weft.network(net.equation, *tensors, strip_exponent=True, slices=slices)
    mantissa, exponent = planned(*tensors)
    exact = torch.linalg.multi_dot([tensor.double() / scale for tensor in tensors])
    found = mantissa.double() * 10 ** (exponent - 8 * torch.log10(torch.tensor(scale, dtype=torch.float64)))
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-4)
    assert mantissa.abs().max() < 64


def test_exponents_of_zeros() -> None:
    a = torch.zeros(3, 3)
    mantissa, _ = weft.network("ab,bc,cd->ad", a, a, a, strip_exponent=True)(a, a, a)
    assert torch.equal(mantissa, a)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_exponents_of_every_call_and_slice_are_its_own(dtype: torch.dtype) -> None:
    net = chain(4, seed=3)
    tensors = [tensor.to(dtype) for tensor in net.tensors]
    planned = weft.network(net.equation, *tensors, strip_exponent=True, slices="bc")
    for power in (8, -8, 0):  # exact in all types
        given = [tensor * 2.0**power if at in (0, 2) else tensor for at, tensor in enumerate(tensors)]
        mantissa, exponent = planned(*given)
        exact = torch.linalg.multi_dot([tensor.double() for tensor in given])
        near = 2e-2 if dtype is torch.float16 else 1e-5
        error = (mantissa.double() * 10**exponent - exact).abs().max()
        assert error <= near * exact.abs().max()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scaled_slices_of_halves_are_added_up_in_float32(dtype: torch.dtype) -> None:
    tensors = [torch.rand(shape).to(dtype) for shape in ((4, 32), (32, 32), (32, 4))]
    found = []
    for slices in ("", "bc"):
        planned = weft.network("ab,bc,cd->ad", *tensors, strip_exponent=True, slices=slices)
        mantissa, exponent = planned(*tensors)
        assert mantissa.dtype == dtype
        found.append(mantissa.double() * 10**exponent)
    assert planned.memory >= 4 * 4 * (4 + 2)  # sums, and the result
    torch.testing.assert_close(found[1], found[0], rtol=4 * torch.finfo(dtype).eps, atol=0)


def test_the_least_memory_for_scaled_halves_is_enough() -> None:
    """Slices of a summed label need sums in float32, so the fewest bytes are those of other slices."""
    shapes = [(2,), (8, 4, 4), (4, 8)]
    how = {"dtype": torch.float16, "strip_exponent": True}
    with pytest.raises(weft.WorkspaceError, match="still needs 264 bytes"):
        weft.network("b,ead,de->b", *shapes, memory_limit=263, **how)
    planned = weft.network("b,ead,de->b", *shapes, memory_limit=264, **how)
    assert (planned.slices, planned.memory) == (("b",), 264)


def test_peaks_at_the_ends_of_the_range() -> None:
    wide = torch.tensor([[2.0**127, -(2.0**126)], [2.0**126, 2.0**127]])
    tiny = torch.tensor([[2.0**-145, 2.0**-146], [-(2.0**-145), 2.0**-140]])
    mantissa, exponent = weft.network("ab,bc,cd->ad", wide, tiny, wide, strip_exponent=True)(wide, tiny, wide)
    exact = wide.double() @ tiny.double() @ wide.double()
    torch.testing.assert_close(mantissa.double() * 10**exponent, exact, rtol=1e-6, atol=0)


def test_nan_and_infinity_stay_where_they_are() -> None:
    a, b = torch.eye(3), torch.full((3, 3), 2.0)
    b[1, 1], b[2, 2] = math.nan, math.inf
    mantissa, exponent = weft.network("ab,zbc,zcd->zad", a, b[None], a[None], strip_exponent=True)(a, b[None], a[None])
    assert mantissa.isnan()[:, :, 1].all()
    assert exponent.isfinite()


def test_exponents_of_two_precisions_and_of_nothing() -> None:
    a, b = torch.full((3, 4), 1e-30), torch.full((4, 3), 1e-250, dtype=torch.float64)
    planned = weft.network("ab,bc,cd->ad", a, b, a, strip_exponent=True, promote=True, optimize=from_left(3))
    mantissa, exponent = planned(a, b, a)
    torch.testing.assert_close(mantissa * 10 ** (exponent + 310), torch.full_like(mantissa, 12.0), rtol=1e-6, atol=0)
    empty = torch.zeros(3, 0)
    mantissa, exponent = weft.network("ab,bc,cd->ad", empty, empty.mT, a[:, :3], strip_exponent=True)(
        empty, empty.mT, a[:, :3]
    )  # fmt: skip
    assert not mantissa.any()
    assert exponent.isfinite()


@pytest.mark.slow
def test_exponents_of_complex_numbers() -> None:
    z = torch.randn(3, 3, dtype=torch.complex64) * 1e-20
    mantissa, exponent = weft.network("ab,bc,cd->ad", z, z.conj(), z, strip_exponent=True)(z, z.conj(), z)
    y = z.to(torch.complex128) * 1e20
    torch.testing.assert_close(mantissa.to(y.dtype) * 10 ** (exponent + 60), y @ y.conj() @ y, rtol=1e-5, atol=1e-5)


def test_the_step_that_makes_nan_or_inf_is_named() -> None:
    a, b, c = torch.full((3, 3), 1e30), torch.full((3, 3), 1e30), torch.ones(3, 3)
    net = weft.network("ab,bc,cd->ad", a, b, c, check_finite=True, optimize=from_left(3))
    said = r"step 3 .*'ab' of node 0.* makes NaN or Inf of finite values in 9 places"
    with pytest.raises(weft.AccuracyError, match=said):
        net(a, b, c)
    assert net(c, c, c)[0, 0] == 9
    b[1, 1] = torch.nan
    sliced = weft.network("ab,bc,cd->ad", a, b, c, check_finite=True, optimize=from_left(3), slices="c")
    with pytest.raises(weft.AccuracyError, match="operand 1 holds NaN or Inf in 1 place in slice c=1"):
        sliced(torch.ones(3, 3), b, c)


@pytest.mark.keeps
def test_ctrl_c_comes_between_slices_and_the_call_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    net = chain(4)
    planned = weft.network(net.equation, *net.tensors, slices="bc")
    planned(*net.tensors)
    program = planned.latest
    assert program is not None
    finish, count = program._finish, iter(range(100))

    def interrupting(*arguments: object) -> None:
        if next(count) == 5:
            signal.raise_signal(signal.SIGINT)  # amid the slice: the interrupt waits for its end
        finish(*arguments)

    monkeypatch.setattr(program, "_finish", interrupting)
    with pytest.raises(KeyboardInterrupt):
        planned(*net.tensors)
    torch.testing.assert_close(planned.resume(), net.expected)
    assert next(count) == 16  # every slice once
    with pytest.raises(weft.ArgumentError, match="nothing to resume"):
        planned.resume()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.keeps
@pytest.mark.parametrize("ignored", [True, False])
def test_a_program_that_handles_ctrl_c_itself_still_does(monkeypatch: pytest.MonkeyPatch, ignored: bool) -> None:
    net = chain(4)
    planned = weft.network(net.equation, *net.tensors, slices="bc")
    planned(*net.tensors)
    program = planned.latest
    assert program is not None
    finish, calls, heard = program._finish, count(), []

    def interrupting(*arguments: object) -> None:
        if next(calls) == 5:
            signal.raise_signal(signal.SIGINT)
            assert not heard, "a slice is interrupted"
        finish(*arguments)

    monkeypatch.setattr(program, "_finish", interrupting)
    handler = signal.SIG_IGN if ignored else lambda number, frame: heard.append(number)
    before = signal.signal(signal.SIGINT, handler)
    try:
        torch.testing.assert_close(planned(*net.tensors), net.expected)
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == ([] if ignored else [signal.SIGINT])


def test_threads_share_a_network() -> None:
    net = chain(6)
    planned = weft.network(net.equation, *net.tensors)
    wrong = []

    def work(factor: float) -> None:
        for _ in range(50):
            found = planned(factor * net.tensors[0], *net.tensors[1:])
            wrong.extend([] if torch.allclose(found, factor * net.expected) else [factor])

    threads = [threading.Thread(target=work, args=(float(at),)) for at in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_reports_say_what_was_planned() -> None:
    net = net_of("abx,bcx,cdx,dax->x", {**dict.fromkeys("abcd", 4), "x": 3})
    planned = weft.network(net.equation, *net.tensors, slices="b")
    text = planned.explain()
    for word in ("4 operands", "hyper-edges x", "4 over b", "flop", "predicted", "operand 3"):
        assert word in text
    planned(*net.tensors)
    found = planned.report()
    assert found["slices"] == 4
    assert sum(step["flops"] * (1 if step["once"] else 4) for step in found["steps"]) == found["flops"]
    assert all(step["kernel"] for step in found["steps"])


def test_one_operand_takes_every_option() -> None:
    x = torch.full((6, 2), 1.5e308, dtype=torch.float64)
    mantissa, exponent = weft.network("ab->b", x, strip_exponent=True)(x)
    assert ((mantissa.log10() + exponent - math.log10(9.0) - 308).abs() < 1e-12).all()
    tiny = torch.full((6, 2), 2.0**-149)
    mantissa, exponent = weft.network("ab->b", tiny, strip_exponent=True)(tiny)
    assert ((mantissa.double().log2() + exponent * math.log2(10.0) - math.log2(6) + 149).abs() < 1e-4).all()
    with pytest.raises(weft.DTypeError, match="strip_exponent is for floating types, the operand is int64"):
        weft.network("ab->b", x.long(), strip_exponent=True)(x.long())
    with pytest.raises(weft.AccuracyError, match="sums of the one operand make NaN or Inf of finite values"):
        weft.network("ab->b", x, check_finite=True)(x)
    x[0, 0] = torch.nan
    with pytest.raises(weft.AccuracyError, match="operand 0 holds NaN or Inf in 1 place"):
        weft.network("ab->b", x, check_finite=True)(x)

    y = torch.rand(50, 3)
    fixed = weft.network("ab->b", y, constants=[0])
    torch.testing.assert_close(fixed(), y.sum(0))
    assert fixed().data_ptr() != fixed().data_ptr()
    net = weft.network("ab->b", y)
    assert ((net(y) - y.double().sum(0)).abs() <= net.error_bound(y)).all()
    with pytest.raises(weft.WorkspaceError, match="memory_limit is 11 bytes; the result still needs 12 bytes"):
        weft.network("ab->b", y, memory_limit=11)
