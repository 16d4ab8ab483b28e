"""JAX's switches for debugging, and programs that leave their process."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import weft.jax  # noqa: E402

X, W = np.ones((4, 3), np.float32), np.ones((3, 5), np.float32)
BAD = X.copy()
BAD[0, :2] = np.inf, -np.inf  # the sum is no number


def product(x: Any, w: Any) -> Any:
    return weft.jax.contract("mk,kn->mn", x, w, epilogue=lambda total: total * total + 1)


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "eager": product,
    "jit": jax.jit(product),
    "grad": jax.grad(lambda x, w: product(x, w).sum()),
    "jit of grad": jax.jit(jax.grad(lambda x, w: product(x, w).sum())),
    "vmap": jax.vmap(lambda x, w: product(x[None], w), in_axes=(0, None)),
    "einsum": lambda x, w: weft.jax.einsum("mk,kn,ln->ml", x, w, w.T @ w),
}


@pytest.fixture
def debug_nans() -> Iterator[None]:
    with jax.debug_nans(True):
        yield


@pytest.mark.parametrize("name", CALLS)
def test_debug_nans_names_weft(name: str, debug_nans: None) -> None:
    w = W if name != "einsum" else np.ones((3, 3), np.float32)
    assert np.isfinite(CALLS[name](X, w)).all()
    with pytest.raises(FloatingPointError, match=r"invalid value \(nan\) encountered in weft"):
        CALLS[name](BAD, w)


def test_debug_infs() -> None:
    large = np.full((4, 3), 1e38, np.float32)
    with jax.debug_infs(True), pytest.raises(FloatingPointError, match=r"\(inf\) encountered in weft"):
        product(large, W)
    assert np.isinf(product(large, W)).all()


def test_a_value_that_is_not_forbidden_passes(debug_nans: None) -> None:
    assert np.isinf(product(np.full((4, 3), np.inf, np.float32), W)).all()
    assert (weft.jax.contract("mk,kn->mn", X.astype(np.int32), W.astype(np.int32)) == 3).all()


def test_export_refuses_as_the_page_says() -> None:
    from jax import export

    with pytest.raises(ValueError, match="custom calls whose targets have no compatibility guarantees"):
        export.export(jax.jit(product))(X, W)


PROGRAM = """
import pickle, sys, numpy as np, jax, jax.numpy as jnp, weft.jax
from jax.experimental.serialize_executable import deserialize_and_load
x, w = np.ones((4, 3), np.float32), np.ones((3, 5), np.float32)
with open(sys.argv[1], "rb") as stream:
    saved = pickle.load(stream)
def said(load):
    try:
        return float(load()(x, w).sum())
    except Exception as error:
        return "No FFI handler" in str(error)
print(said(lambda: deserialize_and_load(*saved)))
jax.jit(lambda x, w: weft.jax.contract("mk,kn->mn", x, w, epilogue=lambda total: total * total + 1)).lower(x, w)
print(said(lambda: deserialize_and_load(*saved)))
"""


def test_a_saved_executable_runs_where_its_calls_were_traced(tmp_path: Path) -> None:
    from jax.experimental.serialize_executable import serialize

    file = tmp_path / "executable"
    file.write_bytes(pickle.dumps(serialize(jax.jit(product).lower(X, W).compile())))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(file)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.split() == ["True", "200.0"], done.stderr
