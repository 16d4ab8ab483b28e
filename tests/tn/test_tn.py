"""Tensor-network algorithms against exact diagonalisation, dense states and published values."""

from __future__ import annotations

import math

import pytest
import torch

import weft
from weft import tn
from weft.blocks import U1, Z2, Leg

DOUBLE = torch.float64


def test_canonical_forms() -> None:
    for dtype in (torch.float64, torch.complex128):
        state = tn.MPS.random(6, 2, 5, dtype=dtype, seed=1)
        dense = state.to_dense()
        assert float(torch.linalg.vector_norm(dense)) == pytest.approx(1)
        for center in (3, 5, 0):
            state.canonicalize(center)
            torch.testing.assert_close(state.to_dense(), dense)
            for at, tensor in enumerate(state.tensors):
                rows = tensor.reshape(-1, tensor.shape[-1]) if at < center else tensor.reshape(tensor.shape[0], -1).mH
                if at != center:
                    torch.testing.assert_close(rows.mH @ rows, torch.eye(rows.shape[1], dtype=dtype))


def test_expectation_values() -> None:
    state = tn.MPS.random(5, 2, 4, dtype=torch.complex128, seed=2)
    dense = state.to_dense().reshape(-1)
    z = torch.diag(torch.tensor([1.0, -1.0], dtype=torch.complex128))
    whole = torch.kron(torch.kron(torch.eye(4), z), torch.eye(4)).to(torch.complex128)
    torch.testing.assert_close(state.expectation(z, 2), dense.conj() @ whole @ dense)
    operator = tn.heisenberg(5, field=0.3, dtype=torch.complex128)
    torch.testing.assert_close(state.expectation(operator), dense.conj() @ operator.to_dense() @ dense)
    assert float(tn.MPS.product([0, 1, 0]).expectation(z.real, 1)) == -1
    with pytest.raises(weft.ShapeError, match="site 1 is in basis state 2, there are 2: 0 to 1"):
        tn.MPS.product([0, 2, 0])


@pytest.mark.parametrize("model", [tn.heisenberg, tn.ising])
def test_operators_are_the_sums_of_their_bonds(model: object) -> None:
    bonds = [tn.heisenberg_bond()] * 3 if model is tn.heisenberg else tn.ising_bonds(4)
    total = torch.zeros(16, 16, dtype=DOUBLE)
    for at, bond in enumerate(bonds):
        left, right = torch.eye(2**at, dtype=DOUBLE), torch.eye(2 ** (2 - at), dtype=DOUBLE)
        total += torch.kron(torch.kron(left, bond.reshape(4, 4)), right)
    torch.testing.assert_close(model(4).to_dense(), total)  # type: ignore[operator]


@pytest.mark.parametrize("operator", [tn.heisenberg(8), tn.ising(8, field=0.7)])
def test_dmrg_finds_the_lowest_energy_of_small_chains(operator: tn.MPO) -> None:
    exact = float(torch.linalg.eigvalsh(operator.to_dense())[0])
    found = tn.dmrg(operator, tn.MPS.random(8, 2, 4, seed=3), max_bond=16, sweeps=6)
    assert found.energy == pytest.approx(exact, abs=1e-9)
    assert float(found.state.expectation(operator)) == pytest.approx(exact, abs=1e-9)
    assert max(found.state.bonds) <= 16
    assert found.energies == sorted(found.energies, reverse=True) or max(found.errors) < 1e-10


UP, Z, X = (
    torch.tensor(rows, dtype=DOUBLE) for rows in ([[0, 1], [0, 0]], [[1, 0], [0, -1]], [[0, 1], [1, 0]])
)  # fmt: skip


def whole(sites: int, placed: dict[int, torch.Tensor]) -> torch.Tensor:
    total = torch.ones(1, 1, dtype=torch.complex128)
    for at in range(sites):
        total = torch.kron(total, placed.get(at, torch.eye(2)).to(torch.complex128).contiguous())
    return total


