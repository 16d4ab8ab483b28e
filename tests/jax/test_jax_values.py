"""Functions of `jax.numpy` have JAX's values out of range; no program keeps a state of torch in which it first ran."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch

jax = pytest.importorskip("jax")
jnp = jax.numpy

import weft  # noqa: E402
import weft.jax  # noqa: E402
from weft.api import lookup  # noqa: E402
from weft.plans.resolving import resolved  # noqa: E402

VALUES = (
    np.nan, np.inf, -np.inf, 3e9, -3e9, 2.0**31, 2.0**63, -(2.0**63), 1e19, -1e19, 200.0, -200.0, 300.7, 127.0, 127.9,
    128.0, -128.9, 255.5, 32767.6, -1.5, -0.5, 464.0, 465.0, 479.55, -1e4, 61440.0, 7e4,
)  # fmt: skip
KINDS = ("int8", "uint8", "int16", "int32", "bool", "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16")
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sign": jnp.sign, **{kind: lambda v, kind=kind: v.astype(kind).astype("float32") for kind in KINDS}
}  # fmt: skip
EQUATION = "ik,kj->ij"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_out_of_range(name: str) -> None:
    x, one = jnp.asarray(VALUES, "float32"), jnp.ones(1, "float32")
    function = FUNCTIONS[name]
    for fused in (
        jax.jit(lambda x: weft.jax.contract("i,j->ij", x, one, epilogue=function)[:, 0]),
        jax.jit(lambda x: weft.jax.contract("i,j->ij", x, one, epilogue=function, specialize="now")[:, 0]),
    ):
        for _ in range(3):
            np.testing.assert_array_equal(np.asarray(fused(x)), np.asarray(jax.jit(function)(x)))


def program(name: str) -> Callable[..., Any]:
    """A new one each time: what an earlier one has bound or planned is another's."""
    keep = len(name)
    return {
        "contract": lambda a, b: weft.jax.contract(EQUATION, a, b),
        "function": lambda a, b: weft.jax.contract(EQUATION, a, b, epilogue=lambda s: jnp.tanh(s) * keep),
        "einsum": lambda a, b: weft.jax.einsum("ab,bc,cd->da", a, b, b),
        "network": lambda a, b: weft.jax.network("ab,bc,cd->da", a, b, b),
        "gradient": jax.grad(lambda a, b: (weft.jax.contract(EQUATION, a, b, epilogue=lambda s: s * s)).sum()),
    }[name]


MOMENTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
}


@pytest.mark.parametrize("name", ["contract", "function", "einsum", "network", "gradient"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_first_run_within_a_state_of_torch(name: str, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for word in ("WEFT_TIERS", "WEFT_SELFTEST", "WEFT_GUARD", "WEFT_KERNELS"):
        monkeypatch.delenv(word, raising=False)
    size = (200 if name == "network" else 30) + 2 * list(MOMENTS).index(moment)  # of no other test
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, size)).astype(np.float32) for _ in range(2))
    wanted = {
        "contract": lambda: a @ b, "function": lambda: np.tanh(a @ b) * len(name), "einsum": lambda: (a @ b @ b).T,
        "network": lambda: (a @ b @ b).T, "gradient": lambda: 2 * (a @ b) @ b.T,
    }[name]()  # fmt: skip
    made, operands = jax.jit(program(name)), (jnp.asarray(a), jnp.asarray(b))
    with MOMENTS[moment]():  # results are copied and gone, so that later ones come to lie in their places
        within = [np.array(made(*operands)) for _ in range(3)]
    for found in (*within, *(np.array(made(*operands)) for _ in range(12))):
        assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()


def test_a_precision_of_the_moment_is_none_of_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = []
    monkeypatch.setattr(lookup, "resolved", lambda *given: requests.append(resolved(*given)) or requests[-1])
    a = np.ones((38, 38), np.float32)
    made = jax.jit(lambda a: weft.jax.contract(EQUATION, a, a)).lower(a).compile()
    with weft.precision("ieee_bound"):
        made(a)
    (request,) = requests
    assert not request.arithmetic.split
