"""The differences between versions of Triton, known to no other module of weft.

This one looks up what a version offers, where that can be done.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import triton.language as tl
from triton.runtime.jit import JITCallable

from weft.gpu.common import release

ODD_RUNS_STATED = tl.constexpr(release.ODD_RUNS_STATED)

# Whether the compiler has all threads of a role meet before one arrives at an mbarrier for them. Before 3.8 it does so
# only where it sees that one may still be reading or writing shared memory.
ARRIVALS_MEET = tl.constexpr(release.RELEASE >= (3, 8))


class GluonNames(NamedTuple):
    """The functions of Gluon that kernels call and whose names have changed."""

    meet_threads: Callable[..., Any]  # all threads of a role: `thread_barrier` in 3.6
    tma_load: Callable[..., Any]  # from 3.8 on `async_load` and `async_store`; the longer names end with 3.8
    tma_store: Callable[..., Any]
    reinterpret: Callable[..., Any]  # shared memory as another shape and layout: public since 3.9


def gluon_names() -> GluonNames:
    """The names of the Triton that is here. `ImportError` or `AttributeError` where it has none that is known."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import tma

    return GluonNames(
        _first(gl, "barrier", "thread_barrier"),
        _first(tma, "async_load", "async_copy_global_to_shared"),
        _first(tma, "async_store", "async_copy_shared_to_global"),
        _first(gl.shared_memory_descriptor, "reinterpret", "_reinterpret"),
    )


def settle_keys(values: Iterable[Any]) -> None:
    """`settle_key` for each function among them, and in tuples among them."""
    for value in values:
        if isinstance(value, JITCallable):
            settle_key(value)
        elif isinstance(value, tuple):
            settle_keys(value)


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