@pytest.mark.parametrize(
    ("terms", "bonds"),
    [
        ([(0.3, {0: UP, 4: UP.T}), (0.3, {4: UP, 0: UP.T}), (2.0, {})], [3, 3, 3, 3]),
        ([(1.0 / (1 + j - i), {i: Z, j: X}) for i in range(5) for j in range(i + 1, 5)], [5, 5, 4, 2]),
        ([(1.5, {1: Z, 2: X, 3: UP}), (-1j, {0: X, 2: X, 3: UP}), (1.0, {2: Z}), (1.0, {2: X})], [2, 2, 2, 1]),
    ],
)
def test_operators_from_terms(terms: list[tuple[complex, dict[int, torch.Tensor]]], bonds: list[int]) -> None:
    found = tn.MPO.from_terms(5, terms, dtype=torch.complex128)
    right = sum(factor * whole(5, placed) for factor, placed in terms)
    torch.testing.assert_close(found.to_dense(), right)
    assert [tensor.shape[-1] for tensor in found.tensors[:-1]] == bonds


def test_correlations_and_entropy() -> None:
    state = tn.MPS.random(5, 2, 4, dtype=torch.complex128, seed=7)
    state.tensors[2] = state.tensors[2] * 3  # not of norm 1
    state.center = None
    dense = state.to_dense().reshape(-1)
    dense = dense / torch.linalg.vector_norm(dense)
    found = state.correlations(UP, X)
    for i in range(5):
        for j in range(5):
            operator = whole(5, {i: UP}) @ whole(5, {j: X})
            torch.testing.assert_close(found[i, j], dense.conj() @ operator @ dense)
    for bond in range(4):
        weights = torch.linalg.svdvals(dense.reshape(2 ** (bond + 1), -1)).square()
        exact = -(weights * weights.clamp_min(1e-300).log()).sum()
        torch.testing.assert_close(state.entropy(bond), exact)
    singlet = tn.dmrg(tn.heisenberg(2), tn.MPS.product([0, 1]), max_bond=2).state
    assert float(singlet.entropy(0)) == pytest.approx(math.log(2))
    with pytest.raises(weft.ArgumentError, match="bond 4 of 4 bonds"):
        state.entropy(4)


def test_complex_operators_act_on_real_states() -> None:
    """The state's numbers are real, the operators' are not: nothing imaginary is lost."""
    x = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=DOUBLE)
    y = torch.tensor([[0, -1j], [1j, 0]], dtype=torch.complex128)
    ground = tn.dmrg(tn.heisenberg(6), tn.MPS.product([0, 1] * 3), max_bond=8).state
    torch.testing.assert_close(ground.correlations(y, y).real, ground.correlations(x, x))
    state = tn.MPS.random(4, 2, 4)
    dense = state.to_dense().reshape(-1).to(torch.complex128)
    for matrix in (y, torch.tensor([[0, 1j], [0, 0]])):
        whole = torch.kron(torch.kron(torch.eye(2), matrix), torch.eye(4)).to(torch.complex128)
        torch.testing.assert_close(state.expectation(matrix.to(torch.complex128), 1), dense.conj() @ whole @ dense)
    terms = [(sign, {i: a, i + 1: b}) for i in range(3) for sign, a, b in ((1.0, x, y), (-1.0, y, x))]
    spiral = tn.MPO.from_terms(4, terms, dtype=torch.complex128)
    exact = torch.linalg.eigvalsh(spiral.to_dense())[0]
    found = tn.dmrg(spiral, state, max_bond=4)
    assert found.energy == pytest.approx(float(exact), abs=1e-9)
    bond = (torch.kron(x + 0j, y) - torch.kron(y, x + 0j)).reshape(2, 2, 2, 2)
    cooled = tn.tebd(state, bond, step=-0.01, steps=10, max_bond=4, normalize=False).state
    assert (cooled.to_dense().reshape(-1) - torch.matrix_exp(-0.1 * spiral.to_dense()) @ dense).abs().max() < 1e-4


def test_without_a_cutoff_small_values_stay() -> None:
    matrix = torch.diag(torch.tensor([1.0, 1e-9, 1e-20], dtype=DOUBLE))
    found = tn.split(matrix)
    torch.testing.assert_close(found.values, matrix.diag(), rtol=1e-12, atol=0)
    assert len(tn.split(matrix, cutoff=1e-17).values) == 1
    leg = Leg(U1, {0: 1, 1: 1, 2: 1})
    charged = weft.blocks.ChargedTensor.from_dense(matrix, [leg, leg.dual])
    assert sum(len(each) for each in weft.blocks.split(charged, 1).values.values()) == 3


