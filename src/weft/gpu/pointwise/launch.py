"""A pass bound to the layouts of its tensors: it serves from the second call on, from the first where it is at hand.

Its kernel is found in the store of cubins, or compiled in a thread while calls go on. Whoever needs it waits until
twice the time has passed that it was expected to take, a second at least; if it is not there then, it never is. So what
a call is served by depends on its number and on the store alone.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from contextlib import suppress
from functools import lru_cache
from time import monotonic
from weakref import WeakSet

import torch

from weft.base.caches import BoundedCache
from weft.base.figures import duration
from weft.base.forks import is_forked
from weft.base.log import log
from weft.errors import UnsupportedError
from weft.gpu.common import cubins
from weft.gpu.common.cubins import Cubin, Loaded, load
from weft.gpu.common.direct import DirectLaunch
from weft.gpu.pointwise import nvrtc
from weft.gpu.pointwise.source import NAME, THREADS, Body, KernelText, Passage, kernel_text
from weft.planner.registry import first_line
from weft.planner.schedule import Scalar, Target
from weft.planner.validity import can_build

LEAST = 1.0  # seconds that a call waits for a compilation, from its beginning on,
_EXPECTED = 0.1  # and half of those for it and each that is under way before
_KERNELS = BoundedCache(1024)  # by key and device
_under_way: WeakSet[Future[Loaded]] = WeakSet()


class PassKernel:
    """One kernel on a device. `settled` is what calls may count on: the kernel, why there is none, or None before
    anybody has waited for it."""

    def __init__(self, text: KernelText, key: str, target: Target) -> None:
        self.settled: Loaded | str | None = cubins.loaded(key, target, target.index)
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
    if not can_build(target):
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


_TORCH_MODES = 25
_DOUBLE, _WORD = struct.Struct("=d"), struct.Struct("=q")


class Pass:
    """One pass over tensors. Ask `serves` once in each call; then call it with the tensors, coordinates left out."""

    def __init__(self, passage: Passage, kernel: PassKernel, factors: Sequence[torch.dtype], device: int) -> None:
        self._passage, self._kernel, self._device = passage, kernel, device
        self._are_float = tuple([dtype.is_floating_point for dtype in factors])
        starts = [start for start, index in zip(passage.starts, passage.form.indices, strict=True) if not index]
        self._starts = starts if any(starts) else None
        # The first call is served by torch's operations, which take at most 25 modes on a GPU.
        self._awaited = kernel.settled is None and passage.form.modes <= _TORCH_MODES
        self._over = False
        self._launch: Callable[[Sequence[int]], None] | None = None

    @property
    def serves(self) -> bool:
        """Whether the pass serves this call; its kernel is waited for in the second one."""
        return self._launch is not None or (not self._over and self._takes_over())

    def _takes_over(self) -> bool:
        first, self._awaited = self._awaited, False
        if first or torch.cuda.is_current_stream_capturing() or is_forked():
            return False
        loaded = self._kernel.wait()
        if not isinstance(loaded, str):
            programs, numbers = self._passage.programs, self._passage.numbers
            self._launch = DirectLaunch.of(loaded.cubin, loaded.function, programs, self._device, numbers)
        self._over = self._launch is None
        return not self._over

    def __call__(self, tensors: Sequence[torch.Tensor], *factors: Scalar) -> None:
        """Launch on torch's current stream, with a factor for each that the pass was made for."""
        words = [tensor.data_ptr() for tensor in tensors]
        if self._starts is not None:
            words = [word + start for word, start in zip(words, self._starts, strict=True)]
        for factor, is_float in zip(factors, self._are_float, strict=True):
            words.append(_WORD.unpack(_DOUBLE.pack(factor))[0] if is_float else int(factor.real))
        assert self._launch is not None, "it serves"
        if self._device == torch._C._cuda_getDevice():
            self._launch(words)
        else:
            with torch.cuda.device(self._device):
                self._launch(words)

    @property
    def state(self) -> str:
        """One sentence for `explain`."""
        settled = self._kernel.settled
        if isinstance(settled, str):
            return f"torch's operations: the fused pass is not there, {settled}"
        width = self._passage.form.width
        when = "" if self._launch is not None or not self._awaited else " from the second call on"
        return f"one fused pass{when}, {width} element{'s' * (width > 1)} a thread"


def made_pass(passage: Passage, factors: Sequence[torch.dtype], body: Body, target: Target) -> Pass | str:
    """A pass whose kernel is at hand or on its way; or, in a sentence, why there is none."""
    try:
        text = kernel_text(passage.form, factors, body)
    except UnsupportedError as error:
        return f"torch's operations: {error}"
    kernel = kernel_of(text, target)
    if isinstance(kernel, str):
        return f"torch's operations: {kernel}"
    return Pass(passage, kernel, factors, target.index)
