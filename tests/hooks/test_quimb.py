"""quimb's circuits and networks, contracted by weft, against a simulation of the whole state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import weft.hooks

qtn = pytest.importorskip("quimb.tensor")
pytestmark = pytest.mark.filterwarnings("ignore")


def dense(gates: Any, qubits: int) -> np.ndarray:
    """The state after all gates, by NumPy alone."""
    state = np.zeros((2,) * qubits, complex)
    state[(0,) * qubits] = 1
    for gate in gates:
        sites = list(gate.qubits)
        matrix = np.asarray(gate.array).reshape((2,) * (2 * len(sites)))
        state = np.tensordot(matrix, state, (range(len(sites), 2 * len(sites)), sites))
        state = np.moveaxis(state, range(len(sites)), sites)
    return state


@pytest.mark.parametrize("qubits", [10, 14, 18])
def test_circuits(qubits: int) -> None:
    rng = np.random.default_rng(qubits)
    circuit = qtn.Circuit(qubits, dtype="complex128", to_backend=weft.hooks.to_backend("cpu"), convert_eager=True)
    for layer in range(3):
        for site in range(qubits):
            circuit.apply_gate("U3", *rng.uniform(0, 2 * np.pi, 3), site, gate_round=layer)
        for site in range(layer % 2, qubits - 1, 2):
            circuit.apply_gate("CZ" if rng.random() < 0.5 else "ISWAP", site, site + 1, gate_round=layer)
    state = dense(circuit.gates, qubits)
    bound = 1e-12
    bits = "".join(rng.choice(["0", "1"], qubits))
    where = (qubits // 2, qubits // 2 + 1)
    with weft.hooks.implementing():
        amplitude = complex(circuit.amplitude(bits, dtype="complex128"))
        density = np.asarray(circuit.partial_trace(where, dtype="complex128"))
    assert abs(amplitude - state[tuple(map(int, bits))]) < bound
    moved = np.moveaxis(state, where, (0, 1)).reshape(4, -1)
    np.testing.assert_allclose(density, moved @ moved.conj().T, atol=bound)


def test_a_network_of_quimb() -> None:
    network = qtn.TN2D_rand(4, 4, 3, seed=1, dtype="float64")
    wanted = network.contract()
    network.apply_to_arrays(weft.hooks.to_backend("cpu"))
    assert isinstance(next(iter(network)).data, torch.Tensor)
    found = network.contract(implementation=weft.hooks.cotengra())
    assert float(found) == pytest.approx(float(wanted), rel=1e-10)
    assert float(network.contract(backend="weft")) == pytest.approx(float(wanted), rel=1e-10)


def test_the_norm_of_a_peps_with_its_gradients() -> None:
    state = qtn.PEPS.rand(3, 3, bond_dim=3, seed=3, dtype="float64")
    arrays, skeleton = qtn.pack(state)

    def derived(**how: Any) -> tuple[torch.Tensor, dict[Any, torch.Tensor]]:
        leaves = {name: torch.tensor(array, requires_grad=True) for name, array in arrays.items()}
        psi = qtn.unpack(leaves, skeleton)
        norm = (psi.H & psi).contract(all, optimize="greedy", **how)
        norm.log().backward()
        return norm.detach(), {name: leaf.grad for name, leaf in leaves.items()}

    norm, gradients = derived()
    found, ours = derived(implementation=weft.hooks.cotengra())
    torch.testing.assert_close(found, norm, rtol=1e-12, atol=0)
    assert gradients.keys() == ours.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-10, atol=1e-12)
        # The norm has every tensor twice, so its logarithm is of degree two in each.
        assert float((ours[name] * torch.as_tensor(arrays[name])).sum()) == pytest.approx(2, rel=1e-9)


@pytest.mark.slow
def test_dmrg_of_quimb() -> None:
    """The sweeps with weft as cotengra's default end at the energy that quimb finds by itself."""
    hamiltonian = qtn.MPO_ham_heis(8)

    def energy() -> float:
        dmrg = qtn.DMRG2(hamiltonian, bond_dims=[8, 16, 32])
        dmrg.solve(tol=1e-8, verbosity=0)
        return float(np.real(dmrg.energy))

    wanted = energy()
    with weft.hooks.implementing(promote=True):
        assert energy() == pytest.approx(wanted, abs=1e-7)