def test_samples_have_the_probabilities_of_the_state() -> None:
    state = tn.MPS.random(3, 3, 4, dtype=torch.complex128, seed=8)
    drawn = state.sample(20000, seed=1)
    places = drawn @ torch.tensor([9, 3, 1])
    shares = torch.bincount(places, minlength=27) / 20000
    exact = state.to_dense().reshape(-1).abs().square()
    assert float((shares - exact).abs().max()) < 5 * math.sqrt(0.25 / 20000)
    assert torch.equal(drawn, state.sample(20000, seed=1))
    assert state.sample(0).shape == (0, 3)


SPIN = Leg(U1, {1: 1, -1: 1})


def test_dmrg_conserves_charges() -> None:
    plain, operator = tn.heisenberg(8, field=0.1), tn.heisenberg(8, field=0.1, extent=SPIN)
    torch.testing.assert_close(operator.to_dense(), plain.to_dense())
    up = torch.tensor([(bin(at).count("0") - 1) + (8 - at.bit_length()) for at in range(256)])  # zeros of 8 bits
    up[0] = 8
    for places, spin in (([0, 1] * 4, 4), ([0, 0, 0, 1, 0, 1, 0, 0], 6)):
        found = tn.dmrg(operator, tn.MPS.product(places, SPIN), max_bond=16, sweeps=5)
        own = plain.to_dense()[up == spin][:, up == spin]
        exact = float(torch.linalg.eigvalsh(own)[0])
        assert found.energy == pytest.approx(exact, abs=1e-9)
        assert float(found.state.expectation(operator)) == pytest.approx(exact, abs=1e-9)
        dense = found.state.to_dense().reshape(-1)
        assert not dense[up != spin].any()
        assert float(found.state.norm()) == pytest.approx(1)
        torch.testing.assert_close(found.state.entropy(3), found.state.plain().entropy(3))
        torch.testing.assert_close(found.state.canonicalize(5).inner(found.state), torch.ones((), dtype=DOUBLE))
        drawn = found.state.sample(20, seed=2)
        assert ((drawn == 0).sum(1) == spin).all()


def test_charged_dmrg_has_the_same_bits_each_time() -> None:
    found = [tn.dmrg(tn.heisenberg(6, extent=SPIN), tn.MPS.product([0, 1] * 3, SPIN), max_bond=6, sweeps=2)
             for _ in range(2)]  # fmt: skip
    assert found[0].energies == found[1].energies


def test_operators_that_conserve_charges() -> None:
    parity = Leg(Z2, {0: 1, 1: 1})
    terms: list[tuple[complex, dict[int, torch.Tensor]]] = [(1.0, {at: X, at + 1: X}) for at in range(3)]
    terms += [(0.7, {at: Z}) for at in range(4)]
    made = tn.MPO.from_terms(4, terms, extent=parity)
    torch.testing.assert_close(made.to_dense(), tn.MPO.from_terms(4, terms).to_dense())
    found = tn.dmrg(made, tn.MPS.product([0, 1, 1, 0], parity), max_bond=8, sweeps=8)
    assert found.energy == pytest.approx(float(torch.linalg.eigvalsh(made.to_dense())[0]), abs=1e-9)
    with pytest.raises(weft.ArgumentError, match="an operator on site 1 changes the charge by"):
        tn.MPO.from_terms(4, [(1.0, {1: X, 2: X})], extent=SPIN)
    with pytest.raises(weft.ArgumentError, match="a term that ends on site 2 changes the charge"):
        tn.MPO.from_terms(4, [(1.0, {1: UP, 2: UP})], extent=SPIN)
    with pytest.raises(weft.ArgumentError, match="chains of fermions have signs in their operators"):
        tn.MPS.product([0, 1], Leg(U1.fermionic, {0: 1, 1: 1}))


def test_dmrg_of_a_long_critical_chain() -> None:
    """Open transverse-field Ising chain at its critical point: 1 - 1 / sin(pi / (4 L + 2)), from P. Pfeuty,
    Annals of Physics 57 (1970)."""
    sites = 40
    found = tn.dmrg(tn.ising(sites), tn.MPS.product([0] * sites), max_bond=20, sweeps=4, cutoff=1e-11)
    assert found.energy == pytest.approx(1 - 1 / math.sin(math.pi / (4 * sites + 2)), abs=1e-6)


