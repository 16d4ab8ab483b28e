"""`weft.network` and `weft.einsum` of many operands: values, options, and what goes wrong."""

from __future__ import annotations

from collections.abc import Callable

import cotengra
import numpy as np
import opt_einsum
import pytest
import torch

import weft
from nets import chain, net_of, random_net

SEEDS = range(24)


def within(net: weft.Network, result: torch.Tensor, expected: torch.Tensor, *tensors: torch.Tensor) -> bool:
    return bool(((result - expected).abs() <= net.error_bound(*tensors) + 1e-13 * expected.abs()).all())


@pytest.mark.parametrize("seed", SEEDS)
def test_random_networks_come_out_within_their_bound(seed: int) -> None:
    net = random_net(seed)
    planned = weft.network(net.equation, *net.tensors)
    for _ in range(2):
        assert within(planned, planned(*net.tensors), net.expected, *net.tensors)
    torch.testing.assert_close(weft.einsum(net.equation, *net.tensors), net.expected)


@pytest.mark.parametrize("seed", range(6))
def test_float32_networks_come_out_within_their_bound(seed: int) -> None:
    net = random_net(seed)
    tensors = net.of(torch.float32)
    planned = weft.network(net.equation, *tensors)
    exact = torch.einsum(net.equation, *[tensor.double() for tensor in tensors])
    assert within(planned, planned(*tensors).double(), exact, *tensors)


@pytest.mark.parametrize("seed", SEEDS)
def test_sliced_networks_add_up_to_the_same(seed: int) -> None:
    net = random_net(seed)
    whole = weft.network(net.equation, *net.tensors)
    labels = sorted({label for label in net.equation if label.isalpha()})[:: 2 + seed % 3][:3]
    sliced = weft.network(net.equation, *net.tensors, slices=labels)
    assert set(sliced.slices) == set(labels)
    assert within(whole, sliced(*net.tensors), net.expected, *net.tensors)


def test_the_outer_product_is_never_made() -> None:
    shapes = ((300, 300), (300, 300), (300, 300))
    net = weft.network("ab,cd,bc->ad", *shapes)
    assert net.memory < 8 * 300**2 * 4
    assert net.report()["flops"] <= 4 * 300**3
    a, b, c = (torch.randn(shape) for shape in shapes)
    torch.testing.assert_close(weft.einsum("ab,cd,bc->ad", a, b, c), a @ c @ b, rtol=1e-3, atol=1e-2)


def test_labels_are_any_hashable_object_and_any_symbol() -> None:
    x, y, z = torch.randn(2, 3), torch.randn(3, 4), torch.randn(4, 2)
    expected = x @ y @ z
    names = ("left", ("bond", 1), 2.5, frozenset("r"))
    terms = [names[0:2], names[1:3], names[2:4]]
    torch.testing.assert_close(weft.network(terms, x, y, z, output=(names[0], names[3]))(x, y, z), expected)
    a, b, c, d = (opt_einsum.get_symbol(at) for at in (109, 110, 111, 20000))
    torch.testing.assert_close(weft.network(f"{a}{b},{b}{c},{c}{d}->{a}{d}", x, y, z)(x, y, z), expected)


def test_an_output_that_is_left_out_has_the_labels_that_stand_once() -> None:
    x, y, z = torch.randn(2, 3), torch.randn(3, 4), torch.randn(4, 5)
    torch.testing.assert_close(weft.network("zb,bc,ca", x, y, z)(x, y, z), (x @ y @ z).T)
    mixed = weft.network([("s", 1), (1, 2), (2, ("t",))], x, y, z)  # these cannot be sorted
    torch.testing.assert_close(mixed(x, y, z), x @ y @ z)


def test_broadcasting_ellipsis_and_extents_of_one() -> None:
    x, y, z = torch.randn(7, 2, 3), torch.randn(1, 3, 4), torch.randn(4, 2)
    expected = torch.einsum("...ab,...bc,cd->...ad", x, y, z)
    torch.testing.assert_close(weft.network("...ab,...bc,cd->...ad", x, y, z)(x, y, z), expected)


@pytest.mark.parametrize("equation", ["ab->ba", "aab->b", "ab->", "a->a"])
def test_one_operand_is_moved_or_reduced(equation: str) -> None:
    net = net_of(equation, {"a": 3, "b": 4})
    torch.testing.assert_close(weft.network(equation, *net.tensors)(*net.tensors), net.expected)


