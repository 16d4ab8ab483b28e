"""`weft.jax` on a GPU: calls of the same and of other buffers, alone, and many in a program, which XLA records."""

from __future__ import annotations

import os

import numpy as np
import pytest

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other processes need memory, too
jax = pytest.importorskip("jax")
jnp = jax.numpy

import weft.jax  # noqa: E402

pytestmark = pytest.mark.gpu


def drawn(seed, *shapes):
    draw = np.random.default_rng(seed)
    return [draw.standard_normal(shape, np.float32) for shape in shapes]


def bent(x):
    return jnp.where(x > 0, x, 0.25 * x)


def bent_by_numpy(x):
    return np.where(x > 0, x, 0.25 * x)


def expected(equation, a, b):
    return bent_by_numpy(np.einsum(equation, bent_by_numpy(a.astype(np.float64)), b.astype(np.float64)))


def assert_right(found, equation, a, b):
    bound = np.einsum(equation, np.abs(a).astype(np.float64), np.abs(b).astype(np.float64))
    assert np.all(np.abs(np.asarray(found) - expected(equation, a, b)) <= 1e-5 * bound + 1e-6)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("mk,kn->mn", ((33, 65), (65, 40))),
        ("k,kn->n", ((70000,), (70000, 3))),  # programs share the sum
        ("adbc,ecd->eab", ((6, 7, 9, 5), (11, 5, 7))),
    ],
)
@pytest.mark.parametrize("calls", [1, 12], ids=["alone", "many"])
def test_calls_of_other_values_and_buffers(equation, shapes, calls):
    program = jax.jit(lambda many, b: [weft.jax.contract(equation, a, b, a_fn=bent, epilogue=bent) for a in many])
    kept = []
    for turn in range(6):  # buffers come again, as results are dropped, and others come
        *many, b = drawn(turn, *[shapes[0]] * calls, shapes[1])
        found = program([jnp.asarray(each) for each in many], jnp.asarray(b))
        if turn % 2:
            kept.append(found)
        for a, d in zip(many, found, strict=True):
            assert_right(d, equation, a, b)
    for turn, found in zip((1, 3, 5), kept, strict=True):  # nobody wrote to results that are held
        *many, b = drawn(turn, *[shapes[0]] * calls, shapes[1])
        for a, d in zip(many, found, strict=True):
            assert_right(d, equation, a, b)


def test_each_call_of_a_program_takes_what_the_one_before_made():
    def chained(x, w):
        for _ in range(8):
            x = weft.jax.contract(
                "mk,kn->mn", x, w, epilogue=lambda s, c: jnp.tanh(s) + c, operands={"c": ("m", x[:, 0])}
            )
        return x

    program = jax.jit(chained)
    for turn in range(4):
        x, w = drawn(turn, (48, 48), (48, 48))
        wanted, w = x.astype(np.float64), w / 7
        for _ in range(8):
            wanted = np.tanh(wanted @ w.astype(np.float64)) + wanted[:, :1]
        np.testing.assert_allclose(np.asarray(program(jnp.asarray(x), jnp.asarray(w))), wanted, atol=1e-3)


def test_programs_with_gradients_loops_networks_and_empty_results():
    a, b, c = drawn(7, (16, 24), (24, 32), (32, 8))

    def loss(a, b, c):
        total = 0.0
        for _ in range(6):
            total += (weft.jax.contract("mk,kn->mn", a, b, epilogue=jnp.tanh) ** 2).sum()
        return total + weft.jax.network("ab,bc,cd->ad", a, b, c).sum()

    def plain(a, b, c):
        return (
            6 * (jnp.tanh(jnp.matmul(a, b, precision="highest")) ** 2).sum()
            + jnp.linalg.multi_dot([a, b, c], precision="highest").sum()
        )

    given = [jnp.asarray(each) for each in (a, b, c)]
    for _ in range(3):
        for found, wanted in zip(
            jax.jit(jax.grad(loss, (0, 1, 2)))(*given), jax.grad(plain, (0, 1, 2))(*given), strict=True
        ):
            np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), atol=1e-3, rtol=1e-3)
        nothing = jax.jit(lambda x, y: [weft.jax.contract("mk,kn->mn", x, y, epilogue=bent) for _ in range(6)])
        assert all(each.shape == (0, 32) for each in nothing(given[0][:0], given[1]))
        scanned = jax.lax.scan(
            lambda x, _: (weft.jax.contract("mk,kn->mn", x, jnp.eye(24) * 0.5), None), given[0], None, 5
        )
        np.testing.assert_allclose(np.asarray(scanned[0]), a / 32, rtol=1e-5)