def test_tebd_in_real_and_imaginary_time() -> None:
    sites = 6
    operator = tn.heisenberg(sites).to_dense()
    start = tn.MPS.product([0, 1] * 3)
    evolved = tn.tebd(start, tn.heisenberg_bond(), step=-0.05j, steps=10, max_bond=8)
    exact = torch.matrix_exp(-0.5j * operator.to(torch.complex128)) @ start.to_dense().reshape(-1).to(torch.complex128)
    torch.testing.assert_close(evolved.state.to_dense().reshape(-1), exact, atol=2e-4, rtol=0)
    assert float(evolved.state.norm()) == pytest.approx(1)
    cooled = tn.tebd(start, tn.heisenberg_bond(), step=-0.1, steps=120, max_bond=8)
    lowest = float(torch.linalg.eigvalsh(operator)[0])
    assert float(cooled.state.expectation(tn.heisenberg(sites))) == pytest.approx(lowest, abs=2e-3)


def test_tebd_conserves_charges() -> None:
    start = tn.MPS.product([0, 1, 1, 0, 1, 0], SPIN)
    for step in (-0.1j, -0.1):
        found = tn.tebd(start, tn.heisenberg_bond(), step=step, steps=8, max_bond=8)
        plain = tn.tebd(start.plain(), tn.heisenberg_bond(), step=step, steps=8, max_bond=8)
        torch.testing.assert_close(found.state.to_dense(), plain.state.to_dense())
        assert max(len(tensor.structure.keys) for tensor in found.state.tensors) > 3
    with pytest.raises(weft.ArgumentError, match="has elements that charge 0 forbids"):
        tn.tebd(start, tn.ising_bonds(6), step=-0.1, steps=1, max_bond=4)


def test_two_site_updates_truncate_as_little_as_they_say() -> None:
    generator = torch.Generator().manual_seed(4)
    left = torch.randn(3, 4, 2, 5, dtype=DOUBLE, generator=generator)
    right = torch.randn(3, 5, 2, 6, dtype=DOUBLE, generator=generator)
    gate = torch.randn(2, 2, 2, 2, dtype=DOUBLE, generator=generator)
    theta = torch.einsum("zlsm,zmtr,pqst->zlpqr", left, right, gate)
    for absorb in ("left", "right", "both"):
        whole = tn.two_site_update(left, right, gate, absorb=absorb)  # type: ignore[arg-type]
        torch.testing.assert_close(torch.einsum("zlsk,zktr->zlstr", whole.left, whole.right), theta)
    cut = tn.two_site_update(left, right, gate, max_bond=3)
    lost = (torch.einsum("zlsk,zktr->zlstr", cut.left, cut.right) - theta).square().sum((1, 2, 3, 4))
    torch.testing.assert_close(cut.error, lost / theta.square().sum((1, 2, 3, 4)))
    assert cut.left.shape == (3, 4, 2, 3)
    weak = tn.two_site_update(left, right, gate, cutoff=0.05)
    assert (weak.error <= 0.05).all()
    assert weak.left.shape[-1] < whole.left.shape[-1]
    one = tn.two_site_update(left[0], right[0], gate, max_bond=3, normalize=True)
    assert float(torch.linalg.vector_norm(one.values)) == pytest.approx(1)
    torch.testing.assert_close(one.error, cut.error[0])


def test_the_norm_of_a_peps() -> None:
    generator = torch.Generator().manual_seed(5)
    rows, columns, bond = 3, 3, 2

    def site(i: int, j: int) -> torch.Tensor:
        shape = (bond if i else 1, bond if j else 1, bond if i + 1 < rows else 1, bond if j + 1 < columns else 1, 2)
        return torch.randn(shape, dtype=DOUBLE, generator=generator)

    tensors = [[site(i, j) for j in range(columns)] for i in range(rows)]
    inputs: list[object] = []
    for i in range(rows):
        for j in range(columns):
            inputs += [tensors[i][j], (("v", i, j), ("h", i, j), ("v", i + 1, j), ("h", i, j + 1), ("s", i, j))]
    output = tuple(("s", i, j) for i in range(rows) for j in range(columns))
    state = weft.einsum(*inputs, output)
    exact = float(state.square().sum())
    found = tn.peps_norm(tensors)
    assert found.mantissa * 10**found.exponent == pytest.approx(exact, rel=1e-10)
    assert found.error < 1e-12
    cut = tn.peps_norm(tensors, max_bond=6)
    assert cut.mantissa * 10**cut.exponent == pytest.approx(exact, rel=0.05)


