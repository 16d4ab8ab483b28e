"""cotengra by weft: the two functions that it contracts pairs of tensors with, and a whole tree as one network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from weft.api.numpy_words import tensordot
from weft.base.arrays import as_tensor, like
from weft.base.dispatch import outside_graphs
from weft.engine.memo import Memo
from weft.errors import ArgumentError, ShapeError
from weft.networks.network import Network
from weft.networks.public import einsum, network
from weft.plans.keywords import refuse_unknown
from weft.spec.arguments import reads

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
    _check(tree, tensors)
    if strip_exponent:
        mantissa, exponent = _network(tree, tensors, {**options, "strip_exponent": True})(*tensors)
        return like(arrays[0], mantissa), float(exponent)
    return like(arrays[0], _network(tree, tensors, options)(*tensors))


def _network(tree: ctg.ContractionTree, tensors: Sequence[Any], options: dict[str, Any]) -> Network:
    """The network of a tree, kept by all that it is made of: a tree may be changed in place."""
    made_of = (tuple(map(tuple, tree.inputs)), tuple(tree.output), tree.get_path(), tuple(tree.sliced_inds))
    arrays = tuple([(tuple(tensor.shape), tensor.dtype, tensor.device) for tensor in tensors])
    key = (made_of, arrays, tuple(sorted(options.items(), key=lambda item: item[0])))
    try:
        hash(key)
    except TypeError:  # an option without a hash
        return _made(tree, tensors, options)
    return _NETWORKS.made(key, lambda: _made(tree, tensors, options))


def _made(tree: ctg.ContractionTree, tensors: Sequence[Any], options: dict[str, Any]) -> Network:
    terms = [tuple(term) for term in tree.inputs]
    return network(terms, *tensors, output=tuple(tree.output), optimize=tree, **options)


def _check(tree: ctg.ContractionTree, tensors: Sequence[Any]) -> None:
    if len(tensors) != len(tree.inputs):
        raise ShapeError(f"the tree has {len(tree.inputs)} inputs, {len(tensors)} arrays are given")
    for at, (labels, tensor) in enumerate(zip(tree.inputs, tensors, strict=True)):
        wanted = tuple(tree.size_dict[label] for label in labels)
        if tuple(tensor.shape) != wanted:
            raise ShapeError(f"arrays[{at}] of shape {tuple(tensor.shape)}: the tree has {wanted} for {tuple(labels)}")
