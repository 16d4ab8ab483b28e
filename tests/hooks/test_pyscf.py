"""PySCF with weft in the place of its contractions: every energy is what it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft

pyscf = pytest.importorskip("pyscf", reason="PySCF comes with the extra `hooks`")

from pyscf import cc, lib, mcscf, mp, scf  # noqa: E402
from pyscf.cc import gccsd  # noqa: E402


def water(basis: str) -> Any:
    return pyscf.gto.M(atom="O 0 0 0; H 0 0.757 0.587; H 0 -0.757 0.587", basis=basis, verbose=0)


def energies(molecule: Any) -> dict[str, float]:
    """Of a mean field and of what is built on it; the second coupled cluster is written in einsum throughout."""
    mf = scf.RHF(molecule).run(conv_tol=1e-11)
    amplitudes, general = cc.CCSD(mf).run(conv_tol=1e-9), cc.rccsd.RCCSD(mf).run(conv_tol=1e-9)
    return {
        "RHF": mf.e_tot,
        "MP2": mp.MP2(mf).run().e_corr,
        "CCSD": amplitudes.e_corr,
        "CCSD in einsum": general.e_corr,
        "CCSD without spin": cc.GCCSD(mf).run(conv_tol=1e-9).e_corr,
        "EOM, excitation": amplitudes.eomee_ccsd_singlet(nroots=1)[0],
        "EOM, ionisation": general.ipccsd(nroots=1)[0],
        "CASSCF": mcscf.CASSCF(mf, 4, 4).kernel(turned(mf.mo_coeff))[0],
    }


def turned(orbitals: np.ndarray) -> np.ndarray:
    """Orbitals away from those of Hartree-Fock, which are a saddle of CASSCF: rounding alone decides where it ends."""
    values = np.random.default_rng(0).standard_normal(orbitals.shape)
    rotation, _ = np.linalg.qr(np.eye(len(values)) + 1e-2 * (values - values.T))
    return orbitals @ (rotation * np.sign(rotation.diagonal()))


def compare(basis: str) -> None:
    """Small contractions left to NumPy; and, with an option, all of them weft's."""
    molecule = water(basis)
    right = energies(molecule)
    for options in ({}, {"promote": True}):
        with weft.hooks.pyscf(**options):
            found = energies(molecule)
        for name, energy in right.items():
            assert float(np.ravel(found[name])[0]) == pytest.approx(float(np.ravel(energy)[0]), abs=1e-8), name


def test_energies_in_a_small_basis() -> None:
    compare("sto-3g")


@pytest.mark.slow
def test_energies() -> None:
    compare("cc-pvdz")


def test_functions_are_exchanged_within_alone() -> None:
    before = np.einsum, lib.einsum, gccsd.einsum
    a, b = np.arange(6.0).reshape(2, 3), np.ones(3, np.complex64)
    with weft.hooks.pyscf(specialize="library"):
        assert np.einsum is not before[0]
        assert gccsd.einsum is not before[2]
        assert np.einsum("ij->ji", a).base is a.base  # a view, as it was
        assert type(np.einsum("ij,ij->", a, a)) is np.float64
        assert np.einsum("ij,j->i", a, b).dtype == np.complex128
        cast = {"dtype": np.float32, "casting": "same_kind"}  # which are NumPy's alone
        assert np.einsum("ij,j->i", a, b.real, **cast).dtype == np.float32
        place = np.zeros((2, 2))
        assert lib.einsum("ij,kj->ik", a, a, out=place, optimize=True) is place
        assert np.array_equal(place, a @ a.T)
    assert (np.einsum, lib.einsum, gccsd.einsum) == before
    with pytest.raises(weft.ArgumentError, match="precison"), weft.hooks.pyscf(precison="tf32"):
        pass


def test_datasets_of_files(tmp_path: Any) -> None:
    h5py = pytest.importorskip("h5py")
    a = np.arange(12.0).reshape(3, 4)
    with h5py.File(tmp_path / "integrals.h5", "w") as file, weft.hooks.pyscf():
        assert np.allclose(lib.einsum("ij,kj->ik", file.create_dataset("a", data=a), a), a @ a.T)
