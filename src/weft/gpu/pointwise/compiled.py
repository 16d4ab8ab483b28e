"""A kernel of a pass: found in the store of cubins, or compiled in a thread while calls go on.

Whoever needs it waits until twice the time has passed that it was expected to take, a second at least; if it is not
there then, it never is. So what a call is served by depends on its number and on the store alone.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from contextlib import suppress
from functools import lru_cache
from time import monotonic
from weakref import WeakSet

import torch

from weft.base.bounded_cache import BoundedCache
from weft.base.figures import duration
from weft.base.log import log
from weft.gpu.common import cubins
from weft.gpu.common.cubin import Cubin
from weft.gpu.common.loading import Loaded, LoadError, load
from weft.gpu.pointwise import nvrtc
from weft.gpu.pointwise.form import THREADS
from weft.gpu.pointwise.source import NAME, KernelText
from weft.planner.registry import first_line
from weft.planner.schedule import Target
from weft.planner.validity import here

LEAST = 1.0  # seconds that a call waits for a compilation, from its beginning on,
_EXPECTED = 0.1  # and half of those for it and each that is under way before
_KERNELS = BoundedCache(1024)  # by key and device
_under_way: WeakSet[Future[Loaded]] = WeakSet()


class PassKernel:
    """One kernel on a device. `settled` is what calls may count on: the kernel, why there is none, or None before
    anybody has waited for it."""

    def __init__(self, text: KernelText, key: str, target: Target) -> None:
        self.settled: Loaded | str | None = _found(key, target)
        self._process = os.getpid()
        if self.settled is None:
            before = sum(not each.done() for each in list(_under_way))
            self._until = monotonic() + max(LEAST, 2 * _EXPECTED * (before + 1))
            self._made: Future[Loaded] = _compilers(self._process).submit(_made, text, key, target)
            _under_way.add(self._made)

    def wait(self) -> Loaded | str:
        """The kernel, or why there is none."""
        if self.settled is None:
            self.settled = self._awaited()
            if isinstance(self.settled, str):
                log.warning("functions go on as torch's operations: their fused pass is not there: %s", self.settled)
        return self.settled

    def _awaited(self) -> Loaded | str:
        if os.getpid() != self._process:
            return "the process was forked while it was compiled"
        try:
            return self._made.result(max(0.0, self._until - monotonic()))
        except LateError:
            return "its compiler was late"
        except Exception as error:  # of the compiler or the device
            return first_line(error)


def kernel_of(text: KernelText, target: Target) -> PassKernel | str:
    """The kernel of a text on a device, one for all passes; or, in a sentence, why there can be none."""
    if target.kind != "cuda" or not target.capability:
        return "it is made for NVIDIA GPUs alone"
    if not here(target) or torch.cuda.is_current_stream_capturing():
        return "nothing is compiled or loaded without a GPU, or while a CUDA graph is captured"
    compiler = nvrtc.identity()
    if compiler is None:
        return "there is no NVRTC, which compiles it"
    content = "\n".join((NAME, compiler, f"sm_{target.capability}", repr(text.sizes), text.source))
    key = hashlib.sha256(content.encode()).hexdigest()[:32]
    known: PassKernel | None = _KERNELS.get((key, target.index))
    if known is None:
        try:
            known = PassKernel(text, key, target)
        except RuntimeError as error:  # the interpreter ends, and begins no more threads
            return first_line(error)
        _KERNELS.put((key, target.index), known)
    return known


def _found(key: str, target: Target) -> Loaded | None:
    """The kernel of an earlier process, loaded."""
    cubin = cubins.found(key, target.capability)
    if cubin is None:
        return None
    try:
        return load(cubin, target.index)
    except LoadError:
        cubins.forget(key, target.capability)
        return None


def _made(text: KernelText, key: str, target: Target) -> Loaded:
    """The kernel compiled, kept for later processes, and loaded."""
    begun = monotonic()
    code = nvrtc.compiled(text.source, target.capability)
    cubin = Cubin(
        code, NAME, THREADS, barriers=1, shared=0, tensor_memory=0, pdl=False, sizes=text.sizes, maps=(), triton=""
    )
    loaded = load(cubin, target.index)
    with suppress(OSError):
        cubins.keep(key, target.capability, cubin)
    log.info("%s: a fused pass was compiled in %s", target.name, duration(monotonic() - begun))
    return loaded


@lru_cache(maxsize=1)
def _compilers(process: int) -> ThreadPoolExecutor:
    """Threads of a process, which end before the interpreter does."""
    return ThreadPoolExecutor(2, "weft compiles a pass")
