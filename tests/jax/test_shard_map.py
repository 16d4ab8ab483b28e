"""Contractions of the parts of arrays that `jax.shard_map` gives to each device."""

import subprocess
import sys

import pytest

pytest.importorskip("jax")

PROGRAM = """
import jax
jax.config.update("jax_num_cpu_devices", 2)
import jax.numpy as jnp
import numpy as np
import weft.jax
from jax.sharding import Mesh, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("d",))
x, w = (jax.random.normal(jax.random.key(at), shape) for at, shape in enumerate(((4, 6), (6, 3))))
softmax = lambda s: weft.jax.softmax(s, "n")
ways = {
    "plain": (lambda x, w: weft.jax.contract("mk,kn->mn", x, w), jnp.matmul),
    "epilogue": (lambda x, w: weft.jax.contract("mk,kn->mn", x, w, epilogue=jnp.tanh), lambda x, w: jnp.tanh(x @ w)),
    "network": (lambda x, w: weft.jax.network("mk,kn->mn", x, w), jnp.matmul),
    "cascade": (lambda x, w: weft.jax.cascade("mk,kn->mn, mn,ln->ml", x, w, w, between=softmax),
                lambda x, w: jax.nn.softmax(x @ w) @ w.T),
}
for name, (ours, plain) in ways.items():
    weights = jnp.sin(jnp.arange(plain(x, w).size).reshape(plain(x, w).shape))
    over = jax.shard_map(ours, mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d"))  # w is the same everywhere
    np.testing.assert_allclose(over(x, w), plain(x, w), atol=1e-5)
    found, right = (jax.jit(jax.grad(lambda *given: (f(*given) * weights).sum(), (0, 1)))(x, w) for f in (over, plain))
    for one, other in zip(found, right):
        np.testing.assert_allclose(one, other, atol=1e-5, err_msg=name)
print("as without devices")
"""


@pytest.mark.slow
def test_gradients_are_added_up_over_devices() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False)
    assert "as without devices" in run.stdout, run.stderr
