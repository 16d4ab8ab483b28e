"""`weft.jax` under JAX's transformations, against `jax.numpy`."""

from __future__ import annotations

import shutil
from collections import Counter

import numpy as np
import pytest
import torch

jax = pytest.importorskip("jax")
jnp = jax.numpy

import weft.jax  # noqa: E402
from weft.errors import ArgumentError, DTypeError, FunctionError, NotationError, ShapeError, UnsupportedError  # noqa: E402
from weft.jax import custom_call  # noqa: E402


def drawn(seed, *shapes):
    keys = jax.random.split(jax.random.PRNGKey(seed), len(shapes))
    return [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]


def assert_close(found, expected, tolerance=1e-4):
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=tolerance, atol=tolerance)


def assert_all_close(found, expected, tolerance):
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, tolerance)


def loss(function):
    return lambda *arrays: (function(*arrays) ** 2).sum()


def layer(x, w, bias):
    return weft.jax.contract(
        "mk,kn->mn", x, w, epilogue=lambda s, bias: jax.nn.gelu(s + bias), operands={"bias": ("n", bias)}
    )


def plain_layer(x, w, bias):
    return jax.nn.gelu(x @ w + bias)


def prologues(x, w, bias):
    """Functions of both operands, coordinates, and a mode that one operand alone has."""
    return weft.jax.contract(
        "amk,kn->nm", x[None], w, a_fn=jnp.tanh, b_fn=lambda b, j: jnp.where(j > 3, b, 2.0 * b),
        epilogue=lambda s, i, bias: jax.nn.silu(s) * bias + i, operands={"bias": ("n", bias)},
        indices={"i": "m", "j": "n"},
    )  # fmt: skip


def plain_prologues(x, w, bias):
    scaled = jnp.where(jnp.arange(w.shape[1]) > 3, w, 2.0 * w)
    return (jax.nn.silu(jnp.tanh(x) @ scaled) * bias + jnp.arange(x.shape[0])[:, None]).T


@pytest.mark.parametrize(("ours", "plain"), [(layer, plain_layer), (prologues, plain_prologues)], ids=["layer", "both"])
def test_contract_under_transformations(ours, plain):
    x, w, bias, many, tangent = drawn(0, (5, 7), (7, 9), (9,), (3, 5, 7), (5, 7))
    assert_close(ours(x, w, bias), plain(x, w, bias))
    assert_close(jax.jit(ours)(x, w, bias), plain(x, w, bias))
    each = (0, 1, 2)
    assert_all_close(jax.jit(jax.grad(loss(ours), each))(x, w, bias), jax.grad(loss(plain), each)(x, w, bias), 1e-3)
    places = (0, None, None)
    assert_close(jax.vmap(ours, places)(many, w, bias), jax.vmap(plain, places)(many, w, bias))
    per_example = jax.jit(jax.vmap(jax.grad(loss(ours), 1), places))
    assert_close(per_example(many, w, bias), jax.vmap(jax.grad(loss(plain), 1), places)(many, w, bias), 1e-3)
    given = (x, w, bias), (tangent, jnp.zeros_like(w), bias)
    assert_close(jax.jvp(ours, *given)[1], jax.jvp(plain, *given)[1], 1e-3)


def test_programs_that_are_not_compiled():
    x, w, bias = drawn(17, (2, 3), (3, 4), (4,))
    with jax.disable_jit():
        assert_close(layer(x, w, bias), plain_layer(x, w, bias))
        assert_close(jax.grad(loss(layer))(x, w, bias), jax.grad(loss(plain_layer))(x, w, bias), 1e-3)


