"""PySCF with weft in the place of its contractions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from weft.errors import UnsupportedError
from weft.networks.public import einsum
from weft.plans.keywords import refuse_unknown

Einsum = Callable[..., Any]
_TAKEN = frozenset({"optimize", "out"})  # keywords of NumPy's that mean the same here


@contextmanager
def pyscf(**options: Any) -> Iterator[None]:
    """Within it PySCF contracts by weft: ``with weft.hooks.pyscf(): mf.run(); cc.CCSD(mf).run()``.

    `pyscf.lib.einsum`, wherever PySCF's modules have it, and `numpy.einsum` are weft's for as long, in the whole
    process. Types may be mixed and operands may be datasets of h5py, as PySCF passes them. Calls with one operand,
    whose results are views, and with keywords of NumPy's alone (`dtype`, `casting`, `order`) stay what they were.

    `options` are keywords of `weft.einsum` and hold for each contraction: `precision`, `specialize`, `backend` ...
    Raises `ArgumentError` for others, and `UnsupportedError` where PySCF is not installed.
    """
    refuse_unknown("einsum", options, "weft.hooks.pyscf")
    try:
        from pyscf import lib
    except ModuleNotFoundError:
        raise UnsupportedError("PySCF is not installed: pip install 'weft[hooks]'") from None
    own = {np.einsum: _instead_of(np.einsum, options), lib.einsum: _instead_of(lib.einsum, options)}
    _exchange(own)
    try:
        yield
    finally:
        _exchange({weft: theirs for theirs, weft in own.items()})


def _instead_of(theirs: Einsum, options: dict[str, Any]) -> Einsum:
    """A function for the place of `theirs`."""
    return partial(_contract, theirs, {"promote": True, **options})


def _contract(theirs: Einsum, options: dict[str, Any], *arguments: Any, **keywords: Any) -> Any:
    if len(arguments) < 3 or not keywords.keys() <= _TAKEN:
        return theirs(*arguments, **keywords)
    found = einsum(*arguments, **options, **keywords)
    return found if found.ndim or "out" in keywords else found[()]  # a scalar of NumPy's, as there


def _exchange(functions: dict[Einsum, Einsum]) -> None:
    """Put other functions in the place of some, in NumPy and in all modules of PySCF that are imported."""
    for module in [np, *(module for name, module in sys.modules.items() if name.partition(".")[0] == "pyscf")]:
        found = vars(module).get("einsum") if isinstance(module, ModuleType) else None
        if callable(found) and found in functions:
            setattr(module, "einsum", functions[found])  # noqa: B010  # of a module that has no such type
