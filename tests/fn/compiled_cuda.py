"""CUDA C++ run on the CPU: the system's compiler takes it, with what CUDA has of its own written in plain C++."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pytest

# Functions and conversions of CUDA, and its grid: a launch runs program after program, thread after thread.
HOST = """
#include <cmath>
#include <cstring>
using std::isnan;
typedef signed char int8; typedef unsigned char uint8; typedef short int16; typedef unsigned short uint16;
typedef int int32; typedef unsigned int uint32; typedef long long int64; typedef unsigned long long uint64;
#define INLINE static inline
#define __global__
#define __launch_bounds__(threads)
struct Place { uint32 x; };
static Place blockIdx, threadIdx;
template <typename To, typename From> static inline To same_bits(From x) { To y; memcpy(&y, &x, sizeof y); return y; }
INLINE int32 bits_of(float x) { return same_bits<int32>(x); }
INLINE int64 bits_of(double x) { return same_bits<int64>(x); }
INLINE float of_bits(int32 x) { return same_bits<float>(x); }
INLINE double of_bits(int64 x) { return same_bits<double>(x); }
INLINE float near_exp2(float x) { return exp2f(x); }
INLINE float near_reciprocal(float x) { return 1.0f / x; }
INLINE float rsqrtf(float x) { return 1.0f / sqrtf(x); }
INLINE double rsqrt(double x) { return 1.0 / sqrt(x); }
INLINE float from_float16(uint16 x) { return float(same_bits<_Float16>(x)); }
INLINE uint16 to_float16(float x) { return same_bits<uint16>(_Float16(x)); }
"""


@lru_cache
def compiler() -> str:
    found = shutil.which("g++")
    if found is None:
        pytest.skip("no g++ here, which stands in for CUDA's compiler")
    return found


@lru_cache
def folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="weft-cuda-on-cpu-"))


@cache
def library(source: str) -> Any:
    """A shared library of C++ that begins with `HOST`."""
    name = hashlib.sha256(source.encode()).hexdigest()[:16]
    text, made = folder() / f"{name}.cpp", folder() / f"{name}.so"
    text.write_text(source)
    options = ["-shared", "-fPIC", "-O1", "-w", "-std=c++17", "-ffp-contract=off"]
    done = subprocess.run([compiler(), *options, "-o", str(made), str(text)], capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stderr}\n{source[source.find('extern') :]}"
    return ctypes.CDLL(str(made))


def kernel(source: str, name: str, threads: int) -> Any:
    """A kernel of C++ that begins with `HOST`: called with how many programs, and a word for each parameter."""
    head = source[source.index(f" {name}(") :]
    types = [each.rsplit(" ", 1)[0] for each in head[head.index("(") + 1 : head.index(")")].split(", ")]
    words = ", ".join(
        "nullptr" if at >= len(types) - 2 else f"same_bits<double>(words[{at}])" if kind == "double"
        else f"({kind})words[{at}]" for at, kind in enumerate(types)
    )  # fmt: skip
    loop = f"""
extern "C" void run(int64 programs, const int64* words) {{
  for (blockIdx.x = 0; blockIdx.x < programs; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < {threads}; ++threadIdx.x) {name}({words});
}}
"""
    run = library(source.replace("void*, void*", "void* s0, void* s1") + loop).run

    def launch(programs: int, given: tuple[int, ...]) -> None:
        run(ctypes.c_int64(programs), (ctypes.c_int64 * len(given))(*given))

    return launch