def test_second_derivatives():
    x, w, bias = drawn(1, (2, 3), (3, 4), (4,))
    second, expected = (jax.hessian(loss(function))(x, w, bias) for function in (layer, plain_layer))
    assert_close(second, expected, 1e-2)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ab,bc,cd->ad", ((3, 4), (4, 5), (5, 2))), ("ii->i", ((4, 4),)), ("ij->", ((4, 3),)),
        ("iij,jk->k", ((3, 3, 2), (2, 5))),
        ("ij,kj->ik", ((1, 3), (4, 3))), ("ij,jk->ik", ((4, 1), (3, 5))), ("...ij,jk->...ik", ((2, 3, 4), (4, 5))),
        ("ij,jk->ik", ((0, 3), (3, 2))), ("ij,jk->ik", ((2, 0), (0, 2))), ("i,i->", ((6,), (6,))),
    ],
)  # fmt: skip
def test_einsum(equation, shapes):
    arrays = drawn(2, *shapes)
    assert_close(weft.jax.einsum(equation, *arrays), jnp.einsum(equation, *arrays))
    for at in range(len(arrays)):
        found = jax.grad(loss(lambda *x: weft.jax.einsum(equation, *x)), at)(*arrays)
        assert_close(found, jax.grad(loss(lambda *x: jnp.einsum(equation, *x)), at)(*arrays), 1e-3)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.complex64, jnp.int32, jnp.bool_])
def test_types(dtype):
    x, w = (value.astype(dtype) for value in drawn(3, (4, 6), (6, 5)))
    words = {"algebra": "or_and"} if dtype == jnp.bool_ else {}
    found = jax.jit(lambda x, w: weft.jax.contract("mk,kn->mn", x, w, **words))(x, w)
    expected = np.asarray(x).astype(np.complex128 if dtype == jnp.complex64 else np.float64)
    expected = expected @ np.asarray(w).astype(expected.dtype)
    assert found.dtype == dtype
    expected = (expected > 0) if dtype == jnp.bool_ else expected
    np.testing.assert_allclose(np.asarray(found).astype(expected.dtype), expected, rtol=2e-2, atol=6e-2)


def test_gradients_of_complex_and_of_wider_results():
    x, w = (a + 1j * b for a, b in zip(drawn(4, (3, 4), (4, 2)), drawn(5, (3, 4), (4, 2)), strict=True))
    ours, plain = (lambda x, w, product=product: (abs(product(x, w)) ** 2).sum() for product in (
        lambda x, w: weft.jax.contract("mk,kn->mn", x, w), jnp.matmul))  # fmt: skip
    for at in range(2):
        assert_close(jax.grad(ours, at)(x, w), jax.grad(plain, at)(x, w), 1e-3)
    half = [value.astype(jnp.float16) for value in drawn(6, (3, 4), (4, 2))]
    grad = jax.grad(lambda x, w: weft.jax.contract("mk,kn->mn", x, w, out_dtype=jnp.float32).sum())(*half)
    assert_close(grad, jnp.broadcast_to(half[1].sum(1), (3, 4)), 1e-2)


def test_several_results_and_another_algebra():
    x, w = drawn(7, (4, 3), (3, 5))
    total, positive = weft.jax.contract("mk,kn->mn", x, w, epilogue=lambda s: (s, jnp.maximum(s, 0.0)))
    assert_close(total, x @ w)
    assert_close(positive, jax.nn.relu(x @ w))
    far = lambda x, w: weft.jax.contract("mk,kn->mn", x, w, algebra="max_plus")  # noqa: E731
    plain = lambda x, w: (x[:, :, None] + w[None]).max(1)  # noqa: E731
    assert_close(far(x, w), plain(x, w))
    assert_close(jax.grad(loss(far))(x, w), jax.grad(loss(plain))(x, w))


def test_network():
    a, b, c, many = drawn(8, (3, 4), (4, 5), (5, 2), (6, 3, 4))
    ours, plain = (lambda a, b, c: weft.jax.network("ab,bc,cd->ad", a, b, c)), (lambda a, b, c: a @ b @ c)
    assert_close(jax.jit(ours)(a, b, c), plain(a, b, c))
    each = (0, 1, 2)
    assert_all_close(jax.grad(loss(ours), each)(a, b, c), jax.grad(loss(plain), each)(a, b, c), 1e-3)
    places = (0, None, None)
    assert_close(jax.vmap(ours, places)(many, b, c), plain(many, b, c))
    found = jax.vmap(jax.grad(loss(ours), 1), places)(many, b, c)
    assert_close(found, jax.vmap(jax.grad(loss(plain), 1), places)(many, b, c), 1e-3)
    with pytest.raises(UnsupportedError, match="has one derivative, in reverse mode"):
        jax.hessian(loss(ours))(a, b, c)


