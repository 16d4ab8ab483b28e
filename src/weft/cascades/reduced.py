"""Calls of others that a cascade of one contraction makes: reductions of a result, and sums of three tensors.

    D, found = weft.contract("mk,kn->mn", x, w, reduce={"peak": ("m", "max"), "norm": ("m", "sum", torch.square)})

D is made as without them, and read once more, by blocks, for all of its further, smaller results together: of
contractions, sums of many, permutations and groups. Where D itself is not wanted a cascade makes them without it.

    ig,ij,jg->g:    S[g, j] = sum over i of A[i, g] B[i, j],    D[g] = sum over j of S[g, j] C[j, g]

Of three tensors two are contracted to all the labels of the third, which meets their product element by element; the
labels of one of the two that are not in D are summed. A kernel makes that in one pass, as `einsum` has it on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.api.contract import contract
from weft.api.einsum import describe_einsum, read_einsum
from weft.api.lookup import read_notation
from weft.base.arguments import describe_call
from weft.base.arrays import as_tensor, like_each
from weft.base.dispatch import outside_graphs, taken_by
from weft.cascades.public import cascade, plan_cascade
from weft.errors import (
    ArgumentError,
    DTypeError,
    FunctionError,
    NotationError,
    UnsupportedError,
    WeftError,
    call_context,
)
from weft.fn import reductions
from weft.fn.binding import naming, parameters
from weft.fn.fingerprint import standing_for
from weft.planner.options import read_indices, read_operands
from weft.spec import Label, Notation
from weft.spec.contraction import read_modes
from weft.spec.dtypes import dtype_name
from weft.spec.notation import expand, label_text, term_text

#: Names of algebras that reduce, and the words of functions that mean them.
ALGEBRAS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "sum": reductions.sum, "mean": reductions.mean, "max": reductions.amax, "min": reductions.amin,
    "argmax": reductions.argmax, "argmin": reductions.argmin, "logsumexp": reductions.logsumexp,
}  # fmt: skip
_FUNCTIONS = ("a_fn", "b_fn", "c_fn", "epilogue")


class Reduction(NamedTuple):
    """One further result: the modes of D that it keeps, its algebra, and the function of each element of D."""

    name: str
    kept: tuple[Label, ...]
    algebra: str
    function: Callable[..., Any] | None


class Reductions:
    """Reductions that are read for a result with these labels; `named` are the operands and indices of their call."""

    def __init__(
        self, reduce: Any, labels: tuple[Label, ...], named: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        self._read, self._labels = _read(reduce), labels
        for each in self._read:
            _check_kept(each, labels)
        self.names = [each.name for each in self._read]
        self.takes = {name for each in self._read for name in _taken(each.function)}
        self._named = {
            key: {name: value for name, value in (named or {}).get(key, {}).items() if name in self.takes}
            for key in ("operands", "indices")
        }

    def of(self, d: Any) -> dict[str, Any]:
        """The reductions of a result by name, as the kind of array that it is."""
        tensor = as_tensor("D", d)
        if not tensor.dtype.is_floating_point or tensor.dtype.itemsize < 2:
            raise DTypeError(f"reduce is of float16, bfloat16, float32 and float64, D is {dtype_name(tensor.dtype)}")
        one = torch.ones((), dtype=tensor.dtype, device=tensor.device)
        labels = self._labels
        found = cascade(
            (labels, (), labels), tensor, one, between=_together(self._read, labels),
            operands=self._named["operands"] or None, indices=self._named["indices"] or None,
        )  # fmt: skip
        results = {}
        for each, value in zip(self._read, found, strict=True):
            order = [label for label in labels if label in each.kept]
            turn = [order.index(label) for label in each.kept]
            results[each.name] = like_each(d, value if turn == sorted(turn) else value.permute(turn).clone())
        return results


@outside_graphs
def contracted(equation: Any, a: Any, b: Any, reduce: Any, keywords: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """``contract(equation, a, b, **keywords)`` and its reductions by name."""
    with call_context(lambda: describe_call("contract", equation, a=a, b=b)):
        if keywords.get("invariant"):
            raise UnsupportedError("reduce= takes no invariant=: reductions add over rows")
        return _with(reduce, partial(contract, equation, a, b), read_notation(equation), {"a": a, "b": b}, keywords)


@outside_graphs
def summed(einsum: Any, reduce: Any, *arguments: Any, **keywords: Any) -> tuple[Any, dict[str, Any]]:
    """``einsum(*arguments, **keywords)``, of any number of operands, and its reductions by name."""
    with call_context(lambda: describe_einsum(arguments)):
        notation, operands = read_einsum(arguments)
        named = {f"operand {at}": each for at, each in enumerate(operands)}
        return _with(reduce, partial(einsum, *arguments), notation, named, keywords)


def _with(
    reduce: Any, call: Callable[..., Any], notation: Notation, given: Mapping[str, Any], keywords: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """The results of a call and its reductions; the call is without operands and indices that only these take."""
    labels = expand(notation, [as_tensor(name, each, True).dim() for name, each in given.items()]).output
    if keywords.get("return_arg"):
        raise ArgumentError("reduce does not go with return_arg: a reduction 'argmax' has places, too")
    named = {key: dict(keywords.get(key) or {}) for key in ("operands", "indices")}
    read_operands(named["operands"])
    read_indices(named["indices"])
    reductions = Reductions(reduce, labels, named)
    fused = {name for hook in _FUNCTIONS for name in _taken(keywords.get(hook))}
    left = {
        key: {name: value for name, value in given.items() if name in fused or name not in reductions.takes} or None
        for key, given in named.items()
    }
    d = call(**{**keywords, **{key: value for key, value in left.items() if key in keywords}})
    return d, reductions.of(d[0] if isinstance(d, tuple) else d)


def _together(read: list[Reduction], labels: tuple[Label, ...]) -> Callable[..., tuple[Tensor, ...]]:
    """The reductions as one function of an element of D."""
    takes = [_taken(each.function) for each in read]

    def reductions_of(value: Tensor, **aux: Tensor) -> tuple[Tensor, ...]:
        found = []
        for each, names in zip(read, takes, strict=True):
            function = each.function
            own = {name: aux[name] for name in names if name in aux}
            element = value if function is None else function(value, **own)
            modes = [str(label) for label in labels if label not in each.kept]
            found.append(ALGEBRAS[each.algebra](element, modes) if modes else element)
        return tuple(found)

    naming(dict.fromkeys(("value", *(name for each in takes for name in each))), reductions_of)
    parts = [(tuple(map(str, each.kept)), each.algebra, each.function) for each in read]
    return standing_for(reductions_of, ("reductions", tuple(map(str, labels)), tuple(parts)))


def _check_kept(reduction: Reduction, labels: tuple[Label, ...]) -> None:
    for label in reduction.kept:
        if label not in labels:
            raise NotationError(
                f"reduce '{reduction.name}' keeps '{label_text(label)}', which D ('{term_text(labels)}') does not have"
            )
    reduced = tuple([label for label in labels if label not in reduction.kept])
    if reduction.algebra in ("argmax", "argmin") and len(reduced) != 1:
        what = f"reduce '{reduction.name}' is an {reduction.algebra} over one mode"
        raise NotationError(f"{what}, and of D ('{term_text(labels)}') it leaves {term_text(reduced) or 'none'}")


def _taken(function: Callable[..., Any] | None) -> tuple[str, ...]:
    return () if function is None else parameters(function) or ()


def _read(reduce: Any) -> list[Reduction]:
    """``{"name": (modes, algebra, function)}``, the function left out or None for the element itself."""
    if not isinstance(reduce, Mapping) or not reduce:
        raise ArgumentError(
            f'reduce is a mapping from names to (modes, algebra, function), not {type(reduce).__name__}: {{"peak": '
            '("m", "max")} keeps mode m of D'
        )
    found = []
    for name, said in reduce.items():
        if not isinstance(said, (tuple, list)) or len(said) not in (2, 3):
            raise ArgumentError(f"reduce '{name}' is (modes, algebra) or (modes, algebra, function)")
        modes, algebra, function = (*said, None)[:3]
        if not isinstance(algebra, str) or algebra not in ALGEBRAS:
            raise ArgumentError(f"reduce '{name}': algebra is one of {', '.join(ALGEBRAS)}, not {algebra!r}")
        if function is not None and not callable(function):
            raise FunctionError(f"reduce '{name}': {type(function).__name__} is not a function")
        kept = read_modes(f"reduce '{name}'", modes, len(modes) if hasattr(modes, "__len__") else 0)
        if len(set(kept)) < len(kept):
            raise NotationError(f"reduce '{name}' keeps a mode twice: '{term_text(kept)}'")
        found.append(Reduction(str(name), kept, algebra, function))
    return found


taken_by("reductions", Reductions)
taken_by("reduced contraction", contracted)
taken_by("reduced sum", summed)


_TYPES = (torch.float32, torch.float64)


class Met(NamedTuple):
    """The two tensors that are contracted and the third, by place; labels of their product, and those summed of it."""

    first: int
    second: int
    third: int
    product: tuple[Label, ...]
    summed: tuple[str, ...]


@lru_cache(maxsize=512)
def met(notation: Notation) -> Met | None:
    """How a sum of three is one contraction that meets a third; None where it is not."""
    terms = notation.inputs
    if len(terms) != 3 or any(len(set(term)) < len(term) or ... in term for term in (*terms, notation.output)):
        return None
    kept = set(notation.output)
    for first, second, third in ((0, 1, 2), (0, 2, 1), (1, 2, 0)):
        a, b, c = (set(terms[at]) for at in (first, second, third))
        between, summed = (a & b) - c - kept, c - kept
        alone = summed == a - b or summed == b - a
        if between and summed and alone and c == (a | b) - between and kept < c:
            product = (*notation.output, *(label for label in terms[third] if label in summed))
            return Met(first, second, third, product, tuple(map(str, product[len(kept) :])))
    return None


def met_by_kernel(
    notation: Notation, tensors: Sequence[torch.Tensor], precision: Any
) -> Callable[..., torch.Tensor] | None:
    """The sum of these tensors by a kernel; None where none is faster than two contractions."""
    dtype, device = tensors[0].dtype, tensors[0].device
    how = met(notation) if device.type == "cuda" and dtype in _TYPES else None
    if how is None or any(each.dtype != dtype or each.device != device for each in tensors):
        return None
    from weft.cascades.serving import is_quick  # with what runs cascades: with the first call, not with weft

    try:
        plan = plan_of(how, notation, tensors, precision=precision, specialize="auto")
    except WeftError:  # extents that do not agree, say: einsum's own words are about its equation
        return None
    if plan.kernel is None or not is_quick(plan.frame, plan.kernel.tile):
        return None

    def summed(*each: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = plan.run((each[how.first], each[how.second], each[how.third]))
        return found

    return summed


def plan_of(how: Met, notation: Notation, tensors: Sequence[torch.Tensor], **keywords: Any) -> Any:
    """The cascade of these tensors."""
    a, b, c = (notation.inputs[at] for at in how[:3])
    return plan_cascade(
        (a, b, how.product), tensors[how.first], tensors[how.second], between=_summed_with(how.summed),
        operands={"other": (c, tensors[how.third])}, **keywords,
    )  # fmt: skip


@lru_cache(maxsize=512)
def _summed_with(modes: tuple[str, ...]) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def summed(product: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return reductions.sum(product * other, modes)

    return summed


taken_by("sum of three", met_by_kernel)
