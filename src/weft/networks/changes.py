"""Which operands are other than in the last call: by identity and version, or as the caller says."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Hashable, Sequence
from threading import RLock
from typing import Any

import torch

from weft.base.arrays import without_memory
from weft.base.kept import is_capturing


class Changes:
    """The operands, and their versions, from which a program made the intermediates it holds.

    torch counts a tensor's version up with every operation that writes it in place, and so does weft. Neither sees what
    fused optimizers, `data` of a tensor and other libraries write. Optimizers write what requires a gradient: that
    counts as changed in every call.
    """

    def __init__(self) -> None:
        self.lock = RLock()  # a call holds it from what has changed to the end of its steps
        self._program: Any = None
        self._seen: list[tuple[weakref.ref[torch.Tensor], Any]] = []

    def since(self, program: Any, operands: Sequence[torch.Tensor], said: Collection[int] | None) -> set[int] | None:
        """Places of operands that changed since the last call; None where all steps have to run.

        So they have within the capture of a CUDA graph, whose intermediates are its own.
        """
        if program is not self._program or len(self._seen) != len(operands):
            return None
        self._program = None  # until the call is done
        if is_capturing(program.device):
            return None
        if said is not None:
            return set(said)
        return {
            at for at, (tensor, (known, state)) in enumerate(zip(operands, self._seen, strict=True))
            if known() is not tensor or state is None or state_of(tensor) != state or tensor.requires_grad
        }  # fmt: skip

    def done(self, program: Any, operands: Sequence[torch.Tensor]) -> None:
        """A call has run to its end; one that is captured has not."""
        if is_capturing(program.device):
            return
        self._program = program
        self._seen = [(weakref.ref(tensor), state_of(tensor)) for tensor in operands]


def state_of(tensor: torch.Tensor) -> Hashable | None:
    """All by which a tensor shows that it was written, or given other memory; None for what torch does not count, as in
    inference mode."""
    if tensor.is_inference() or without_memory(tensor):
        return None
    return tensor._version, tensor.data_ptr(), tensor.shape, tensor.stride()