def test_attention():
    q, k, v, many = drawn(9, (2, 6, 3, 4), (2, 6, 3, 4), (2, 6, 3, 5), (2, 2, 6, 3, 4))
    mask = jnp.tril(jnp.ones((6, 6), bool))

    def ours(q, k, v, mask):
        between = lambda s, mask: weft.jax.softmax(jnp.where(mask, s / 2, -jnp.inf), "k")  # noqa: E731
        return weft.jax.cascade(
            "bqhd,bkhd->bqhk, bqhk,bkhe->bqhe", q, k, v, between=between, operands={"mask": ("qk", mask)}
        )

    def plain(q, k, v, mask):
        scores = jnp.where(mask[None, :, None], jnp.einsum("bqhd,bkhd->bqhk", q, k) / 2, -jnp.inf)
        return jnp.einsum("bqhk,bkhe->bqhe", jax.nn.softmax(scores), v)

    assert_close(jax.jit(ours)(q, k, v, mask), plain(q, k, v, mask))
    each = (0, 1, 2)
    found, expected = (jax.jit(jax.grad(loss(call), each))(q, k, v, mask) for call in (ours, plain))
    assert_all_close(found, expected, 1e-3)
    places = (0, None, None, None)
    assert_close(jax.vmap(ours, places)(many, k, v, mask), jax.vmap(plain, places)(many, k, v, mask))


def test_reductions_alone():
    x, w = drawn(10, (4, 6), (5, 6))
    found = weft.jax.cascade("td,vd->tv", x, w, between=lambda s: (weft.jax.logsumexp(s, "v"), weft.jax.amax(s, "v")))
    assert_close(found[0], jax.nn.logsumexp(x @ w.T, -1))
    assert_close(found[1], (x @ w.T).max(-1))


def test_equal_calls_are_one_custom_call():
    """JAX keeps compiled programs on disk by their text: it names what is computed, and nothing of this process."""
    x, w = drawn(11, (3, 4), (4, 5))

    def lowered(scale):
        call = lambda x, w: weft.jax.contract("mk,kn->mn", x, w, epilogue=lambda s: s * scale)  # noqa: E731
        return jax.jit(call).lower(x, w).as_text()

    assert lowered(2.0) == lowered(2.0)
    assert lowered(2.0) != lowered(3.0)


A, B = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32)


