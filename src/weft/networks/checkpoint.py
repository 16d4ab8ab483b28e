"""The progress of a long run, stored in a folder: partial sums, and the numbers of the slices added into them.

Every process of a run has a file of its own there, which it writes anew from time to time (a temporary file, fsync,
rename: nobody sees a part of one). A run that goes on reads all files, takes each up into one of its own, and says in
it which ones those were: they no longer count from the moment on that the new file is there, and are removed then.

    000002-0.npz    the second run of this checkpoint, rank 0:  header (JSON), sums (bytes)

Ranks must agree on the identity of a computation, and a checkpoint is compared with it: functions are distinguished by
what they compute, operands by all their bytes. Kernels are not part of it: a run may go on on another device.

Nothing is unpickled. A file that cannot be read is an error, not an empty one: what it holds is hours of work.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.algebra import NAMED, Algebra
from weft.base.arrays import as_bytes, without_neg
from weft.base.figures import digest, shortened
from weft.base.files import write_whole
from weft.errors import ArgumentError, WeftError
from weft.fn import trace
from weft.networks.plan import NetworkPlan
from weft.networks.tree import Tree
from weft.spec.dtypes import dtype_name

FORMAT = 1
_CHUNK = 1 << 24  # elements that are copied to the host at once
PATTERN = "[0-9]*-[0-9]*.npz"


@dataclass
class HeldSums:
    """Partial sums, in memory: by part of the result, and the exponent (to the base of two) that all share."""

    parts: dict[int, torch.Tensor] = field(default_factory=dict)
    exponent: float | None = None


class Saved(NamedTuple):
    """The header of a file."""

    name: str
    done: Sequence[tuple[int, int]]  # slices, from the first up to the last and not with it
    parts: Sequence[int]
    includes: Sequence[str]  # files whose sums are in this one


def done(files: Iterable[Saved]) -> list[int]:
    """The slices whose sums stand in files."""
    return [number for file in files for first, stop in file.done for number in range(first, stop)]


class Checkpoint:
    """A folder with the state of one computation. `identity` says, by name, what the computation is."""

    def __init__(self, path: Any, identity: Mapping[str, str], slices: int) -> None:
        self.folder = Path(path)
        self._identity, self._slices = dict(identity), slices

    def found(self) -> list[Saved]:
        """The files that count, by name; `ArgumentError` where one belongs to something else or cannot be read."""
        if not self.folder.exists():
            return []
        if not self.folder.is_dir():
            raise ArgumentError(f"checkpoint={str(self.folder)!r} is a file: a checkpoint is a folder of its own")
        every = [self._header(file) for file in sorted(self.folder.glob(PATTERN))]
        gone = {name for one in every for name in one.includes}
        counting = [one for one in every if one.name not in gone]
        several = _several(range_ for one in counting for range_ in one.done)
        if several is not None:
            raise ArgumentError(
                f"two files of the checkpoint {self.folder} hold slice {several}: two runs have written there at once"
            )
        return counting

    def next_run(self) -> int:
        """The number of a run that begins now."""
        names = [file.name for file in self.folder.glob(PATTERN)]
        return 1 + max((int(name.partition("-")[0]) for name in names), default=0)

    def read(self, name: str) -> HeldSums:
        """The sums of one file, on the CPU."""
        with self._opened(self.folder / name) as (header, stored):
            dtype, shape = getattr(torch, header["dtype"]), header["shape"]
            rows = [torch.tensor(row, device="cpu").view(dtype).view(shape) for row in stored["sums"]]
            return HeldSums(dict(zip(header["parts"], rows, strict=True)), header["exponent"])

    def write(self, name: str, held: HeldSums, done: Iterable[int], includes: Sequence[str]) -> None:
        """Replace file `name`; then remove those that it includes. Raises `OSError`."""
        first = next(iter(held.parts.values()), torch.empty(0, device="cpu"))
        header = {
            "format": FORMAT, "identity": self._identity, "slices": self._slices, "done": ranges(done),
            "parts": list(held.parts), "includes": list(includes), "exponent": held.exponent,
            "dtype": dtype_name(first.dtype), "shape": list(first.shape),
        }  # fmt: skip
        size = first.numel() * first.element_size()
        sums = np.empty((len(held.parts), size), dtype=np.uint8)
        for row, part in zip(sums, held.parts.values(), strict=True):
            row[:] = as_bytes(part.detach().cpu().contiguous()).numpy()
        stream = io.BytesIO()
        np.savez(stream, header=np.frombuffer(json.dumps(header).encode(), dtype=np.uint8), sums=sums)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / name, stream.getvalue())
        for other in includes:
            with contextlib.suppress(FileNotFoundError):
                (self.folder / other).unlink()

    def _header(self, file: Path) -> Saved:
        with self._opened(file) as (header, _):
            if header["format"] != FORMAT:
                raise ArgumentError(
                    f"{file} has format {header['format']}, this version of weft reads {FORMAT}: choose another folder"
                )
            self._check(header["identity"])
            return Saved(file.name, header["done"], header["parts"], header["includes"])

    def _check(self, theirs: Mapping[str, str]) -> None:
        names = [*self._identity, *(name for name in theirs if name not in self._identity)]
        differ = [name for name in names if self._identity.get(name) != theirs.get(name)]
        if differ:
            more = f" and {len(differ) - 3} more" if len(differ) > 3 else ""
            raise ArgumentError(
                f"the checkpoint {self.folder} is of another computation: it has other {', '.join(differ[:3])}{more}. "
                "Choose another folder, or remove this one"
            )

    @staticmethod
    @contextlib.contextmanager
    def _opened(file: Path) -> Iterator[tuple[Any, Any]]:
        """The header of a file, and all that is in it; `ArgumentError` where what is needed cannot be read."""
        try:
            with np.load(file, allow_pickle=False) as stored:
                yield json.loads(stored["header"].tobytes()), stored
        except WeftError:
            raise
        except _UNREADABLE as error:
            raise ArgumentError(
                f"{file} of the checkpoint cannot be read ({error or type(error).__name__}); without it, its slices "
                "are computed again: remove it to go on so"
            ) from error


_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, RuntimeError, zipfile.BadZipFile)


def ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Numbers as runs without gaps, from the first up to the last and not with it."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number:
            found[-1][1] += 1
        else:
            found.append([number, number + 1])
    return found


def _several(spans: Iterable[tuple[int, int]]) -> int | None:
    """A number that stands in two of these spans."""
    last = 0
    for first, stop in sorted(spans):
        if first < last:
            return first
        last = max(last, stop)
    return None


def identity_of(network: NetworkPlan) -> dict[str, str]:
    """The network without the values of its operands."""
    graph, settings = network.graph, network.settings
    options = settings.options
    algebra = options.algebra
    return {
        "shapes of operands": shortened(",".join(str(operand.shape) for operand in graph.operands)),
        "types": shortened(", ".join(dtype_name(network.whole_dtypes[node]) for node in sorted(network.whole_dtypes))),
        "labels": digest((graph.terms, graph.output, graph.extents)),
        "path": digest((network.whole.path, network.folded.given)),
        "slices": f"{network.tree.slices} over {_sliced(network.tree)}",
        "functions": digest(_functions(network)),
        "precision": f"{options.precision}, {options.accumulate}",
        "algebra": "plus_times" if algebra is None else _algebra(algebra, network.dtype),
        "exponents": str(settings.strip_exponent),
    }  # fmt: skip


def _sliced(tree: Tree) -> list[int | tuple[int, int]]:
    """The sliced labels, with the number of indices in a slice where it has several."""
    each = zip(tree.sliced_labels, tree.stretches, strict=True)
    return [label if length == 1 else (label, length) for label, length in sorted(each)]


def values_of(network: NetworkPlan, operands: Sequence[torch.Tensor]) -> dict[str, str]:
    """A digest of all values of each operand, those that constants were made into at the end."""
    given = network.folded.given
    names = [f"values of operand {at}" for at in given]
    names += [f"values of constants ({at})" for at in range(len(operands) - len(given))]
    return {name: digest_of(tensor) for name, tensor in zip(names, operands, strict=True)}


def digest_of(tensor: torch.Tensor) -> str:
    """Digest of a tensor's values in the order of its modes; strides and device do not matter."""
    found = hashlib.blake2b(digest_size=16)
    plain = without_neg(tensor.detach())
    flat = plain.resolve_conj().reshape(-1)  # a view where it is stored without gaps
    for chunk in flat.split(_CHUNK):
        found.update(as_bytes(chunk.cpu().contiguous()).numpy().data)
    return found.hexdigest()


def computed(network: NetworkPlan) -> str:
    """The computations of the functions of nodes, and of an algebra, as they are now."""
    algebra = network.settings.options.algebra
    return repr((_functions(network), None if algebra is None else _algebra(algebra, network.dtype)))


def _functions(network: NetworkPlan) -> list[tuple[int, str]]:
    functions, dtypes = network.whole_functions, network.whole_dtypes
    return [(node, _function(function, dtypes[node])) for node, function in sorted(functions.items())]


def _function(function: Callable[..., Any], dtype: torch.dtype) -> str:
    try:
        return trace(function, (dtype,)).identity
    except WeftError:  # it is refused where the step is planned, in the words of that place
        return getattr(function, "__qualname__", type(function).__name__)


def _algebra(algebra: Algebra, dtype: torch.dtype) -> str:
    """The name, and of an algebra that is not one of weft's own a digest of what it computes."""
    if NAMED.get(algebra.name) is algebra:
        return algebra.name
    try:
        traced = algebra.traced(dtype)
    except WeftError:  # as for functions
        return algebra.name
    return f"{algebra.name} ({digest((traced.combine.identity, traced.reduce.identity, traced.identity))})"
