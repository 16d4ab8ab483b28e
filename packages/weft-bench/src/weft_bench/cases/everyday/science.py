"""Quantum chemistry, tensor networks, circuits and physics, as PySCF, quimb, e3nn and finite elements contract.

Orbitals: water in cc-pVDZ has 24 (5 occupied), in cc-pVTZ 58, benzene in cc-pVDZ 114 (21 occupied).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft_bench.cases.everyday.case import COMPLEX, COMPLEX_DOUBLE, DOUBLE, SINGLE, EverydayCase, case

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WATER = {"o": 5, "v": 19}
LARGER = {"o": 20, "v": 100}


def science() -> Iterator[EverydayCase]:
    """All of them."""
    yield from _chemistry()
    yield from _density_fitting()
    yield from _networks()
    yield from _circuits()
    yield from _physics()


def _orbitals(letters: str, kinds: str, o: int, v: int) -> dict[str, int]:
    return {letter: o if kind == "o" else v for letter, kind in zip(letters, kinds, strict=True)}


def _chemistry() -> Iterator[EverydayCase]:
    here = "chemistry"
    large: dict[str, Any] = _orbitals("ijabef", "oovvvv", **LARGER)
    ring: dict[str, Any] = _orbitals("ijmabe", "ooovvv", **LARGER)
    yield case(here, "CCSD ladder, larger", "ijef,aebf->ijab", **large, dtype=DOUBLE, regret=True)
    yield case(here, "CCSD ring, larger", "imae,mbej->ijab", **ring, dtype=DOUBLE, regret=True)
    ring = _orbitals("ijmabe", "ooovvv", **WATER)
    yield case(here, "CCSD ladder, water", "ijef,abef->ijab", **_orbitals("ijabef", "oovvvv", **WATER), dtype=DOUBLE)
    yield case(here, "CCSD ring, water", "imae,mbej->ijab", **ring, dtype=DOUBLE)
    yield case(here, "CCSD holes, water", "mnij,mnab->ijab", **_orbitals("mnijab", "oooovv", **WATER), dtype=DOUBLE)
    yield case(here, "CCSD singles, water", "me,imae->ia", **_orbitals("miea", "oovv", **WATER), dtype=DOUBLE)
    yield case(here, "CCSD singles into doubles, water", "ie,abej->ijab", **_orbitals("ijabe", "oovvv", **WATER),
               dtype=DOUBLE)  # fmt: skip
    yield case(here, "doubles' energy, water", "ijab,ijab->", **_orbitals("ijab", "oovv", **WATER), dtype=DOUBLE)
    yield case(here, "doubles' energy, larger", "ijab,ijab->", **_orbitals("ijab", "oovv", **LARGER), dtype=DOUBLE)
    yield case(here, "triples' step, water", "bcei,kjae->ijkabc", **_orbitals("ijkabce", "ooovvvv", 5, 12),
               dtype=DOUBLE)  # fmt: skip
    for name, count in (("water", 24), ("water, larger basis", 58)):
        four = dict.fromkeys("pqrs", count)
        yield case(here, f"RHF Coulomb, {name}", "pqrs,rs->pq", **four, dtype=DOUBLE)
        yield case(here, f"RHF exchange, {name}", "prqs,rs->pq", **four, dtype=DOUBLE)
        yield case(here, f"integrals' quarter transform, {name}", "pqrs,pi->iqrs", **four, i=count // 4, dtype=DOUBLE)
    yield case(here, "Fock in orbitals, benzene", "pi,pq,qj->ij", p=114, q=114, i=114, j=114, dtype=DOUBLE)
    yield case(here, "density matrix, benzene", "pi,qi->pq", p=114, q=114, i=21, dtype=DOUBLE)


def _density_fitting() -> Iterator[EverydayCase]:
    here = "density fitting"
    benzene = {"L": 600, "p": 114, "q": 114}
    yield case(here, "J, first half, benzene", "Lpq,pq->L", **benzene, dtype=DOUBLE)
    yield case(here, "J, second half, benzene", "L,Lpq->pq", **benzene, dtype=DOUBLE)
    yield case(here, "half transform, benzene", "Lpq,qi->Lpi", **benzene, i=21, dtype=DOUBLE)
    yield case(here, "K, benzene", "Lpi,Lqi->pq", **benzene, i=21, dtype=DOUBLE)
    yield case(here, "MP2 integrals, benzene", "Lia,Ljb->iajb", L=600, i=21, a=93, j=21, b=93, dtype=DOUBLE)
    yield case(here, "MP2 integrals, water, fp32", "Lia,Ljb->iajb", L=84, i=5, a=19, j=5, b=19)
    yield case(here, "J in one call, water", "Lpq,Lrs,rs->pq", L=84, p=24, q=24, r=24, s=24, dtype=DOUBLE)


def _networks() -> Iterator[EverydayCase]:
    here = "tensor networks"
    steps = ("abc,aix->bcix", "bcix,bijy->cxjy", "cxjy,cjz->xyz")
    step = "abc,aix,bijy,cjz->xyz"
    for chi in (8, 32, 64, 128, 256):
        extents: dict[str, Any] = dict.fromkeys("acxz", chi) | dict.fromkeys("by", 5) | dict.fromkeys("ij", 2)
        yield case(here, f"MPS x MPO step, by pairs, chi {chi}", step, **extents, task="steps", steps=steps,
                   regret=chi == 256)  # fmt: skip
        if chi in (8, 64, 256):
            yield case(here, f"MPS x MPO step, einsum, chi {chi}", step, **extents, regret=chi == 256)
    for chi in (16, 64, 256):
        bonds = dict.fromkeys("lrs", chi)
        yield case(here, f"MPS overlap step, chi {chi}", "lr,lps->rps", **bonds, p=2, dtype=COMPLEX_DOUBLE)
        yield case(here, f"two sites joined, chi {chi}", "lps,sqr->lpqr", **bonds, p=2, q=2, dtype=COMPLEX_DOUBLE)
        yield case(here, f"gate on two sites, chi {chi}", "lpqr,xypq->lxyr", l=chi, r=chi, p=2, q=2, x=2, y=2,
                   dtype=COMPLEX)  # fmt: skip
    yield case(here, "canonical form, chi 128", "ab,bpc->apc", a=128, b=128, c=128, p=2, dtype=DOUBLE)
    peps = dict.fromkeys("udlr", 4)
    yield case(here, "PEPS double layer, D 4", "pudlr,pUDLR->uUdDlLrR", p=2, **peps, **dict.fromkeys("UDLR", 4))
    yield case(here, "PEPS gate, D 6", "pudlr,qp->qudlr", p=2, q=2, **dict.fromkeys("udlr", 6), dtype=COMPLEX)
    yield case(here, "CTMRG corner, chi 64", "ab,bcd->acd", a=64, b=64, c=16, d=64, dtype=DOUBLE)
    yield case(here, "CTMRG absorption, chi 64", "acd,cefd->aef", a=64, c=16, d=64, e=16, f=64)
    yield case(here, "tensor-train cores joined", "aib,bjc->aijc", a=32, b=32, c=32, i=16, j=16)
    yield case(here, "tensor-train layer", "nia,aijb->njb", n=4096, i=16, a=8, j=16, b=8)
    yield case(here, "tree node, chi 24", "abc,bx,cy->axy", a=24, b=24, c=24, x=24, y=24, dtype=DOUBLE)
    yield case(here, "tucker core expanded", "abc,ia,jb,kc->ijk", a=16, b=16, c=16, i=96, j=96, k=96)


def _gate(name: str, qubits: int, at: str, dtype: Any, regret: bool = False) -> EverydayCase:
    """A gate on some qubits of a state."""
    state = LETTERS[:qubits]
    new = at.upper()
    output = state.translate(str.maketrans(at, new))
    extents: dict[str, Any] = dict.fromkeys((*state, *new), 2)
    equation = f"{state},{new}{at}->{output}"
    return case("circuits", name, equation, **extents, dtype=dtype, regret=regret)


def _circuits() -> Iterator[EverydayCase]:
    yield _gate("two-qubit gate, 24 qubits, far", 24, "dq", COMPLEX, regret=True)
    yield _gate("two-qubit gate, 24 qubits, last", 24, "wx", COMPLEX)
    yield _gate("two-qubit gate, 20 qubits, first", 20, "ab", COMPLEX_DOUBLE)
    yield _gate("one-qubit gate, 20 qubits", 20, "j", COMPLEX)
    yield _gate("two-qubit gate, 12 qubits", 12, "ci", COMPLEX)
    state = LETTERS[:20]
    pair: dict[str, Any] = dict.fromkeys(state, 2)
    yield case("circuits", "diagonal gate, 20 qubits", f"{state},dj->{state}", **pair, dtype=COMPLEX)
    kept = state.translate(str.maketrans("a", "A"))
    yield case("circuits", "one-qubit density, 20 qubits", f"{state},{kept}->aA", **pair, A=2, dtype=COMPLEX)


def _physics() -> Iterator[EverydayCase]:
    here = "physics"
    yield case(here, "spherical harmonics joined", "ijk,uj,vk->uvi", i=5, j=3, k=3, u=128, v=128)
    yield case(here, "equivariant product", "zui,zvj,ijk->zuvk", z=128, u=8, v=8, i=5, j=3, k=5)
    yield case(here, "messages weighted by edges", "euv,eu->ev", e=8192, u=32, v=32)
    yield case(here, "element matrices", "eqi,eqj->eij", e=8192, q=8, i=8, j=8, dtype=DOUBLE)
    yield case(here, "sum factorisation, one direction", "ai,eijk->eajk", a=5, i=4, e=8192, j=4, k=4, dtype=DOUBLE)
    yield case(here, "covariances moved", "nij,njk,nlk->nil", n=4096, i=6, j=6, k=6, l=6, dtype=SINGLE)
    yield case(here, "rotations of points", "bij,bnj->bni", b=64, n=2048, i=3, j=3)
    yield case(here, "one mode replaced, fp32", "wxyz,yv->wvxz", w=72, x=72, y=24, z=72, v=72, regret=True)