def product(a=A, b=B, **words):
    return weft.jax.contract("mk,kn->mn", a, b, **words)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: product(b=A), ShapeError, "label 'k' has extent 4 in operand 0 and 3"),
        (lambda: product(b=B.astype(np.float16)), DTypeError, "float32 and float16"),
        (lambda: product(alpha=2.0), ArgumentError, "'alpha': it is a term of the epilogue"),
        (lambda: product(optimise=1), ArgumentError, "no keyword 'optimise': it takes out_dtype"),
        (lambda: product(epilogue=lambda s: s if s > 0 else -s), FunctionError, "jnp.where"),
        (lambda: product(epilogue=lambda s: jnp.sort(s[None])[0]), FunctionError, "primitive 'sort'"),
        (
            lambda: product(epilogue=lambda s: jax.lax.fori_loop(0, 3, lambda _, x: 2 * x, s)),
            FunctionError, "primitive 'scan'",
        ),
        (lambda: product(epilogue=lambda s: {"double": s}), FunctionError, "a tuple of values, not dict"),
        (lambda: product(epilogue="gelu"), FunctionError, "no function of jax.numpy: 'str' object is not callable"),
        (lambda: product(epilogue=lambda s, x: s, operands={"x": A}), FunctionError, "'x' is a pair .modes, tensor."),
        (lambda: product(out_dtype="float64"), DTypeError, "a result of float64 is for programs with .*x64"),
        (lambda: product(invariant=3), ArgumentError, "invariant is text or a sequence of labels, not int"),
        (lambda: weft.jax.softmax(jnp.asarray(A), "k"), FunctionError, "weft.jax.softmax is for functions of"),
        (lambda: weft.jax.einsum("ab,bc,cd->ad", A, B, A), ShapeError, "'c' has extent 5 in operand 1 and 3 in"),
        (lambda: weft.jax.einsum("ab,bc,cd->ad", A, B, B.T, invariant="a"), UnsupportedError, "two arrays alone"),
        (lambda: weft.jax.network("ab,bc->ac", A, B, reuse=True), UnsupportedError, "XLA says not which arrays"),
        (lambda: weft.jax.network("ab,bc->ac", A, B, strip_exponent=True), UnsupportedError, "it has one result"),
        (lambda: product(epilogue=lambda s: s + jnp.asarray(A)), FunctionError, "elements alone"),
        (lambda: product(operands={"x": ("m", A[:, 0])}), FunctionError, "no function takes 'x'"),
        (lambda: product(invariant="k"), NotationError, "invariant names 'k'"),
        (lambda: weft.jax.einsum("ab,bc,cd->ad", A, B, B.T, a_fn=jnp.tanh), UnsupportedError, "two arrays alone"),
        (lambda: weft.jax.network("ab,bc->ac", A, A), ShapeError, "label 'b' has extent 4 in operand 0"),
        (
            lambda: weft.jax.cascade("id,jd->ij", A, A, between=lambda s: weft.jax.softmax(s, "z")),
            NotationError, "reduces over 'z'",
        ),
    ],
)  # fmt: skip
def test_errors_come_where_jax_traces(call, error, message):
    with pytest.raises(error, match=message):
        jax.jit(call)()


def test_calls_of_torch_name_those_of_jax():
    with pytest.raises(UnsupportedError, match=r"under transformations of JAX call weft\.jax"):
        jax.jit(lambda a: weft.contract("mk,kn->mn", a, B))(A)


def test_arrays_of_jax_have_no_results_of_64_bits():
    a = jnp.full(700_000, 127, jnp.int8)
    for words in ({"out_dtype": "int64"}, {"out_dtype": "float64"}):
        with pytest.raises(DTypeError, match=r"is for programs with .*jax_enable_x64"):
            weft.contract("k,k->", a, a, **words)
    found, where = weft.contract("mk,kn->mn", jnp.asarray(A), jnp.asarray(B), algebra="max_plus", return_arg=True)
    assert found.dtype == jnp.float32
    assert where.tolist() == np.zeros((3, 5)).tolist()


def test_faults_of_a_run_are_errors_of_jax(monkeypatch):
    from weft.jax.contraction import ContractOperation

    def fail(*arguments):
        raise MemoryError("no room for it")

    monkeypatch.setattr(ContractOperation, "run", fail)
    with pytest.raises(jax.errors.JaxRuntimeError, match="MemoryError: no room for it"):
        weft.jax.contract("mk,kn->nm", A, B, epilogue=lambda s: s - 7).block_until_ready()


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("call", [
    lambda a, b: weft.jax.contract("mk,kn->mn", a, b, epilogue=lambda v: 2 * v),
    lambda a, b: weft.jax.network("mk,kn,nl->ml", a, b, 2 * jnp.eye(5)),
    lambda a, b: weft.jax.cascade("mk,kn->mn", a, b, between=lambda v: 2 * v),
])  # fmt: skip
def test_a_program_that_is_first_run_within_autocast_is_as_any_other(call):
    a, b = drawn(11, (5, 37), (37, 5))
    with torch.autocast("cpu", torch.bfloat16):
        found = call(a, b)
    for each in (found, call(a, b)):
        assert_close(each, 2 * a @ b)