def test_scalars_are_operands_of_no_dimension() -> None:
    x, y = torch.randn(2, 3), torch.randn(3, 4)
    net = weft.network("ab,,bc,->ac", x, 2.0, y, np.float32(0.5))
    torch.testing.assert_close(net(x, 2.0, y, np.float32(0.5)), x @ y)
    torch.testing.assert_close(net(x, 3.0, y, 1), 3 * x @ y)
    found = weft.network(",ab,bc->ac", 2.0, x, y)(2.0, x, y)
    assert isinstance(found, torch.Tensor)


def test_empty_extents_give_zeros() -> None:
    x, y, z = torch.ones(2, 0), torch.ones(0, 3), torch.ones(3, 4)
    assert torch.equal(weft.network("ab,bc,cd->ad", x, y, z)(x, y, z), torch.zeros(2, 4))
    assert weft.network("ab,bc,cd->adb", x, y, z)(x, y, z).shape == (2, 4, 0)


def test_complex_conjugate_and_numpy_operands() -> None:
    a, b, c = (torch.randn(3, 3, dtype=torch.complex128) for _ in range(3))
    net = weft.network("ab,bc,cd->ad", a, b.conj(), c)
    torch.testing.assert_close(net(a, b.conj(), c), a @ b.conj() @ c)
    torch.testing.assert_close(weft.network("ab,bc,ca->", a, b.conj(), c, slices="a")(a, b.conj(), c),
                               torch.trace(a @ b.conj() @ c))  # fmt: skip
    found = weft.network("ab,bc,cd->ad", a.numpy(), b.numpy(), c.numpy())(a.numpy(), b.numpy(), c.numpy())
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, a.numpy() @ b.numpy() @ c.numpy())


def test_operands_that_lie_otherwise_are_planned_for_anew() -> None:
    net = chain(4)
    planned = weft.network(net.equation, *[tuple(x.shape) for x in net.tensors], dtype="float64")
    turned = [tensor.T.contiguous().T for tensor in net.tensors]
    for tensors in (net.tensors, turned, net.tensors):
        torch.testing.assert_close(planned(*tensors), net.expected)


@pytest.mark.parametrize("optimize", ["auto", "greedy", "optimal", "auto-hq", "dp", "random-greedy"])
def test_every_way_to_find_a_path_gives_the_same(optimize: str) -> None:
    net = random_net(3)
    torch.testing.assert_close(weft.network(net.equation, *net.tensors, optimize=optimize)(*net.tensors), net.expected)


def test_paths_trees_and_optimizers_are_taken_as_they_are() -> None:
    net = chain(5)
    shapes = [tuple(x.shape) for x in net.tensors]
    path = opt_einsum.contract_path(net.equation, *shapes, shapes=True, optimize="greedy")[0]
    assert weft.network(net.equation, *net.tensors, optimize=path).path == tuple(map(tuple, path))
    inputs, output = net.equation.split("->")[0].split(","), net.equation.split("->")[1]
    sizes = dict.fromkeys("abcdef", 4)
    tree = cotengra.ContractionTree.from_path(inputs, output, sizes, path=path)
    tree.remove_ind_("c")
    planned = weft.network(net.equation, *net.tensors, optimize=tree)
    assert planned.slices == ("c",)
    torch.testing.assert_close(planned(*net.tensors), net.expected)
    search = cotengra.HyperOptimizer(max_repeats=2, progbar=False, parallel=False, methods=["greedy"])
    torch.testing.assert_close(weft.network(net.equation, *net.tensors, optimize=search)(*net.tensors), net.expected)
    torch.testing.assert_close(
        weft.network(net.equation, *net.tensors, optimize=opt_einsum.RandomGreedy(max_repeats=2))(*net.tensors),
        net.expected,
    )
    three = weft.network(net.equation, *net.tensors, optimize=[(0, 1, 2), (0, 1)])
    torch.testing.assert_close(three(*net.tensors), net.expected)


def test_memory_limits_find_slices_and_say_the_least() -> None:
    net = net_of("abcd,cdef,efgh,ghab->", dict.fromkeys("abcdefgh", 6))
    whole = weft.network(net.equation, *net.tensors)
    limit = whole.memory // 5
    less = weft.network(net.equation, *net.tensors, memory_limit=limit)
    assert less.slices
    assert less.memory <= limit
    torch.testing.assert_close(less(*net.tensors), net.expected)
    assert not weft.network(net.equation, *net.tensors, memory_limit="1GB").slices
    with pytest.raises(weft.WorkspaceError, match=r"still\s+needs (\d+) bytes") as error:
        weft.network("ab,bc,cd->ad", (64, 8), (8, 8), (8, 64), memory_limit=1000)
    needed = int(str(error.value).partition("needs ")[2].split()[0])
    assert needed >= 64 * 64 * 4
    assert weft.network("ab,bc,cd->ad", (64, 8), (8, 8), (8, 64), memory_limit=needed).memory <= needed


