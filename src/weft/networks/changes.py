"""Which operands are other than in the last call: by identity and version, or as the caller says."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from threading import RLock
from typing import Any

import torch

from weft.base.kept import is_capturing


class Changes:
    """The operands, and their versions, from which a program made the intermediates it holds.

    torch counts a tensor's version up with every operation that writes it in place. It does not see what a kernel of
    its own, or another library, has written.
    """

    def __init__(self) -> None:
        self.lock = RLock()  # a call holds it from what has changed to the end of its steps
        self._program: Any = None
        self._seen: list[tuple[weakref.ref[torch.Tensor], int, int | None]] = []

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
            at for at, (tensor, (known, address, version)) in enumerate(zip(operands, self._seen, strict=True))
            if known() is not tensor or tensor.data_ptr() != address or version is None or _version(tensor) != version
        }  # fmt: skip

    def done(self, program: Any, operands: Sequence[torch.Tensor]) -> None:
        """A call has run to its end; one that is captured has not."""
        if is_capturing(program.device):
            return
        self._program = program
        self._seen = [(weakref.ref(tensor), tensor.data_ptr(), _version(tensor)) for tensor in operands]


def _version(tensor: torch.Tensor) -> int | None:
    """How often a tensor was written; None for one of inference mode: torch does not count there."""
    return None if tensor.is_inference() else tensor._version