def test_the_library_of_handlers_is_kept_and_made_anew_where_it_is_damaged(monkeypatch, tmp_path):
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    built, build = [], custom_call._build_library
    monkeypatch.setattr(custom_call, "_build_library", lambda file: built.append(file) or build(file))
    for expected in (1, 1, 2):
        if expected == 2:
            kept = next((tmp_path / "jax").glob("*.json"))
            kept.write_bytes(kept.read_bytes()[:-100])
        assert custom_call._handler_library.__wrapped__().weft_handler
        assert len(built) == expected


@pytest.mark.keeps
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_calls_of_buffers_that_come_again_are_launched_without_python(monkeypatch):
    """Python runs the first two calls of the same buffers; few more, as places of others may be theirs."""
    calls, read = [], custom_call._places
    monkeypatch.setattr(custom_call, "_places", lambda *given: calls.append(given) or read(*given))
    product = jax.jit(lambda x, w: weft.jax.contract("mk,kn->mn", x, w, backend="cpu", precision="ieee"))
    x, w = drawn(3, (31, 17), (17, 23))
    came, begun = Counter(), len(calls)

    def check():
        result = product(x, w).block_until_ready()
        came[x.unsafe_buffer_pointer(), result.unsafe_buffer_pointer()] += 1
        assert_close(result, np.asarray(x) @ np.asarray(w), 1e-3)

    for _ in range(300):
        check()
    for at in range(40):  # others between them, in memory that was others'
        x = x + at
        check()
    assert max(came.values()) > 2
    assert (len(calls) - begun) // 2 <= sum(min(count, 2) for count in came.values()) + 10  # operands and results


def shifted(value):
    shift = jnp.float32(value)

    @jax.jit
    def inner(s):
        return s - shift

    return lambda s: jax.jit(inner)(s) * 2


def test_values_that_inner_functions_close_over_are_read_in_each_call():
    x, w = drawn(5, (4, 3), (3, 6))
    for value in (1.0, 2.0, -3.0, 1.0):
        for _ in range(3):  # buffers that come again are bound
            assert_close(weft.jax.contract("mk,kn->mn", x, w, epilogue=shifted(value)), (x @ w - value) * 2)


def test_functions_are_told_apart_by_the_names_that_they_take():
    x, w, u, v = drawn(12, (4, 3), (3, 6), (4,), (4,))
    given = {"u": ("m", u), "v": ("m", v)}
    for own, other in (("u", "v"), ("v", "u")):
        a_fn, epilogue = ((lambda a, u: a + u), (lambda s, v: s * v)) if own == "u" else (
            (lambda a, v: a + v), (lambda s, u: s * u))  # fmt: skip
        found = weft.jax.contract("mk,kn->mn", x, w, a_fn=a_fn, epilogue=epilogue, operands=given)
        assert_close(found, (x + given[own][1][:, None]) @ w * given[other][1][:, None])


@pytest.mark.parametrize(
    "function",
    [
        lambda s: jnp.where(jnp.less(2.0, s), s, 0.0), lambda s: jnp.arctan2(1.0, s), lambda s: jnp.arctan2(s, 1.0),
        lambda s: jnp.fmod(7.0, 1.5 + jnp.abs(s)), lambda s: s // 2.0, lambda s: jnp.round(s, 1),
        lambda s: jax.lax.round(s * 2) / 2, lambda s: jnp.where(True, s, 0.0),
        lambda s: jax.lax.clamp(-1.0, s, jnp.abs(s)), lambda s: 7 // (1 + jnp.abs(s).astype(jnp.int32)) * s,
        lambda s: jax.lax.select_n(jnp.where(s > 0, 1, 0) + jnp.where(s > 1, 1, 0), s, s * 2, s * 3),
        lambda s: 1.5,
    ],
)  # fmt: skip
def test_numbers_stand_anywhere_in_a_function(function):
    x, w = drawn(13, (4, 3), (3, 6))
    ours = lambda x: weft.jax.contract("mk,kn->mn", x, w, epilogue=function)  # noqa: E731
    plain = lambda x: jnp.broadcast_to(function(x @ w), (4, 6)).astype(x.dtype)  # noqa: E731
    assert_close(ours(x), plain(x))
    assert_close(jax.grad(loss(ours))(x), jax.grad(loss(plain))(x), 1e-3)


