"""Arrays for libraries that work through autoray: where they lie, and what backend `weft` has besides contractions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from weft.base.arrays import as_tensor, like
from weft.errors import UnsupportedError
from weft.spec.arguments import reads
from weft.spec.dtypes import DTypeLike, read_dtype

# What cotengra asks a backend for beside contractions, to keep exponents apart and to gather slices.
_BESIDE: dict[str, Any] = {
    "abs": torch.abs, "max": torch.amax, "log10": torch.log10, "stack": torch.stack, "reshape": torch.reshape,
    "sum": torch.sum, "conj": torch.conj,
}  # fmt: skip


def register() -> None:
    """Tell autoray, where that is installed, what the backend named weft has beside the contractions of weft itself."""
    try:
        import autoray
    except ModuleNotFoundError:
        return
    for name, function in _BESIDE.items():
        autoray.register_function("weft", name, _of_tensors(function))


@reads("hooks.to_backend")
def to_backend(
    device: str | torch.device | None = None, dtype: DTypeLike | None = None
) -> Callable[[Any], torch.Tensor]:
    """A function from any array to a torch tensor: what quimb takes as `to_backend`.

    `device`: where the tensors lie, by default the GPU where there is one. `dtype`: their type, by default the array's;
    a complex array keeps the complex type of that precision where `dtype` is real.

    >>> import numpy, weft.hooks
    >>> weft.hooks.to_backend("cpu", "complex64")(numpy.eye(2)).dtype
    torch.complex64
    """
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    wanted = None if dtype is None else read_dtype("dtype", dtype)

    def convert(array: Any) -> torch.Tensor:
        tensor = as_tensor("array", array, True)
        if tensor.is_meta and place.type != "meta":
            raise UnsupportedError("array is a meta tensor, which has no values")
        kind = tensor.dtype if wanted is None else wanted
        if tensor.is_complex() and not kind.is_complex:
            kind = kind.to_complex()
        return tensor.to(place, kind)

    return convert


def _of_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` for arrays of any library, one or a sequence of them."""

    def call(array: Any, *arguments: Any, **keywords: Any) -> Any:
        whole = isinstance(array, (tuple, list))
        given = [as_tensor("array", one, True) for one in array] if whole else as_tensor("array", array, True)
        return like(array[0] if whole else array, function(given, *arguments, **keywords))

    return call
