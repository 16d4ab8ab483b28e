"""Which Triton is here, without importing it where its package says so; see `triton_versions` for what kernels take."""

from __future__ import annotations

import sys

from weft.planner.registry import triton_version

_INSTALLED = triton_version() or "0.0"
RELEASE = tuple(int(part) for part in _INSTALLED.split(".")[:2])
"""(0, 0) where there is none."""

# Whether a run that holds no aligned groups, such as 0 1 2 | 90 91 92 | ..., is stated as groups of two. That is not
# true of every two (2 and 90), but it tells the compiler along which axis neighbours follow. Up to 3.8 it tells nothing
# else: an access is no wider than what its address is known to be a multiple of, here a single element. From 3.9 on a
# thread that reads or writes elements of a group one by one, each under its mask, takes the address of the first for
# all of them (pull request 11317 of triton-lang/triton): wrong values, and no error.
ODD_RUNS_STATED = RELEASE < (3, 9)

FUSION = {"enable_fp_fusion": True}
"""Options of every kernel for a GPU: products and sums become fused multiply-adds. This has always been the default;
3.9 warns of a later version that changes it, unless it is said."""

PDL_OPTION = "launch_pdl"
"""Triton's name for launches that are dependent by program, see `pdl`."""

TESTED = ("3.6", "3.7", "3.8", "3.9")
"""Versions whose Gluon compiles every one of weft's kernels; any other is tried, see `gluon_probe`. Those of 3.6 have
run on a GPU; with the others the self-test of families decides on each machine."""


def version() -> str:
    """The whole version, as Triton itself says it where it is imported."""
    return str(getattr(sys.modules.get("triton"), "__version__", None) or _INSTALLED)


def is_tested() -> bool:
    """Whether the project has run its kernels in Gluon with the Triton that is here."""
    return ".".join(version().split(".")[:2]) in TESTED
