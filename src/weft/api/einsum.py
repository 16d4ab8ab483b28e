"""`einsum`: the call, and sums of one operand and of two; those of more are in `weft.networks`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from operator import is_
from typing import Any, Literal, Unpack, overload

import torch

from weft.algebra import Algebra, find
from weft.api.contract import contract
from weft.api.entry import bare, contraction
from weft.api.keywords import EinsumKeywords, Function, is_cast, signed, with_autocast
from weft.api.lookup import as_key, one_beside, one_of, said_call, said_options
from weft.api.permute import moved, permute
from weft.base.arguments import describe_many
from weft.base.arrays import (
    Array,
    as_results,
    as_tensors,
    is_array,
    is_foreign,
    is_subclass,
    returned,
    without_memory,
    without_neg,
)  # fmt: skip
from weft.base.dispatch import as_operation, is_dynamo_compiling
from weft.engine.calls import CALLS
from weft.engine.ways import asked, each_of
from weft.errors import ArgumentError, NotationError, ShapeError, UnsupportedError, call_context
from weft.planner.options import Options
from weft.planner.request import Results
from weft.plans.keywords import refuse_unknown
from weft.plans.known_call import KnownCall
from weft.spec import Label, Notation, parse
from weft.spec.arguments import read_flag
from weft.spec.contraction import mode_extents
from weft.spec.dtypes import storage_type
from weft.spec.memory import share_memory
from weft.spec.notation import expand, from_sequences, implicit_from_sequences, label_text

# Keywords that say how it is computed, and nothing of tensors.
_PLAIN = frozenset((
    "algebra", "precision", "accumulate", "out_dtype", "specialize", "backend", "deterministic", "tune",
))  # fmt: skip
# Keywords that a mere rearrangement of one operand takes, too.
MOVING = (
    "out", "out_dtype", "workspace_limit", "backend", "tune", "specialize", "promote", "deterministic", "validate",
)  # fmt: skip


@overload
def einsum(
    equation: str, first: Array, /, *others: Any, return_arg: Literal[True], epilogue: Function | None = None,
    **keywords: Unpack[EinsumKeywords],
) -> tuple[Array, Array | tuple[Array, ...]]: ...
@overload
def einsum(
    equation: str, first: Array, /, *others: Any, epilogue: Callable[..., torch.Tensor] | None = None,
    return_arg: Literal[False] = False, **keywords: Unpack[EinsumKeywords],
) -> Array: ...
@overload
def einsum(
    equation: str, first: Array, /, *others: Any, epilogue: Callable[..., tuple[Any, ...]],
    **keywords: Unpack[EinsumKeywords],
) -> tuple[Array, ...]: ...
@overload
def einsum(
    first: Array, labels: Sequence[Label], /, *others: Any, epilogue: Callable[..., torch.Tensor] | None = None,
    return_arg: Literal[False] = False, **keywords: Unpack[EinsumKeywords],
) -> Array: ...
@overload
def einsum(
    *arguments: Any, epilogue: Function | None = None, return_arg: bool = False, **keywords: Unpack[EinsumKeywords]
) -> Any: ...
@signed("einsum", ("arguments",))
def einsum(*arguments: Any, **keywords: Any) -> Any:
    """Einstein summation over any number of operands: ``einsum("ab,bc,cd->ad", A, B, C)``.

    Also takes the interleaved form ``einsum(A, (0, 1), B, (1, 2), (0, 2))`` with any hashable labels. One operand is
    permuted, reduced or its diagonal taken. Three and more are contracted in pairs along a path that `weft.network`
    finds by predicted time, or that `optimize` says as for `weft.network` and as for `numpy.einsum` (True and False
    leave it to weft); the plan is kept, and an equal call replays it. Intermediate results of float16 are kept in
    float32, others in the operands' type. Of an algebra that is not one of weft's own, operands meet from left to
    right. The result is always a tensor of its own, never a view.

    Keywords as for `contract`. `c`, `alpha`, `beta`, `out`, `out_dtype`, `c_fn`, `epilogue`, `operands`, `indices` and
    `reduce` apply to the last step, all others to each; `a_fn`, `b_fn` and `return_arg` are for at most two operands.

    >>> import torch, weft
    >>> weft.einsum("ii->i", torch.arange(4.).reshape(2, 2))
    tensor([0., 3.])
    """
    if (reduce := keywords.pop("reduce", None)) is not None:
        return as_operation("reduced sum")(einsum, reduce, *arguments, **keywords)
    if is_dynamo_compiling():
        return as_operation("einsum")(arguments, keywords)
    words, given = _words(arguments, keywords)
    known, place = CALLS.find(words, given)
    if known is not None and (found := known(*given)) is not None:
        return found
    return _read_sum(arguments, keywords, given, place)


def _read_sum(arguments: tuple[Any, ...], keywords: dict[str, Any], given: Sequence[Any], place: Any) -> Any:
    """An einsum that is not known, read in full; `place`: where a call of these tensors is kept."""
    with call_context(lambda: describe_einsum(arguments)):
        refuse_unknown("einsum", keywords)
        foreign = any(map(is_foreign, arguments[1:])) and not {"out", "promote"} & keywords.keys()
        if foreign and type(arguments[0]) is str:
            read, source = as_tensors(arguments[1:], False)
            result = einsum(arguments[0], *read, **keywords)
            return returned(source, None, result, keywords.get("return_arg", False))
        order = read_order(keywords["optimize"]) if "optimize" in keywords else "auto"
        keywords = {name: value for name, value in keywords.items() if name != "optimize"}
        notation, operands = read_einsum(arguments)
        if not operands:
            raise NotationError("einsum needs an equation and operands")
        if len(operands) > 1:
            keywords = with_autocast(keywords, operands[0], operands[1], keywords.get("out"))
        read, source = as_tensors(operands, read_flag("promote", keywords.get("promote", False)))
        tensors = [without_neg(tensor) for tensor in read]
        check_functions(keywords, len(tensors))
        if len(tensors) < 3:
            text = arguments[0] if type(arguments[0]) is str and "..." not in arguments[0] else None
            result, known = _of_few(notation, text, tensors, keywords)
        else:
            result, known = as_operation("sum of many")(notation, tensors, keywords, order)
    if place is not None and not is_subclass(source) and all(map(is_, tensors, given)):
        CALLS.keep(place, given, known)
    places = read_flag("return_arg", keywords.get("return_arg", False))
    return returned(source, keywords.get("out"), result, places)


def _of_few(
    notation: Notation, text: str | None, tensors: list[torch.Tensor], keywords: dict[str, Any]
) -> tuple[Any, Callable[..., Any] | None]:
    """The sum of one operand or two, and its known call; `text`: the equation, where it was given as text."""
    notation = expand(notation, [tensor.dim() for tensor in tensors])
    mode_extents(notation, [tensor.shape for tensor in tensors])
    target = as_results(keywords.get("out"))
    check_places(each_of(target) if target is not None else (), tensors)
    last = {name: value for name, value in keywords.items() if name != "out"}
    if len(tensors) == 1:
        return _of_one(notation, text, tensors[0], last, target)
    equation = text or (*notation.inputs, notation.output)
    result = contract(equation, *tensors, out=target, **last)
    pair = _known_pair(equation, tensors, last)
    return result, None if pair is None else pair.run


def _words(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
    """All that a call says but for its tensors, None where there is more to it than the launches; and its tensors."""
    if not arguments or not _PLAIN.issuperset(keywords):
        return None, ()
    labels, tensors = arguments[0], arguments[1:]
    if type(labels) is not str:
        even = len(arguments) // 2 * 2
        labels, tensors = as_key((*arguments[1::2], *arguments[even:])), arguments[0:even:2]
    said = said_options(keywords)[0] if keywords else ()
    return None if said is None or labels is None else ("einsum", labels, len(arguments), said), tensors


def _known_pair(equation: Any, tensors: Sequence[torch.Tensor], options: dict[str, Any]) -> KnownCall | None:
    """The known call of `contract` on two tensors with these options, if there is one."""
    asked, _ = said_options(options)
    known: KnownCall | None = None if asked is None else CALLS.find(bare(equation, asked), tensors)[0]
    return known


def _moved(known: KnownCall, x: torch.Tensor) -> Any:
    return known.run(x, x)


def _against_one(known: KnownCall, x: torch.Tensor) -> Any:
    return known.run(x, one_of(x.dtype, x.device))


@lru_cache(maxsize=4096)
def against_one(text: str) -> str:
    """The equation of one operand as that of two, the second without modes; no equation for what is none of one."""
    with suppress(NotationError):
        notation = parse(text)
        if len(notation.inputs) == 1 and "..." not in text:
            return f"{''.join(map(label_text, notation.inputs[0]))},->{''.join(map(label_text, notation.output))}"
    return ""


def _of_one(
    notation: Notation, text: str | None, x: torch.Tensor, last: dict[str, Any], target: Results | None
) -> tuple[Any, Callable[..., Any] | None]:
    """One operand: moved where nothing is computed, so that elements arrive bit for bit; else against a one.

    The second is the known call of later ones, None where each is to be read.
    """
    (term,), output = notation.inputs, notation.output
    computed = {name for name, value in last.items() if name not in MOVING and value is not None}
    if set(term) == set(output) and not computed and not isinstance(target, tuple):
        moving = {name: last[name] for name in MOVING[1:-2] if name in last}
        equation: Any = text if text is not None and "->" in text else (term, output)
        result = permute(x, equation, out=target, **moving)
        words, _ = said_call("permute", equation, (), moving, target is not None)
        known, _ = CALLS.find(words, (x,))
        return result, None if known is None else partial(_moved, known)
    if is_cast(x) and last.get("precision") is None:
        last = {**last, "precision": x.dtype}  # autocast is about products of two
    algebra = find(last.get("algebra", "plus_times"))
    if algebra is not None:
        last = {**last, "algebra": lone(algebra)}
    storage_type(x.dtype, x.dtype, algebra is not None)  # raises for types that have no one
    one = one_beside(x)
    equation = against_one(text) if text is not None else (term, (), output)
    result, pair = contract(equation, x, one, out=target, **last), _known_pair(equation, (x, one), last)
    return result, None if pair is None else partial(_against_one, pair)


def of_one(notation: Notation, x: torch.Tensor, options: Options, out: torch.Tensor | None = None) -> torch.Tensor:
    """One operand moved or contracted with a one, by options that are read and have no functions."""
    (term,), output = notation.inputs, notation.output
    if set(term) == set(output) and (options.algebra, options.precision, options.accumulate) == (None, None, None):
        return moved((term, output), x, options, out=out)
    if options.algebra is not None:
        options = replace(options, algebra=lone(options.algebra))
    found: torch.Tensor = contraction((term, (), output), x, one_beside(x), options, out=out)
    return found


def lone(algebra: Algebra) -> Algebra:
    """The algebra in which an operand alone is reduced against a one: what `combine` leaves as it is, it cannot say.

    Nor can its `vjp`, which is of pairs.
    """
    return replace(algebra, combine=_first, vjp=_shares if algebra.reduce is torch.logaddexp else None)


def _shares(x: torch.Tensor, y: torch.Tensor, total: torch.Tensor, grad: torch.Tensor) -> tuple[Any, None]:
    """The gradient of the logarithm of a sum of exponentials; that of no sum is zero."""
    return grad * torch.exp(x - total.clamp_min(torch.finfo(total.dtype).min)), None


def _first(x: Any, y: Any) -> Any:
    return x


def check_places(places: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    """`ShapeError` where the result would overwrite an operand: the last step sees but two of them."""
    for at, tensor in enumerate(tensors):
        # What has no memory overlaps nothing; of derivatives the last step says that they take no out.
        if asked(tensor) or any(map(without_memory, (tensor, *places))):
            continue
        if any(share_memory(place, tensor) for place in places):
            raise ShapeError(f"out overlaps operand {at} in memory: the result would overwrite what is to be read")


def check_functions(keywords: dict[str, Any], operands: int) -> None:
    for name, most in (("a_fn", 2), ("b_fn", 2), ("return_arg", 2)):
        given = keywords.get(name)
        if operands > most and given is not None and given is not False:
            raise UnsupportedError(f"{name} is for at most two operands, einsum has {operands}: contract two at a time")


def read_einsum(arguments: tuple[Any, ...]) -> tuple[Notation, tuple[Any, ...]]:
    """The text form or the interleaved one."""
    if not arguments:
        raise NotationError("einsum needs an equation and operands")
    if isinstance(arguments[0], str):
        given = arguments[1:]
        if len(given) == 1 and isinstance(given[0], (list, tuple)) and any(map(is_array, given[0])):
            given = tuple(given[0])  # torch's form, the operands in a list
        return parse(arguments[0]), given
    if any(isinstance(argument, str) for argument in arguments[1:]) and is_array(arguments[0]):
        text = next(argument for argument in arguments if isinstance(argument, str))
        if "," in text or "->" in text:
            raise ArgumentError(f"the equation comes first: weft.einsum({text!r}, ...)")
    terms, operands = arguments[1::2], arguments[0 : len(arguments) - len(arguments) % 2 : 2]
    _refuse_unlabelled(arguments)
    if len(arguments) % 2:
        return from_sequences(*terms, arguments[-1]), operands
    return implicit_from_sequences(*terms), operands


def _refuse_unlabelled(arguments: tuple[Any, ...]) -> None:
    """`NotationError` for an operand of the interleaved form that stands where labels belong."""
    for at, argument in enumerate(arguments):
        labels = at % 2 or at == len(arguments) - 1
        if labels and is_array(argument) and not _are_labels(argument):
            raise NotationError(
                f"argument {at} is a tensor, where labels belong: operands and labels alternate, "
                "einsum(a, [0, 1], b, [1, 2], [0, 2])"
            )


def _are_labels(array: Any) -> bool:
    """Whether an array may stand for labels: it has one dimension, and no fractions."""
    try:
        return len(array.shape) == 1 and "float" not in str(array.dtype)
    except Exception:  # nested tensors, and whatever an object of somebody else raises
        return False


def read_order(optimize: Any) -> Any:
    """The requested order, as `numpy.einsum` and opt_einsum take it: a word, a path as a tuple, an optimizer.

    Whether an order is looked for at all (True, False, None) is left to weft.
    """
    if optimize is None or isinstance(optimize, bool):
        return "auto"
    if isinstance(optimize, (list, tuple)):
        words, path = [x for x in optimize if isinstance(x, str)], [x for x in optimize if not isinstance(x, str)]
        if words and words[0] != "einsum_path":
            return words[0]  # with the most elements that an intermediate result may have
        if all(isinstance(step, (list, tuple)) and all(isinstance(place, int) for place in step) for step in path):
            return tuple(map(tuple, path))
    if isinstance(optimize, str) or callable(optimize) or hasattr(optimize, "get_ssa_path"):
        return optimize
    raise ArgumentError(f"optimize={optimize!r} is no word, no path (places of two operands at a time), no optimizer")


def describe_einsum(arguments: tuple[Any, ...]) -> str:
    text = [argument for argument in arguments[:1] if isinstance(argument, str)]
    arrays = [x for x in arguments if isinstance(x, torch.Tensor) or hasattr(x, "shape")]
    return describe_many("einsum", text[0] if text else "interleaved", arrays)



