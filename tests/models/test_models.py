"""Programs of other people with `einsum` replaced by weft's: the same results.

Each is skipped where its library is not installed: `pip install einops x-transformers vit-pytorch tensorly pyscf`.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

import weft


class Calls:
    """weft in the place of an `einsum`, counted: a replacement that nobody calls shows nothing."""

    def __init__(self, **options: Any) -> None:
        self.count, self.options = 0, options

    def __call__(self, *arguments: Any, optimize: Any = None, **keywords: Any) -> Any:
        self.count += 1
        return weft.einsum(*arguments, **self.options, **keywords)


@pytest.fixture
def in_torch(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls()
    monkeypatch.setattr(torch, "einsum", calls)
    return calls


@pytest.fixture
def in_numpy(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls(promote=True)  # as NumPy does
    monkeypatch.setattr(np, "einsum", calls)
    return calls


def test_einops(in_torch: Calls) -> None:
    einops = pytest.importorskip("einops")
    x, y = torch.randn(3, 4, 5), torch.randn(5, 6)
    found = einops.einsum(x, y, "batch row inner, inner column -> column batch row")
    assert in_torch.count == 1
    torch.testing.assert_close(found, (x @ y).permute(2, 0, 1))


def same_with_and_without(model: torch.nn.Module, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often the model asked weft."""
    model.eval()
    with torch.no_grad():
        expected = model(x)
        calls = Calls()
        monkeypatch.setattr(torch, "einsum", calls)
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] in ("x_transformers", "vit_pytorch") and hasattr(module, "einsum"):
                monkeypatch.setattr(module, "einsum", calls)
        torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)
    return calls.count


def test_x_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("x_transformers")
    layers = module.Decoder(dim=32, depth=2, heads=4, attn_dim_head=8)
    model = module.TransformerWrapper(num_tokens=50, max_seq_len=16, attn_layers=layers)
    assert same_with_and_without(model, torch.randint(0, 50, (2, 12)), monkeypatch) > 0


def test_vit_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its many models one that multiplies by einsum."""
    module = pytest.importorskip("vit_pytorch.levit")
    model = module.LeViT(
        image_size=32, num_classes=7, stages=1, dim=16, depth=1, heads=2, mlp_mult=1, dim_key=8, dim_value=8
    )
    assert same_with_and_without(model, torch.randn(2, 3, 32, 32), monkeypatch) > 0


def test_tensorly(in_numpy: Calls) -> None:
    tensorly = pytest.importorskip("tensorly")
    from tensorly.decomposition import parafac

    pytest.importorskip("tensorly.plugins")
    generator = np.random.default_rng(0)
    factors = [generator.standard_normal((extent, 3)) for extent in (5, 6, 7)]
    tensor = tensorly.cp_to_tensor((None, factors))
    assert np.allclose(np.einsum("ir,jr,kr->ijk", *factors), tensor)
    found = parafac(tensorly.tensor(tensor), rank=3, random_state=0, n_iter_max=200)
    assert np.linalg.norm(tensorly.cp_to_tensor(found) - tensor) < 0.05 * np.linalg.norm(tensor)
    assert in_numpy.count > 0


def test_pyscf(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second-order correlation energy written with einsum, beside PySCF's own."""
    pytest.importorskip("pyscf")
    from pyscf import ao2mo, gto, scf

    molecule = gto.M(atom="H 0 0 0; H 0 0 0.74", basis="6-31g", verbose=0)
    theirs = scf.RHF(molecule).run().MP2().run().e_corr
    in_numpy = Calls(promote=True)
    monkeypatch.setattr(np, "einsum", in_numpy)
    field = scf.RHF(molecule).run()
    energies, occupied = field.mo_energy, molecule.nelectron // 2
    integrals = ao2mo.restore(1, ao2mo.kernel(molecule, field.mo_coeff), len(energies))
    before = in_numpy.count
    ovov = integrals[:occupied, occupied:, :occupied, occupied:]
    gaps = 1 / (
        energies[:occupied, None, None, None] - energies[None, occupied:, None, None]
        + energies[None, None, :occupied, None] - energies[None, None, None, occupied:]
    )  # fmt: skip
    amplitudes = np.einsum("iajb,iajb->iajb", ovov, gaps)
    energy = 2 * np.einsum("iajb,iajb->", ovov, amplitudes) - np.einsum("iajb,ibja->", ovov, amplitudes)
    assert in_numpy.count == before + 3
    assert energy == pytest.approx(theirs, rel=1e-6)
