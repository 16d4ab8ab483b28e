"""A pass bound to the layouts of its tensors: it serves from the second call on, from the first where it is at hand."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import torch

from weft.base.forks import is_forked
from weft.errors import UnsupportedError
from weft.gpu.common.driver import DirectLaunch
from weft.gpu.pointwise.compiled import PassKernel, kernel_of
from weft.gpu.pointwise.form import Passage
from weft.gpu.pointwise.source import Body, kernel_text
from weft.planner.schedule import Scalar, Target

_TORCH_MODES = 25
_DOUBLE, _WORD = struct.Struct("=d"), struct.Struct("=q")


class Pass:
    """One pass over tensors. Ask `serves` once in each call; then call it with the tensors, coordinates left out."""

    def __init__(self, passage: Passage, kernel: PassKernel, factors: Sequence[torch.dtype], device: int) -> None:
        self._passage, self._kernel, self._device = passage, kernel, device
        self._are_float = tuple([dtype.is_floating_point for dtype in factors])
        starts = [
            start for start, index in zip(passage.starts, passage.form.indices, strict=True) if not index
        ]
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