@pytest.mark.parametrize("scale", [1e-170, 1e170])
def test_values_of_any_scale(scale: float) -> None:
    """Squares are past float64: what is kept and dropped is as for values near 1."""
    generator = torch.Generator().manual_seed(6)
    values = torch.tensor([2.5, 2.0, 1.5], dtype=DOUBLE)
    matrix = torch.diag(values).requires_grad_()
    cut = tn.split(scale * matrix, cutoff=1.5**2 / 12.5 + 1e-9)
    torch.testing.assert_close(cut.values / scale, values[:2])
    torch.testing.assert_close(cut.error, torch.tensor(1.5**2 / 12.5, dtype=DOUBLE))
    (found,), (right,) = (torch.autograd.grad(tn.split(x * matrix, max_bond=2).error, matrix) for x in (scale, 1.0))
    torch.testing.assert_close(found, right)
    leg = Leg(U1, {0: 2, 1: 3})
    charged = weft.blocks.ChargedTensor.random([leg, leg.dual], dtype=DOUBLE, seed=1)
    one, other = (weft.blocks.split(x * charged, 1, max_bond=3) for x in (1.0, scale))
    torch.testing.assert_close(torch.cat([*other.values.values()]) / scale, torch.cat([*one.values.values()]))
    torch.testing.assert_close(other.error, one.error)
    torch.testing.assert_close((scale * charged).norm() / scale, charged.norm())
    state = tn.MPS.random(4, 2, 4)
    scaled = tn.MPS([state.tensors[0] * scale, *state.tensors[1:]])
    torch.testing.assert_close(scaled.entropy(1), state.entropy(1))
    torch.testing.assert_close(scaled.canonicalize(0).norm() / scale, state.norm())
    left, right = (torch.randn(shape, dtype=DOUBLE, generator=generator) for shape in ((1, 2, 3), (3, 2, 1)))
    updated = tn.two_site_update(scale * left, right, max_bond=2, normalize=True)
    torch.testing.assert_close(updated.values.square().sum(), torch.tensor(1.0, dtype=DOUBLE))


def test_a_truncation_that_drops_everything() -> None:
    with pytest.raises(weft.ShapeError, match=r"drops every singular value: they range from 1 to 3"):
        tn.split(torch.diag(torch.tensor([3.0, 1.0])), cutoff=1.0)
    with pytest.raises(weft.ShapeError, match="range from 0 to 0"):
        tn.split(torch.zeros(2, 2))
    with pytest.raises(weft.ArgumentError, match="max_bond"):
        tn.split(torch.eye(2), max_bond=0)
    with pytest.raises(weft.ShapeError, match="no singular values"):
        tn.split(torch.zeros(0, 2))


def test_what_does_not_fit() -> None:
    with pytest.raises(weft.ShapeError, match=r"term 1 has an operator \(3, 3\) on site 1, which is 2 by 2"):
        tn.MPO.from_terms(2, [(1.0, {0: Z}), (1.0, {1: torch.eye(3)})])
    with pytest.raises(weft.ArgumentError, match="term 0 has an operator on site 2 of 2"):
        tn.MPO.from_terms(2, [(1.0, {2: Z})])
    with pytest.raises(weft.ArgumentError, match="no terms"):
        tn.MPO.from_terms(2, [])
    with pytest.raises(weft.DTypeError, match="term 0 is complex, the operator float64"):
        tn.MPO.from_terms(2, [(1j, {0: Z})])
    with pytest.raises(weft.ShapeError, match="site 1 has a left bond of 3, the site before a right one of 2"):
        tn.MPS([torch.ones(1, 2, 2), torch.ones(3, 2, 1)])
    with pytest.raises(weft.ShapeError, match="6 sites and a state of 5"):
        tn.dmrg(tn.ising(6), tn.MPS.random(5, 2, 2), max_bond=4)
    with pytest.raises(weft.ShapeError, match="2 terms for 3 bonds"):
        tn.tebd(tn.MPS.random(4, 2, 2), [tn.heisenberg_bond()] * 2, step=-0.1, steps=1, max_bond=4)
    with pytest.raises(weft.ShapeError, match=r"site \(0, 0\) is at the border"):
        tn.peps_norm([[torch.ones(1, 1, 2, 1, 2)]])
    with pytest.raises(weft.ShapeError, match="the gate"):
        tn.two_site_update(torch.ones(1, 2, 3), torch.ones(3, 2, 1), torch.ones(4, 4))
