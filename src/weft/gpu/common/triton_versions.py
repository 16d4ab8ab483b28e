"""What differs between versions of Triton, and nothing else of weft knows."""

from __future__ import annotations

import triton
import triton.language as tl

VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])

# Whether a run that holds no aligned groups, such as 0 1 2 | 90 91 92 | ..., is stated as groups of two. That is not
# true of every two (2 and 90), but it tells the compiler along which axis neighbours lie. Up to 3.8 it tells nothing
# else: an access is no wider than what its address is known to be a multiple of, here a single element. From 3.9 on a
# thread that reads or writes elements of a group one by one, each under its mask, takes the address of the first for
# all of them (pull request 11317 of triton-lang/triton): wrong values, and no error.
ODD_RUNS_STATED = tl.constexpr(VERSION < (3, 9))
