"""Functions that other libraries call: cotengra's two for pairs of tensors and a whole tree as one network, PySCF with
weft in the place of its contractions, and arrays for what works through autoray."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from weft.api.einsum import einsum
from weft.api.numpy_words import tensordot
from weft.base.arrays import as_tensor, like
from weft.base.dispatch import outside_graphs
from weft.engine.memo import Memo
from weft.errors import ArgumentError, ShapeError, UnsupportedError
from weft.networks.network import Network
from weft.networks.public import network
from weft.plans.keywords import refuse_unknown
from weft.spec.arguments import reads
from weft.spec.dtypes import DTypeLike, read_dtype

if TYPE_CHECKING:
    import cotengra as ctg

Pair = tuple[Callable[..., Any], Callable[..., Any]]


def cotengra(**options: Any) -> Pair:
    """The pair ``(einsum, tensordot)`` that cotengra takes as `implementation=`.

    ``tree.contract(arrays, implementation=weft.hooks.cotengra())``, or of `cotengra.einsum` and its kin. `options` are
    keywords of `weft.contract` and hold for each pair: `precision`, `promote`, `specialize`, `backend` ... Raises
    `ArgumentError` for others.

    >>> import cotengra, torch, weft.hooks
    >>> x = torch.eye(3)
    >>> cotengra.einsum("ab,bc,cd->ad", x, x, x, implementation=weft.hooks.cotengra())
    tensor([[1., 0., 0.],
            [0., 1., 0.],
            [0., 0., 1.]])
    """
    refuse_unknown("einsum", options, "weft.hooks.cotengra")
    return partial(einsum, **options), partial(tensordot, **options)


@contextmanager
def implementing(**options: Any) -> Iterator[None]:
    """Within it cotengra contracts by weft wherever it is asked for nothing else, and so does quimb.

    `options` as for `cotengra`. It holds for the whole process, as cotengra's default does.
    """
    from cotengra.contract import default_implementation

    with default_implementation(cotengra(**options)):
        yield


_NETWORKS = Memo("contract_tree: networks", 64)


@outside_graphs
@reads("hooks.contract_tree")
def contract_tree(
    tree: ctg.ContractionTree, arrays: Sequence[Any], *, strip_exponent: bool = False, **options: Any
) -> Any:
    """Contract `arrays` along a `cotengra.ContractionTree`, slices included, as a `weft.network`.

    `arrays`: one for each of ``tree.inputs``, of the extents that ``tree.size_dict`` has. `options`: keywords of
    `weft.network` (`precision`, `memory_limit`, `progress`, ...). With `strip_exponent` the result is ``(mantissa,
    exponent)`` and stands for ``mantissa * 10**exponent``, so that a value past the range of the type comes out right.
    The network is kept for further calls with the same tree and options; ``weft.network(tree.inputs, *arrays,
    output=tree.output, optimize=tree)`` is the same without a search for what is kept.

    Returns the kind of array that the first of `arrays` is. Raises `ArgumentError` for what is no tree, `ShapeError`
    for arrays that do not fit it, and what `weft.network` raises.
    """
    refuse_unknown("hooks.contract_tree", options)
    if not (hasattr(tree, "get_ssa_path") and hasattr(tree, "size_dict")):
        raise ArgumentError(f"tree is a cotengra.ContractionTree, not {type(tree).__name__}")
    tensors = [as_tensor(f"arrays[{at}]", array).resolve_neg() for at, array in enumerate(arrays)]
    _check_arrays(tree, tensors)
    found: Any = _network(tree, tensors, {**options, "strip_exponent": strip_exponent})(*tensors)
    return (like(arrays[0], found[0]), float(found[1])) if strip_exponent else like(arrays[0], found)


def _network(tree: ctg.ContractionTree, tensors: Sequence[Any], options: dict[str, Any]) -> Network:
    """The network of a tree, kept by all that it is made of: a tree may be changed in place."""

    def make() -> Network:
        terms = [tuple(term) for term in tree.inputs]
        return network(terms, *tensors, output=tuple(tree.output), optimize=tree, **options)

    made_of = (tuple(map(tuple, tree.inputs)), tuple(tree.output), tree.get_path(), tuple(tree.sliced_inds))
    arrays = tuple([(tuple(tensor.shape), tensor.dtype, tensor.device) for tensor in tensors])
    key = (made_of, arrays, tuple(sorted(options.items(), key=lambda item: item[0])))
    try:
        hash(key)
    except TypeError:  # an option without a hash
        return make()
    return _NETWORKS.made(key, make)


def _check_arrays(tree: ctg.ContractionTree, tensors: Sequence[Any]) -> None:
    if len(tensors) != len(tree.inputs):
        raise ShapeError(f"the tree has {len(tree.inputs)} inputs, {len(tensors)} arrays are given")
    for at, (labels, tensor) in enumerate(zip(tree.inputs, tensors, strict=True)):
        wanted = tuple(tree.size_dict[label] for label in labels)
        if tuple(tensor.shape) != wanted:
            raise ShapeError(f"arrays[{at}] of shape {tuple(tensor.shape)}: the tree has {wanted} for {tuple(labels)}")


Einsum = Callable[..., Any]
_TAKEN = frozenset({"optimize", "out"})  # keywords of NumPy's that mean the same here
_SMALL = 2e6  # products up to which NumPy is as fast: what weft takes for a call of arrays is as long as so many


@contextmanager
def pyscf(**options: Any) -> Iterator[None]:
    """Within it PySCF contracts by weft: ``with weft.hooks.pyscf(): mf.run(); cc.CCSD(mf).run()``.

    `pyscf.lib.einsum`, wherever PySCF's modules have it, and `numpy.einsum` are weft's for as long, in the whole
    process. Types may be mixed and operands may be datasets of h5py, as PySCF passes them. Calls with one operand,
    whose results are views, and with keywords of NumPy's alone (`dtype`, `casting`, `order`) stay what they were. So do
    small contractions, of fewer than two million products, unless there are `options`.

    `options` are keywords of `weft.einsum` and hold for each contraction: `precision`, `specialize`, `backend` ...
    Raises `ArgumentError` for others, and `UnsupportedError` where PySCF is not installed.
    """
    refuse_unknown("einsum", options, "weft.hooks.pyscf")
    try:
        from pyscf import lib
    except ModuleNotFoundError:
        raise UnsupportedError("PySCF is not installed: pip install 'weft-tensor[hooks]'") from None
    own = {np.einsum: _instead_of(np.einsum, options), lib.einsum: _instead_of(lib.einsum, options)}
    _exchange(own)
    try:
        yield
    finally:
        _exchange({weft: theirs for theirs, weft in own.items()})


def _instead_of(theirs: Einsum, options: dict[str, Any]) -> Einsum:
    """A function for the place of `theirs`."""
    return partial(_contract, theirs, options)


def _contract(theirs: Einsum, options: dict[str, Any], *arguments: Any, **keywords: Any) -> Any:
    if len(arguments) < 3 or not keywords.keys() <= _TAKEN:
        return theirs(*arguments, **keywords)
    equation, *arrays = arguments
    if not options and isinstance(equation, str) and _is_small(equation, *[_shape(each) for each in arrays]):
        return theirs(*arguments, **keywords)
    found = einsum(*arguments, **{"promote": True, **options}, **keywords)
    return found if found.ndim or "out" in keywords else found[()]  # a scalar of NumPy's, as there


def _shape(array: Any) -> tuple[int, ...]:
    """The extents of an array or a dataset; none of a list, which is short."""
    return getattr(array, "shape", ())


@lru_cache(maxsize=4096)
def _is_small(equation: str, *shapes: tuple[int, ...]) -> bool:
    """Whether all of it is fewer than `_SMALL` products; with an ellipsis nobody counts them."""
    if "." in equation:
        return False
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    extents = {label: extent for term, shape in zip(terms, shapes, strict=False)
               for label, extent in zip(term, shape, strict=False)}  # fmt: skip
    return math.prod(extents.values()) < _SMALL


def _exchange(functions: dict[Einsum, Einsum]) -> None:
    """Put other functions in the place of some, in NumPy and in all modules of PySCF that are imported."""
    for module in [np, *(module for name, module in sys.modules.items() if name.partition(".")[0] == "pyscf")]:
        found = vars(module).get("einsum") if isinstance(module, ModuleType) else None
        if callable(found) and found in functions:
            setattr(module, "einsum", functions[found])  # noqa: B010  # of a module that has no such type


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
