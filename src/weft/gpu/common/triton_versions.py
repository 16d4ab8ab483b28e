"""What differs between versions of Triton. No other module of weft knows, and this one asks what a version
offers, where that can be asked."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import triton
import triton.language as tl
from triton.runtime.jit import JITCallable

VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])

# Whether a run that holds no aligned groups, such as 0 1 2 | 90 91 92 | ..., is stated as groups of two. That is not
# true of every two (2 and 90), but it tells the compiler along which axis neighbours lie. Up to 3.8 it tells nothing
# else: an access is no wider than what its address is known to be a multiple of, here a single element. From 3.9 on a
# thread that reads or writes elements of a group one by one, each under its mask, takes the address of the first for
# all of them (pull request 11317 of triton-lang/triton): wrong values, and no error.
ODD_RUNS_STATED = tl.constexpr(VERSION < (3, 9))

# Whether the compiler has all threads of a role meet before one arrives at an mbarrier for them. Before 3.8 it does so
# only where it sees that one may still be reading or writing shared memory.
ARRIVALS_MEET = tl.constexpr(VERSION >= (3, 8))

TESTED = ("3.6", "3.7", "3.8", "3.9")
"""Versions whose Gluon compiles every one of weft's kernels; any other is tried, see `gluon_probe`. Those of 3.6 have
run on a GPU; with the others the self-test of families decides on each machine."""

FUSION = {"enable_fp_fusion": True}
"""Options of every kernel for a GPU: products and sums become fused multiply-adds. This has always been the default;
3.9 warns of a later version that changes it, unless it is said."""


def is_tested() -> bool:
    """Whether the project has run its kernels in Gluon with the Triton that is here."""
    return ".".join(triton.__version__.split(".")[:2]) in TESTED


class Names(NamedTuple):
    """What kernels call, of which the name has changed."""

    meet_threads: Callable[..., Any]  # all threads of a role: `thread_barrier` in 3.6
    tma_load: Callable[..., Any]  # from 3.8 on `async_load` and `async_store`; the longer names end with 3.8
    tma_store: Callable[..., Any]
    reinterpret: Callable[..., Any]  # shared memory as another shape and layout: public since 3.9


def gluon_names() -> Names:
    """The names of the Triton that is here. `ImportError` or `AttributeError` where it has none that is known."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import tma

    return Names(
        _first(gl, "barrier", "thread_barrier"),
        _first(tma, "async_load", "async_copy_global_to_shared"),
        _first(tma, "async_store", "async_copy_shared_to_global"),
        _first(gl.shared_memory_descriptor, "reinterpret", "_reinterpret"),
    )


def settle_key(function: Any) -> None:
    """Have the functions that a kernel calls take their keys in Triton's cache before it takes its own.

    Before 3.9 the key of a function holds the constants of those callees only that have a key already: processes that
    came to their kernels in another order would not find what others have compiled.
    """
    _settle(function, set())


def _settle(function: Any, entered: set[int]) -> None:
    if function.hash is not None or id(function) in entered:
        return
    entered.add(id(function))
    for callee in _callees(function):
        _settle(callee, entered)
    _ = function.cache_key


def _callees(function: Any) -> Iterator[JITCallable]:
    """The functions that a kernel's code names, also by their module."""
    names = function.fn.__code__.co_names
    reached = {**function.__globals__, **inspect.getclosurevars(function.fn).nonlocals}
    for name in names:
        value = reached.get(name)
        if isinstance(value, JITCallable):
            yield value
        elif isinstance(value, ModuleType):
            found = (getattr(value, each, None) for each in names)
            yield from (each for each in found if isinstance(each, JITCallable))


def launches_are_hooked() -> bool:
    """Whether somebody, a profiler say, asked Triton to be called at each launch."""
    runtime = triton.knobs.runtime
    return bool(_called(runtime.launch_enter_hook) or _called(runtime.launch_exit_hook))


def _called(hook: Any) -> Any:
    """What a chain of hooks calls; before there were chains, the hook itself."""
    return getattr(hook, "calls", hook)


def hash_compiler() -> None:
    """Have Triton take the hash of itself, part of every key of its cache: 0.3 s, once, that forks then share."""
    from triton.runtime.cache import triton_key

    triton_key()


def build_launcher(compiled: Any) -> None:
    """Build what the host launches a kernel by, into Triton's cache, without loading the kernel.

    Before 3.9 that is an extension module of its own for every signature, which the host's C compiler makes in a
    quarter of a second; since then one module serves all kernels.
    """
    from triton.backends.nvidia import driver

    if hasattr(driver, "make_launcher"):
        driver.CudaLauncher(compiled.src, compiled.metadata)


def _first(owner: Any, *names: str) -> Any:
    """The attribute of the first of some names that there is."""
    return getattr(owner, next((name for name in names if hasattr(owner, name)), names[0]))


class Whole:
    """A named tuple among a kernel's constants that the compiler hands on in one piece.

    Since 3.8 it takes tuples apart, at every call within a kernel: a schedule has some thousand values, and a kernel
    then takes five times as long to compile. A kernel reads fields as ever.
    """

    __slots__ = ("_fields_of",)

    def __init__(self, fields: tuple[Any, ...]) -> None:
        self._fields_of = fields

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return whole(getattr(self._fields_of, name))

    def __getitem__(self, place: int) -> Any:
        return whole(self._fields_of[place])

    def __len__(self) -> int:
        return len(self._fields_of)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Whole) and self._fields_of == other._fields_of

    def __hash__(self) -> int:
        return hash(self._fields_of)

    def __repr__(self) -> str:
        return repr(self._fields_of)

    def mangle(self) -> str:
        """Its part of the names of functions."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]


def whole(value: Any) -> Any:
    """A constant, and named tuples in it in one piece."""
    if isinstance(value, tuple):
        return Whole(value) if hasattr(value, "_fields") else tuple(map(whole, value))
    return value
