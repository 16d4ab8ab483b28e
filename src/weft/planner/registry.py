"""The families of each backend, and why one of them cannot be imported here.

Families are imported at their first use: those of Triton must not be imported with weft. One that fails to
import, under a Triton it was not written for say, is left out with a sentence, and the others serve.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch

from weft.errors import UnsupportedError
from weft.machine.stamp import package_version
from weft.planner.schedule import Description, Target
from weft.spec.permutation import Permutation

BLAS = "weft.gpu.blas.family"  # needs no Triton: it calls the vendor's library
FAMILIES = {
    "triton": (
        BLAS,
        "weft.gpu.warp_specialized.family",
        "weft.gpu.gett.family",
        "weft.gpu.semiring.family",
        "weft.gpu.simt.family",
        "weft.planner.pre_reduce",
        "weft.gpu.composite.ttgt",
        "weft.gpu.composite.logsumexp",
        "weft.gpu.composite.counting",
        "weft.library.split_family",
        "weft.gpu.complex.direct",
        "weft.gpu.complex.real_forms",
    ),
    "cpu": (
        "weft.cpu.gett.family",
        "weft.cpu.stream.family",
        "weft.library.exponentials.family",
        "weft.library.family",
        "weft.planner.pre_reduce",
    ),
}
PERMUTATION_FAMILIES = {
    "triton": ("weft.gpu.permute.family", "weft.gpu.complex.interleaved"),
    "cpu": ("weft.cpu.permute.family", "weft.library.permutations"),
}
LIBRARIES = frozenset(("weft.library.family", "weft.library.permutations"))  # of the library tier
WITHOUT_TRITON = "backend 'cpu' works without it, and so do plain matrix products on a GPU, by the vendor's library"


def family_names(description: Description, backend: str) -> tuple[str, ...]:
    """The modules of the families that may serve what is described."""
    return (PERMUTATION_FAMILIES if isinstance(description, Permutation) else FAMILIES)[backend]


def beside(description: Description, target: Target) -> tuple[str, ...]:
    """The module of the library tier's family where tuning measures it and planning does not compare it: on GPUs."""
    if target.kind not in ("cuda", "hip"):
        return ()
    return ("weft.library.permutations" if isinstance(description, Permutation) else "weft.library.family",)


def families(description: Description, backend: str) -> list[Any]:
    """Families that may serve a description, but for those that cannot be imported: see `missing`."""
    return [found for name in family_names(description, backend) if isinstance(found := imported(name), ModuleType)]


def missing(description: Description, backend: str) -> list[str]:
    """One sentence for each family that cannot be imported, and one for all where it is Triton that cannot."""
    named = [(name, imported(name)) for name in family_names(description, backend)]
    faults = [f"{short_name(name)}: {found}" for name, found in named if isinstance(found, str)]
    return [f"{fault}; {WITHOUT_TRITON}"] if faults and (fault := triton_fault()) is not None else faults


def short_name(module: str) -> str:
    """The name of a family whose module does not give one: that of its folder or file."""
    return [part for part in module.split(".") if part != "family"][-1]


def versions(backend: str) -> str:
    """The software whose fault it may be that a family fails, for messages."""
    if backend != "triton":
        return f"torch {torch.__version__}"
    return f"Triton {triton_version() or '(not installed)'}"


def triton_version() -> str | None:
    """Triton's version, without importing it where its package says it; None where there is none."""
    found = package_version("triton")
    if found is None and triton_fault() is None:  # AMD's comes under another name
        found = str(import_module("triton").__version__)
    return found


@lru_cache
def triton_fault() -> str | None:
    """Why Triton cannot be imported here, with its version; None where it can."""
    version = package_version("triton")
    try:
        import_module("triton").__version__  # noqa: B018  what a torn package lacks
    except Exception as error:  # of a library that is broken anything may come
        if version is None and isinstance(error, ModuleNotFoundError):
            return "Triton is not installed (pip install triton)"
        return f"Triton {version or ''} cannot be imported ({first_line(error)})".replace("  ", " ")
    return None


def supposed_fault() -> str | None:
    """`triton_fault`, as far as it is known without importing Triton: one that is installed is supposed to work.

    Where it does not, building a kernel says so.
    """
    known = "triton" in sys.modules or triton_fault.cache_info().currsize
    return triton_fault() if known or not _is_installed() else None


def _is_installed() -> bool:
    try:
        return find_spec("triton") is not None
    except (ImportError, ValueError):
        return False


def need_triton(what: str) -> None:
    """`UnsupportedError` that says what is wrong with Triton, where it cannot be imported; `what` needs it."""
    if (fault := triton_fault()) is not None:
        raise UnsupportedError(f"{fault}: {what} with Triton alone")


def first_line(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}".removesuffix(": ")


@lru_cache
def imported(name: str) -> ModuleType | str:
    """The module, or why there is none. Remembered, as a failed import is not quick."""
    of_triton = name.startswith("weft.gpu.") and name != BLAS
    if of_triton and (fault := supposed_fault()) is not None:
        return fault
    try:
        return import_module(name)
    except Exception as error:  # what a decorator or a type of a new Triton raises may be of any kind
        if of_triton and (fault := triton_fault()) is not None:
            return fault
        return f"it cannot be imported under {versions('triton' if of_triton else 'cpu')} ({first_line(error)})"


def blames_triton(error: ImportError | AttributeError) -> bool:
    """Whether something is missing from Triton, and not from weft."""
    if isinstance(error, ImportError):
        return (error.name or "").partition(".")[0] == "triton"
    owner = getattr(error.obj, "__module__", None) or getattr(error.obj, "__name__", "")
    return str(owner).partition(".")[0] == "triton"
