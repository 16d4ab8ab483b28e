"""Readers of the commands' options: extents, number types, devices, functions by name, lists of cases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.base.figures import nearest
from weft.errors import NotationError, UnsupportedError

if TYPE_CHECKING:
    import torch

FunctionName = Annotated[
    str | None, typer.Option(help="A function of torch or weft.functions, by name; several with commas.")
]
_POWERS = {"K": 1e3, "M": 1e6, "G": 1e9}
_MOST = 10000  # numbers of one range
_ROOM = 60  # characters of a mistyped part that an error repeats


def read_extents(text: str) -> dict[str, int]:
    """``a=16,b=8`` as a mapping from labels to extents."""
    return _numbers(text, "--extents", "a=16")


def _numbers(text: str, option: str, form: str) -> dict[str, int]:
    return _named(text.split(","), option, form, whole)


def _named(parts: Iterable[str], option: str, form: str, read: Callable[[str], Any]) -> dict[str, Any]:
    """Parts such as ``a=16`` as a mapping; `read`: the value of a text, None where it is none."""
    found: dict[str, Any] = {}
    for part in parts:
        name, sign, text = (piece.strip() for piece in part.partition("="))
        value = read(text) if name and sign else None
        if value is None:
            raise NotationError(f"'{shortened(part.strip())}' in {option} is not of the form {form}")
        once(found, name, value, option)
    return found


def once(found: dict[str, Any], name: str, value: Any, option: str) -> None:
    """Note the value of a name; `NotationError` where the option gives it another one, too."""
    if found.setdefault(name, value) != value:
        raise NotationError(f"{option} gives '{name}' twice: {found[name]} and {value}")


def whole(text: str) -> int | None:
    """A number of decimal digits alone; None for other text, and for more of them than Python reads."""
    with suppress(ValueError):
        return int(text) if text.isdecimal() else None
    return None


def shortened(text: str) -> str:
    """A mistyped part, as far as a line of an error has room for it."""
    return text if len(text) <= _ROOM else f"{text[:_ROOM]}..."


def read_dtype(name: str, option: str = "--dtype") -> torch.dtype:
    """A number type by any of its names: see `weft.spec.dtypes`."""
    from weft.spec import dtypes

    return dtypes.read_dtype(option, name)


def read_work(text: str | None) -> int | None:
    """A number of multiply-adds, as people write one: 10000000, 1e7 or 10M."""
    if text is None:
        return None
    plain, factor = text.strip().replace("_", "").replace(",", ""), 1.0
    if plain[-1:].upper() in _POWERS and not plain[-1:].isdigit():
        plain, factor = plain[:-1], _POWERS[plain[-1:].upper()]
    try:
        found = float(plain) * factor
    except ValueError:
        raise NotationError(f"--work is a number (10000000, 1e7, 10M), not '{text}'") from None
    if not 1 <= found < 2**63 or found != int(found):
        raise NotationError(f"--work is a whole number of at least 1, not '{text}'")
    return int(found)


def read_strides(text: str | None, option: str) -> dict[str, int] | None:
    """``m=1,k=64`` as a mapping from the labels of one operand to strides in elements."""
    return None if text is None else _numbers(text, option, "m=64")


def read_operands(text: str | None, usual: torch.dtype) -> dict[str, tuple[str, torch.dtype]]:
    """``bias=n:float16,scale=m`` as names to modes and number types, `usual` where none is given."""

    def read(given: str) -> tuple[str, torch.dtype]:
        modes, _, dtype = (piece.strip() for piece in given.partition(":"))
        return modes, read_dtype(dtype, "--operands") if dtype else usual

    return _named(split(text), "--operands", "bias=n or bias=n:float16", read)


def read_indices(text: str | None) -> dict[str, str]:
    """``i=m,j=n`` as names to labels."""
    return _named(split(text), "--indices", "i=m", lambda label: label or None)


def read_device(name: str | None, backend: str = "auto") -> torch.device:
    """A device by its name in torch; a GPU where none is named, there is one, and `backend` is not "cpu".

    `UnsupportedError` where it is not there, or `backend` does not serve it.
    """
    import torch

    from weft.planner.target import resolve_backend

    if name is None:
        name = "cuda" if torch.cuda.is_available() and backend != "cpu" else "cpu"
    try:
        found = torch.device(name)
    except RuntimeError:
        raise UnsupportedError(f"'{name}' is no device: cpu, cuda, cuda:1, ...") from None
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise UnsupportedError(f"device '{name}' is not there: torch sees {torch.cuda.device_count()} GPUs")
    resolve_backend(backend, found)
    return found


def read_precision(name: str | None) -> str | torch.dtype | None:
    """A way to make products by name, or the type to make them in."""
    from weft.spec import dtypes

    return dtypes.read_mode("--precision", name, dtypes.PRECISIONS)


def read_function(name: str | None) -> Callable[..., Any] | None:
    """A function of torch.nn.functional, of torch or of `weft.functions`, by its name; several with commas, chained."""
    if name is None:
        return None
    if "," in name:
        from weft.functions import chain

        return chain(*(_function(part) for part in split(name)))
    return _function(name.strip())


def _function(name: str) -> Callable[..., Any]:
    import torch

    from weft import functions

    rooms = (torch.nn.functional, torch, functions)
    found = next((each for room in rooms if callable(each := getattr(room, name, None))), None)
    if found is None:
        words = [word for room in (functions, torch.nn.functional) for word in dir(room) if not word.startswith("_")]
        raise NotationError(
            f"neither torch.nn.functional nor torch nor weft.functions has a function '{name}'{nearest(name, words)}"
        )
    return found


def read_contraction(functions: Mapping[str, str | None], precision: str | None, **types: str | None) -> dict[str, Any]:
    """The functions, number types and precision of a contraction, as `weft.api.describe.hypothetical` takes them."""
    found: dict[str, Any] = {"precision": read_precision(precision)}
    for what, name in types.items():
        found[what] = None if name is None else read_dtype(name, f"--{what.replace('_', '-')}")
    return found | {hook: read_function(name) for hook, name in functions.items()}


def split(text: str | None) -> tuple[str, ...]:
    """The parts between commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text else ()


def split_cases(text: str | None) -> tuple[str, ...]:
    """Numbers, ranges of numbers spelled out, and names."""
    found: list[str] = []
    for part in split(text):
        numbers = span(part, "--cases") if "-" in part else None
        if numbers is not None:
            found += map(str, numbers)
        else:
            found.append(part)
    return tuple(found)


def span(text: str, option: str) -> range | None:
    """``3`` or ``8-11`` as numbers; None for other text."""
    first, dash, last = (piece.strip() for piece in text.partition("-"))
    low, high = whole(first), whole(last if dash else first)
    if low is None or high is None:
        return None
    if low > high:
        raise NotationError(f"'{text}' in {option} ends before it begins")
    if high - low >= _MOST:
        raise NotationError(f"'{shortened(text)}' in {option} is of more than {_MOST} numbers")
    return range(low, high + 1)