def test_gradients_of_complex_networks_and_of_real_operands_among_complex_ones():
    real, other = drawn(14, (3, 4), (4, 5))
    x, w = real + 1j * real[::-1], other - 2j * other
    for call in (weft.jax.contract, weft.jax.network, weft.jax.einsum):
        pairs = ((x, w), (real, w), (x, other)) if call is not weft.jax.network else ((x, w),)
        for pair in pairs:
            ours = lambda a, b, call=call: (jnp.abs(call("mk,kn->mn", a, b)) ** 2).sum()  # noqa: E731
            for at in range(2):
                expected = jax.grad(lambda a, b: (jnp.abs(a @ b) ** 2).sum(), at)(*pair)
                assert_close(jax.grad(ours, at)(*pair), expected, 1e-3)


@pytest.mark.parametrize("algebra", ["max_plus", "min_plus", "min_max", "log"])
def test_einsum_of_one_array_and_of_three_in_another_algebra(algebra):
    reduced = {"max_plus": jnp.max, "min_plus": jnp.min, "min_max": jnp.min, "log": jax.nn.logsumexp}[algebra]
    combine = jnp.maximum if algebra == "min_max" else jnp.add
    x, w, v = drawn(15, (4, 3), (3, 6), (6, 2))
    assert_close(weft.jax.einsum("ij->i", x, algebra=algebra), reduced(x, 1))
    ours = lambda x: weft.jax.einsum("ij,jk,kl->il", x, w, v, algebra=algebra)  # noqa: E731
    first = lambda x: reduced(combine(x[:, :, None], w), 1)  # noqa: E731
    plain = lambda x: reduced(combine(first(x)[:, :, None], v), 1)  # noqa: E731
    assert_close(ours(x), plain(x))
    assert_close(jax.grad(loss(ours))(x), jax.grad(loss(plain))(x))


def test_types_of_intermediates_are_those_of_networks():
    x, w, v = jnp.full((2, 4), 200.0), jnp.full((4, 5), 200.0), jnp.full((5, 3), 1e-4)
    halves = [each.astype(jnp.float16) for each in (x, w, v)]
    found = weft.jax.einsum("ab,bc,cd->ad", *halves)  # intermediates leave the range of float16
    assert found.dtype == jnp.float16
    np.testing.assert_allclose(found, x @ w @ v, rtol=2e-3)
    assert weft.jax.einsum("ab,bc,cd->ad", *halves, out_dtype=jnp.float32).dtype == jnp.float32
    with pytest.raises(DTypeError, match="3 arrays, one of them int8: intermediate results do not fit"):
        weft.jax.einsum("ab,bc,cd->ad", *[jnp.ones((2, 2), jnp.int8)] * 3, out_dtype="int32")
    assert_close(weft.jax.einsum(x, (0, 1), w, (1, 2), (0, 2)), x @ w)
    several = weft.jax.contract("mk,kn->mn", x, w, epilogue=lambda s: (s, s), out_dtype=(jnp.bfloat16, None))
    assert [each.dtype for each in several] == [jnp.bfloat16, jnp.float32]


def test_algebras_compute_what_they_did_when_the_call_was_traced():
    x, w = drawn(16, (4, 3), (3, 6))
    box = [1.0]
    distance = weft.Algebra(lambda p, q: (p - q).abs() * box[0], lambda p, q: p + q, 0.0, "distance")
    compiled = jax.jit(lambda x, w: weft.jax.contract("mk,kn->mn", x, w, algebra=distance))
    right = jnp.abs(x[:, :, None] - w).sum(1)
    for value in (1.0, 2.0, 1.0):
        box[0] = value
        for _ in range(4):  # Python's calls, and those that are launched from C
            assert_close(compiled(x, w), right)
            assert_close(weft.jax.contract("mk,kn->mn", x, w, algebra=distance), right * value)