def test_slices_of_the_result_are_written_side_by_side_and_odd_offsets_are_right() -> None:
    net = net_of("abc,cde,ef->afbd", {"a": 3, "b": 5, "c": 7, "d": 3, "e": 5, "f": 3}, dtype=torch.float32)
    exact = torch.einsum(net.equation, *[x.double() for x in net.tensors])
    for slices in ("a", "f", "af", "cf", "bdf"):
        planned = weft.network(net.equation, *net.tensors, slices=slices)
        assert within(planned, planned(*net.tensors).double(), exact, *net.tensors), slices
    assert not torch.isnan(planned(*net.tensors, out=torch.full(net.expected.shape, torch.nan))).any()


def peak_bytes(work: Callable[[], object]) -> int:
    """The most bytes that torch holds at once on the CPU while this runs, besides what it held before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
    held = most = 0
    for event in sorted(recorded.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


@pytest.mark.parametrize(
    ("dtype", "keywords"),
    [(torch.float32, {}), (torch.float32, {"slices": "b"}), (torch.float16, {"slices": "b"}),
     (torch.float32, {"strip_exponent": True}), (torch.bfloat16, {"strip_exponent": True})],
)  # fmt: skip
def test_a_call_holds_what_is_said(dtype: torch.dtype, keywords: dict[str, object]) -> None:
    tensors = [torch.randn(256, 256).to(dtype) / 16 for _ in range(4)]
    first = weft.network("ab,bc,cd,de->ae", *tensors, **keywords)
    first(*tensors)  # what is compiled once for all is not of a call

    planned = weft.network("ab,bc,cd,de->ae", *tensors, **keywords)
    held = peak_bytes(lambda: planned(*tensors))
    assert planned.plan.result_bytes <= held <= planned.memory + (64 << 10)


def test_half_precision_slices_are_added_in_float32() -> None:
    ones = torch.ones(4096, dtype=torch.float16)
    net = weft.network("a,a,a->", ones, ones, ones, slices="a")
    assert net(ones, ones, ones) == 4096  # sums of ones in float16 stop at 2048


def test_results_go_into_out_and_checks_come_first() -> None:
    net = chain(3)
    planned = weft.network(net.equation, *net.tensors)
    wide = torch.full((4, 8), torch.nan, dtype=torch.float64)
    assert planned(*net.tensors, out=wide[:, ::2]) is not None
    torch.testing.assert_close(wide[:, ::2], net.expected)
    assert wide[:, 1::2].isnan().all()
    with pytest.raises(weft.ShapeError, match="out overlaps operand 1"):
        planned(*net.tensors, out=net.tensors[1])
    with pytest.raises(weft.ShapeError, match="out has shape"):
        planned(*net.tensors, out=torch.empty(3, 3, dtype=torch.float64))


def test_algebras_go_along_any_path_and_ones_of_the_caller_from_left_to_right() -> None:
    a, b, c = (torch.randn(5, 5) for _ in range(3))
    expected = ((a[:, :, None] + b).amax(1)[:, :, None] + c).amax(1)
    torch.testing.assert_close(weft.network("ab,bc,cd->ad", a, b, c, algebra="max_plus")(a, b, c), expected)
    mine = weft.Algebra(torch.add, torch.maximum, -torch.inf, name="mine")
    net = weft.network("ab,bc,cd->ad", a, b, c, algebra=mine)
    assert "left to right" in net.plan.source
    torch.testing.assert_close(net(a, b, c), expected)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("ab,bc->ac", (2, 3), (4, 5)), weft.ShapeError, "label 'b' has extent 3 in operand 0 and 4 in operand 1"),
        (("ab,bc->ad", (2, 3), (3, 5)), weft.NotationError, "output label 'd' stands in no input"),
        (("ab,bc->ac", (2, 3)), weft.NotationError, "names 2 operands, 1 is given"),
        (("ab->a->b", (2, 3)), weft.NotationError, "stands more than once"),
        (({"a", "b"}, (2, 3)), weft.NotationError, "sequences of labels"),
        (("ab,bc->ac",), weft.ArgumentError, "needs operands"),
        (("ab,bc->ac", torch.ones(2, 3), "x"), weft.DTypeError, "operand 1 is str"),
    ],
)
def test_what_contradicts_itself_is_named(arguments: tuple[object, ...], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        weft.network(*arguments)


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"optimize": [(0, 5)]}, weft.NotationError, r"path entry \(0, 5\) reaches past the 3 tensors"),
        ({"optimize": [(0, 0)]}, weft.NotationError, "no list of different numbers"),
        ({"optimize": "best"}, weft.ArgumentError, "known to neither opt_einsum nor cotengra"),
        ({"optimize": 3}, weft.ArgumentError, "no path"),
        ({"slices": "z"}, weft.NotationError, "label 'z' cannot be sliced"),
        ({"memory_limit": "lots"}, weft.ArgumentError, "no size"),
        ({"memory_limit": "1 bit"}, weft.ArgumentError, "'8GB', '1.5 GiB', '500 KiB', '64 bytes', '1e9'"),
        ({"memory_limit": "-1 GB"}, weft.ArgumentError, "no size"),
        ({"memory_limit": "1e999"}, weft.ArgumentError, "no size"),
        ({"memory_limit": -1}, weft.ArgumentError, "no number of bytes"),
        ({"memory_limit": float("nan")}, weft.ArgumentError, "no number of bytes"),
        ({"memorylimit": 1}, weft.ArgumentError, "did you mean 'memory_limit'?"),
        ({"max_memory": 1}, weft.ArgumentError, "takes no keyword 'max_memory': weft says memory_limit="),
        ({"workspace_limit": 1}, weft.ArgumentError, "weft says memory_limit="),
        ({"path": [(0, 1)]}, weft.ArgumentError, "takes no keyword 'path': weft says optimize="),
        ({"optimizer": "greedy"}, weft.ArgumentError, "weft says optimize="),
        ({"epilogue": torch.relu}, weft.ArgumentError, "weft says functions="),
        ({"out": None}, weft.ArgumentError, r"the network's own call takes it, net\(\*tensors, out=...\)"),
        ({"colour": 1}, weft.ArgumentError, "takes no keyword 'colour': it takes .*output, optimize, slices"),
        ({"device": "bogus"}, weft.ArgumentError, "device='bogus' is no device"),
        ({"device": 3.5}, weft.ArgumentError, "device=3.5 is no device"),
        ({"constants": [7]}, weft.ArgumentError, "places of operands, 0 to 2"),
        ({"constants": [1]}, weft.ArgumentError, "its tensor is needed"),
        ({"functions": {"xy": torch.relu}}, weft.NotationError, "no intermediate of this path has the labels"),
        ({"functions": {1: torch.relu}}, weft.NotationError, "node 1 is no result of a step"),
        ({"functions": {3: 5}}, weft.ArgumentError, "cannot be called"),
        ({"strip_exponent": 1}, weft.ArgumentError, "strip_exponent is True or False"),
        ({"strip_exponent": True, "algebra": "max_plus"}, weft.UnsupportedError, "sums of products"),
        ({"reuse": True, "slices": "b"}, weft.UnsupportedError, "do without slices"),
        ({"cuda_graph": "no"}, weft.ArgumentError, "cuda_graph"),
        ({"dtype": "int8"}, weft.DTypeError, "intermediate results do not fit"),
    ],
)
def test_options_that_do_not_fit_are_named(keywords: dict[str, object], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        weft.network("ab,bc,cd->ad", (2, 3), (3, 4), (4, 5), **keywords)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("device", ["cuda", "cuda:3", torch.device("cuda", 1)])
def test_a_gpu_that_is_not_there_is_said(device: object) -> None:
    with pytest.raises(weft.ArgumentError, match=r"device=.*cuda.*there is no GPU here\n  in network"):
        weft.network("ab,bc->ac", (2, 3), (3, 4), device=device)


def test_errors_say_shapes_and_types_of_the_operands() -> None:
    a, b = torch.ones(4, 4), torch.ones(4, 4, dtype=torch.float64)
    with pytest.raises(weft.DTypeError) as caught:
        weft.network("ab,bc,cd->ad", a, b, a)
    assert "float32: operands 0, 2; float64: operand 1" in str(caught.value)
    assert "in network('ab,bc,cd->ad'; operand 0: 4x4 float32, operand 1: 4x4 float64, " in str(caught.value)
    with pytest.raises(weft.DTypeError, match="float32: operands 0, 2; float64: operand 1"):
        weft.einsum("ab,bc,cd->ad", a, b, a)
    with pytest.raises(weft.ShapeError, match=r"in network\('ab,bc->ac'; operand 0: shape \(2, 3\), operand 1: shape"):
        weft.network("ab,bc->ac", (2, 3), (4, 4))
    net = weft.network("ab,bc,cd->ad", a, a, a, constants=[1])
    with pytest.raises(weft.DTypeError, match=r"network of 3 .*\(operand 0: 4x4 float32, operand 2: 4x4 float64"):
        net(a, b)
    with pytest.raises(weft.ShapeError, match="takes 2 operands besides 1 constant, 1 is given"):
        net(a)
    many = chain(12)
    with pytest.raises(weft.ShapeError, match="operand 7: 4x4 float64, 4 more"):
        weft.network(many.equation, *many.tensors[:11], torch.ones(5, 5, dtype=torch.float64))


def test_one_of_a_kind_is_said_in_the_singular() -> None:
    net = weft.network("ab,bc->ac", (2, 3), (3, 4))
    assert repr(net).startswith("Network(2 operands, 1 step, 1 slice, ")
    assert "; 1 step\n" in net.explain()
    assert repr(weft.network("a->a", (2,))).startswith("Network(1 operand, 0 steps, 1 slice, ")
    with pytest.raises(weft.WorkspaceError, match="memory_limit is 1 byte "):
        weft.network("ab,bc,cd->ad", (2, 3), (3, 4), (4, 5), memory_limit="1 byte")


@pytest.mark.parametrize(
    ("text", "size"),
    [("2 GB", 2 * 10**9), ("1.5 GiB", 3 * 2**29), ("500 KiB", 500 << 10), ("1e9", 10**9), ("64000 bytes", 64000),
     ("8g", 8 * 10**9), (1e6, 10**6)],
)  # fmt: skip
def test_sizes_are_read_as_people_write_them(text: object, size: int) -> None:
    net = weft.network("ab,bc,cd->ad", (2, 3), (3, 4), (4, 5), memory_limit=text)
    assert net.plan.settings.memory_limit == size


def test_tensors_that_do_not_fit_are_named() -> None:
    net = chain(3)
    planned = weft.network(net.equation, *net.tensors)
    with pytest.raises(weft.ShapeError, match="takes 3 operands, 2 are given"):
        planned(*net.tensors[:2])
    with pytest.raises(weft.ShapeError, match=r"operand 1 has shape \(3, 4\)"):
        planned(net.tensors[0], net.tensors[1][:3], net.tensors[2])
    with pytest.raises(weft.DTypeError, match="operand 2 is float32"):
        planned(*net.tensors[:2], net.tensors[2].float())
    with pytest.raises(weft.ArgumentError, match="reuse=True"):
        planned(*net.tensors, changed=[0])


def test_einsum_of_many_takes_what_the_last_step_may_be_asked_for() -> None:
    net = chain(4)
    c = torch.randn_like(net.expected)
    found = weft.einsum(net.equation, *net.tensors, c=c, alpha=0.5, beta=2.0, epilogue=torch.relu)
    torch.testing.assert_close(found, torch.relu(0.5 * net.expected + 2 * c))
    out = torch.empty_like(c)
    assert weft.einsum(net.equation, *net.tensors, out=out) is out
    torch.testing.assert_close(out, net.expected)
    bias = torch.randn(4, dtype=torch.float64)
    found = weft.einsum(net.equation, *net.tensors, epilogue=lambda s, b: s + b, operands={"b": ("e", bias)})
    torch.testing.assert_close(found, net.expected + bias)


@pytest.mark.keeps
def test_an_equal_einsum_is_found_by_one_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    net = chain(5, seed=5)
    weft.einsum(net.equation, *net.tensors)
    monkeypatch.setattr("weft.api.einsum.read_einsum", None)  # a call that is read again fails
    again = [tensor.clone() for tensor in net.tensors]
    torch.testing.assert_close(weft.einsum(net.equation, *again), net.expected)


@pytest.mark.parametrize("constants", [(1,), (1, 2)])
def test_networks_that_inference_mode_made_have_gradients(constants: tuple[int, ...]) -> None:
    """Of negative views too, and of what is made of constants alone."""
    a, b, c = torch.randn(3, 4), torch.randn(4, 5, dtype=torch.complex64).conj().imag, torch.randn(5, 2)
    with torch.inference_mode():
        net = weft.network("ab,bc,cd->ad", a, b, c, constants=constants, optimize=[(0, 1), (0, 1)])
        net(*(a, c)[: 3 - len(constants)])
    x = a.clone().requires_grad_()
    net(*(x, c)[: 3 - len(constants)]).square().sum().backward()
    expected = torch.autograd.grad((x @ b @ c).square().sum(), x)[0]
    torch.testing.assert_close(x.grad, expected, rtol=1e-4, atol=1e-4)
