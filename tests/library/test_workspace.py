"""Operations of torch take no more memory than the library's families say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from library.calls import (
    SIZES,
    case,
    moved,
    run,
    without_halves,  # noqa: F401  for every test here
)


class Watched(TorchDispatchMode):
    """The most bytes that operations have made and not given back, besides tensors that were there before."""

    def __init__(self, *known: torch.Tensor) -> None:
        super().__init__()
        self._known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self._known:
                    self._made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._made = {key: each for key, each in self._made.items() if not each[0].expired()}
        self.most = max(self.most, sum(size for _, size in self._made.values()))
        return found


@pytest.mark.one_of(3)
@pytest.mark.parametrize("device", ["cpu", "stand-in"])
@pytest.mark.parametrize("options", [
    {}, {"a_fn": torch.tanh, "epilogue": torch.relu}, {"epilogue": lambda x: torch.exp(x) * torch.sin(x) + x},
    {"precision": torch.float16}, {"algebra": "max_plus"}, {"algebra": "log"}, {"epilogue": lambda x: (x, x + 1)},
], ids=lambda options: "-".join(options) or "plain")  # fmt: skip
@pytest.mark.parametrize("equation", ["mk,kn->mn", "amk,kbn->bnma", "mik,kn->mn", "m,n->nm", "ab,ab->ba"])
@pytest.mark.parametrize("limit", [None, 20000])
def test_no_more_workspace_than_said(equation: str, options: dict[str, Any], limit: int | None, device: str) -> None:
    sizes = {label: 2 * extent for label, extent in SIZES.items()}
    call = case(equation, sizes, **options)
    try:
        found = run(call, device, limit)
    except AssertionError as error:
        assert "bytes of workspace, the limit is" in str(error)  # noqa: PT017  the least is more
        return
    a, b = moved(call.a, "cpu"), moved(call.b, "cpu")
    d, *others = found.results
    with Watched(a, b, d, *others) as watched:
        found.choice.build()(a, b, None, d, 1, 0, tuple(others))
    assert watched.most <= found.choice.best.schedule.workspace_bytes
    assert limit is None or watched.most <= limit
