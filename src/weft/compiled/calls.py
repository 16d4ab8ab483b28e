"""The public calls as operations. Dynamo reads these functions in place of the calls' own: they stay simple.

Everything but tensors and numbers goes through `spelled`, which dynamo runs while it reads. Calls that torch traces
otherwise, on tensors without memory and within its modes, come to `contraction`, `permutation` and those named so.
"""

from __future__ import annotations

from typing import Any

import torch

from weft.algebra import NAMED, Algebra
from weft.api.contract import contract as public_contract
from weft.api.einsum import MOVING
from weft.api.einsum import einsum as public_einsum
from weft.api.permute import permute as public_permute
from weft.base.arguments import addition
from weft.base.arrays import outside_tracing
from weft.base.dispatch import outside, taken_by
from weft.cascades.public import cascade as public_cascade
from weft.compiled.captured import capture, captured_algebra, captured_all, is_unread, undisturbed, unread
from weft.compiled.cascades import planned_cascade, spelled_cascade, sums_of_cascade
from weft.compiled.contraction import spelled, spelled_options, spelled_plan, steps_of_einsum, types_seen
from weft.compiled.moves import move_of_options, spelled_move, spelled_move_plan
from weft.compiled.operations import CASCADE, CONTRACT, CONTRACT_OUT, PERMUTE, PERMUTE_OUT
from weft.compiled.text import announce_flops
from weft.engine.ways import Arguments
from weft.errors import DTypeError, FunctionError, ShapeError
from weft.networks.public import first_in
from weft.planner.options import LAST, Options
from weft.planner.request import HOOKS
from weft.plans.intermediates import EXACT, is_of_halves, step_changes

#: Keywords that `contract` below takes one by one.
_OF_CALLS = ("c", "alpha", "beta", "out", "return_arg", "validate")


def contract(
    equation: Any, a: Any, b: Any, c: Any, alpha: Any, beta: Any, out: Any, functions: Any, return_arg: bool,
    validate: bool, options: dict[str, Any], instead: tuple[Any, tuple[Any, ...], dict[str, Any]] | None = None,
) -> Any:  # fmt: skip
    """`weft.contract`: `functions` in the order of the hooks, `options` all other keywords but those named.

    `instead`: the call that this one is part of, where that is to be made if dynamo cannot read a function.
    """
    call, arguments, keywords = instead or (public_contract, (equation, a, b), {
        "c": c, "alpha": alpha, "beta": beta, "out": out, "return_arg": return_arg, "validate": validate,
        **dict(zip(HOOKS, functions, strict=True)), **options,
    })  # fmt: skip
    c, beta = addition(c, beta, out)
    if _are_tensors(alpha, beta):
        return outside(call, *arguments, **keywords)
    given, operands, said = _apart(options, "algebra")
    said = (("validate", validate), *said)
    algebra = _parts(options.get("algebra", "plus_times"))
    several = out is not None and isinstance(out, (tuple, list))
    types = None if out is None else tuple([place.dtype for place in out]) if several else out.dtype
    announce_flops()
    # Dynamo guards on all that is read here: nothing is that need not be.
    stored, kind = ((a.dtype, a.dim()), (b.dtype, b.dim())), a.device.type
    own = isinstance(algebra, tuple)
    seen = types_seen(stored, kind, said, "one of the caller's" if own else algebra, types is not None)
    taken = captured_all(functions, seen, _beside(operands, options))
    if own:
        algebra = captured_algebra(algebra, seen[-1])
    if taken is None or algebra is None:
        return unread(call, *arguments, **keywords)
    text, structure = spelled(equation, stored, kind, operands, said, types, c is not None, return_arg, taken, algebra)
    return _performed(text, structure, _listed(a, b, c, given), alpha, beta, out)


def contraction(equation: Any, call: Arguments, options: Options, return_arg: bool, validate: bool) -> Any:
    """`weft.contract` of options that are read. Dynamo does not read it."""
    a, b, c, out, alpha, beta, _ = call
    stored, kind = ((a.dtype, a.dim()), (b.dtype, b.dim())), a.device.type
    announce_flops()
    with outside_tracing():
        spell = undisturbed(spelled_options)
        text, structure = spell(equation, stored, kind, options, c is not None, return_arg, validate)
    return _performed(text, structure, _listed(a, b, c, options.tensors.values()), alpha, beta, out)


def _apart(keywords: Any, *without: str) -> Any:
    """The tensors among a call's keywords, what stands for them in a text, and all other keywords but those named."""
    tensors, operands, said = [], [], []
    for name, value in keywords.items():
        if name == "operands":
            for each, (modes, tensor) in (value or {}).items():
                operands.append((each, modes, (tensor.dtype, tensor.dim())))
                tensors.append(tensor)
        elif name not in without:
            said.append((name, value))
    return tensors, tuple(operands), tuple(said)


def _beside(operands: Any, keywords: Any) -> Any:
    """Names and types of what functions take beside their values."""
    beside = [(each, dtype) for each, _, (dtype, _) in operands]
    return beside + [(each, torch.int32) for each in keywords.get("indices") or ()]


def _listed(a: Any, b: Any, c: Any, others: Any) -> Any:
    return [a, b, *others] if c is None else [a, b, c, *others]


def _are_tensors(alpha: Any, beta: Any) -> bool:
    """Whether a factor is none of the graph's constants: the call is made outside of it."""
    return isinstance(alpha, torch.Tensor) or isinstance(beta, torch.Tensor)


def _performed(text: str, structure: str, tensors: list[torch.Tensor], alpha: Any, beta: Any, out: Any) -> Any:
    """The operation of a text, its results in the kind of `structure`."""
    if out is not None and structure in ("one", "several"):
        CONTRACT_OUT(text, tensors, alpha, beta, list(out) if isinstance(out, (tuple, list)) else [out])
        return out
    found = CONTRACT(text, tensors, alpha, beta)
    if structure == "one":
        return found[0]
    if structure == "several":
        return tuple(found)
    value = found[0]
    if out is not None:
        value = out.copy_(value)
    return value, (found[1] if structure == "place" else tuple(found[1:]))


def plan(planned: Any, a: Any, b: Any, c: Any, alpha: Any, beta: Any, out: Any, operands: Any, validate: bool) -> Any:
    """A call of a `weft.Plan`."""
    again = {"c": c, "alpha": alpha, "beta": beta, "out": out, "operands": operands, "validate": validate}
    c, beta = addition(c, beta, out)
    if _are_tensors(alpha, beta):
        return outside(planned, a, b, **again)
    functions, algebra = None, None
    if planned.follows:
        functions = captured_all(planned.request.functions.raw, *planned.functions_seen())
        algebra = _parts(planned.request.raw_algebra)
        own = isinstance(algebra, tuple)
        algebra = captured_algebra(algebra, planned.request.arithmetic.accumulate) if own else None
        if functions is None or (own and algebra is None):
            return unread(planned, a, b, **again)
    return _planned(planned, a, b, c, alpha, beta, out, operands, validate, functions, algebra)


def plan_call(planned: Any, call: Arguments, validate: bool) -> Any:
    """A call of a `weft.Plan` on tensors that are read. Dynamo does not read it."""
    a, b, c, out, alpha, beta, operands = call
    return _planned(planned, a, b, c, alpha, beta, out, operands, validate)


def _planned(
    planned: Any, a: Any, b: Any, c: Any, alpha: Any, beta: Any, out: Any, operands: Any, validate: bool,
    functions: Any = None, algebra: Any = None,
) -> Any:  # fmt: skip
    """A call of a `weft.Plan`; `functions` and `algebra`: the caller's as dynamo has read them."""
    text, structure, names, layouts = planned.text_of_call(c is not None, validate, functions, algebra)
    for name, tensor, layout in (("a", a, layouts[0]), ("b", b, layouts[1])):
        _check_planned(name, tensor, layout)
    given, tensors = dict(operands or {}), []
    for name in names:
        if name not in given:
            raise FunctionError(f"operand '{name}' is missing: pass operands={{{name!r}: tensor}}")
        each = given.pop(name)
        tensors.append(each[1] if isinstance(each, (tuple, list)) else each)
    if given:
        raise FunctionError(f"the plan has no operand '{next(iter(given))}': its operands are {', '.join(names)}")
    return _performed(text, structure, _listed(a, b, c, tensors), alpha, beta, out)


def permute(
    x: Any, equation: Any, fn: Any, c: Any, alpha: Any, beta: Any, out: Any, extents: Any, options: dict[str, Any]
) -> Any:
    """`weft.permute`."""
    if isinstance(equation, torch.Tensor):
        x, equation = equation, x
    again = {"fn": fn, "c": c, "alpha": alpha, "beta": beta, "out": out, "extents": extents, **options}
    c, beta = addition(c, beta, out)
    if _are_tensors(alpha, beta):
        return outside(public_permute, x, equation, **again)
    taken = capture(fn, (), (x.dtype,))
    if is_unread(taken):
        return unread(public_permute, x, equation, **again)
    given, place = dict(extents or {}), None if out is None else (out.dtype, out.dim())
    text, by_place = spelled_move(
        equation, (x.dtype, x.dim()), x.device.type, tuple(given), tuple(options.items()), place, taken
    )
    return _moved(text, x, c, alpha, beta, [*given.values(), *[out.shape[at] for at in by_place]], out)


def permutation(equation: Any, call: Arguments, options: Options, extents: Any) -> Any:
    """`weft.permute` of options that are read. Dynamo does not read it."""
    x, _, c, _, alpha, beta, _ = call
    out: Any = call.out
    given, place = dict(extents or {}), None if out is None else (out.dtype, out.dim())
    with outside_tracing():
        text, by_place = move_of_options(equation, (x.dtype, x.dim()), x.device.type, tuple(given), options, place)
    return _moved(text, x, c, alpha, beta, [*given.values(), *[out.shape[at] for at in by_place]], out)


def _moved(text: str, x: Any, c: Any, alpha: Any, beta: Any, extents: list[Any], out: Any) -> Any:
    tensors = [x] if c is None else [x, c]
    if out is not None:
        PERMUTE_OUT(text, tensors, alpha, beta, extents, out)
        return out
    return PERMUTE(text, tensors, alpha, beta, extents)


def permutation_plan(planned: Any, x: Any, c: Any, alpha: Any, beta: Any, out: Any) -> Any:
    """A call of a `weft.PermutePlan`."""
    again = {"c": c, "alpha": alpha, "beta": beta, "out": out}
    c, beta = addition(c, beta, out)
    if _are_tensors(alpha, beta):
        return outside(planned, x, **again)
    fn = capture(planned.request.functions.raw[0], (), (x.dtype,)) if planned.follows else None
    if is_unread(fn):
        return unread(planned, x, **again)
    return _planned_move(planned, x, c, alpha, beta, out, fn)


def permute_plan_call(planned: Any, call: Arguments) -> Any:
    """A call of a `weft.PermutePlan` on tensors that are read. Dynamo does not read it."""
    return _planned_move(planned, call.a, call.c, call.alpha, call.beta, call.out)


def _planned_move(planned: Any, x: Any, c: Any, alpha: Any, beta: Any, out: Any, fn: Any = None) -> Any:
    """A call of a `weft.PermutePlan`; `fn`: the caller's function as dynamo has read it."""
    text, extents, layout = planned.text_of_call(fn)
    _check_planned("x", x, layout)
    return _moved(text, x, c, alpha, beta, list(extents), out)


def cascade(equation: Any, a: Any, b: Any, c: Any, keywords: dict[str, Any]) -> Any:
    """`weft.cascade`: `keywords` are all but the tensors A, B and C."""
    _, operands, said = _apart(keywords, "between")
    beside = _beside(operands, keywords)
    sums = sums_of_cascade(((a.dtype, a.dim()),), a.device.type, said)
    names, types = tuple([name for name, _ in beside]), [dtype for _, dtype in beside]
    between = capture(keywords.get("between"), names, (sums, *types))
    if is_unread(between) or isinstance(keywords.get("algebra"), Algebra):
        return unread(public_cascade, equation, a, b, c, **keywords)
    return traced_cascade(equation, a, b, c, {**keywords, "between": between})


def traced_cascade(equation: Any, a: Any, b: Any, c: Any, keywords: dict[str, Any]) -> Any:
    """`weft.cascade`, whose function dynamo has read where it reads the call."""
    announce_flops()
    given, operands, said = _apart(keywords, "between")
    tensors = [a, b] if c is None else [a, b, c]
    stored = tuple([(each.dtype, each.dim()) for each in tensors])
    text, several, wanted = spelled_cascade(equation, stored, a.device.type, operands, said, keywords.get("between"))
    if wanted is not None:
        tensors = [each.to(wanted) for each in tensors]
    found = CASCADE(text, [*tensors, *given])
    return tuple(found) if several else found[0]


def einsum(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """`weft.einsum`: the calls that it consists of."""
    # Not above: it brings sympy, which whoever compiles has loaded.
    from torch.fx.experimental.symbolic_shapes import has_static_value

    equation, operands = _einsum_arguments(arguments)
    keywords = {name: value for name, value in keywords.items() if name != "optimize"}  # the path is weft's own here
    moved = not any(name not in MOVING and keywords[name] is not None for name in keywords)
    shapes = []
    for operand in operands:  # an open extent is none: to read it would close it
        shapes.append(tuple([extent if has_static_value(extent) else None for extent in operand.shape]))
    each = {name: value for name, value in keywords.items() if name not in LAST and name not in HOOKS}
    asked_of_each = tuple([(name, _parts(value)) for name, value in each.items() if value is not None])
    place = operands[0].device
    steps = steps_of_einsum(equation, tuple(shapes), moved, (operands[0].dtype, place.type, place.index), asked_of_each)
    asked, of_halves = keywords.get, is_of_halves([operand.dtype for operand in operands])
    halves = of_halves and asked("algebra", "plus_times") == "plus_times" and asked("accumulate") is None
    halves = halves and asked("precision") in EXACT
    last = {name: value for name, value in keywords.items() if name not in _OF_CALLS and name not in HOOKS}
    for _, step, left, right in steps[:-1]:
        a, b = operands[left], operands[right]
        said = {**each, **step_changes(a.dtype, b.dtype, halves)}
        if a.dtype == b.dtype == torch.float16:
            said["out_dtype"] = torch.float32
        operands.append(contract(
            step, a, b, None, 1.0, 1.0, None, (None,) * 4, False, asked("validate", False), said,
        ))  # fmt: skip
    kind, step, left, right = steps[-1]
    if kind == "permute":
        moving = {name: keywords[name] for name in MOVING[1:-2] if name in keywords}
        return permute(operands[0], step, None, None, 1.0, 1.0, asked("out"), None, moving)
    if kind == "alone":
        operands = [operands[0], operands[0].new_ones(())]
        last["alone"] = True
    functions = tuple([asked(hook) for hook in HOOKS])
    last |= step_changes(operands[left].dtype, operands[right].dtype, halves)
    halves = len(steps) > 1 and of_halves and asked("out_dtype") is None and asked("out") is None
    if halves and asked("epilogue") is None:
        last["out_dtype"] = torch.float16
    found = contract(
        step, operands[left], operands[right], asked("c"), asked("alpha", 1.0), asked("beta"), asked("out"),
        functions, asked("return_arg", False), asked("validate", False), last, (public_einsum, arguments, keywords),
    )  # fmt: skip
    return first_in(torch.float16, found) if halves else found


def _parts(value: Any) -> Any:
    """An algebra of the user's by its parts: made within compiled code it is no object yet."""
    if isinstance(value, Algebra) and NAMED.get(value.name) is not value:
        return (value.combine, value.reduce, value.identity, value.name, value.requires, value.vjp)
    return value


def _einsum_arguments(arguments: tuple[Any, ...]) -> tuple[Any, list[Any]]:
    """The equation, text or sequences of labels, and the operands."""
    if isinstance(arguments[0], str):
        operands = list(arguments[1:])
        if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
            operands = list(operands[0])
        return arguments[0], operands
    count = len(arguments) // 2
    terms = [tuple(arguments[2 * at + 1]) for at in range(count)]
    if len(arguments) % 2:
        terms.append(tuple(arguments[-1]))
    return tuple(terms), [arguments[2 * at] for at in range(count)]


def _check_planned(name: str, tensor: Any, planned: Any) -> None:
    """The tensor has the planned type, shape and strides: the plan is for no other."""
    shape, strides, dtype = planned
    if tensor.dtype != dtype:
        raise DTypeError(f"{name} is {tensor.dtype}, planned was {dtype}")
    found, steps = tensor.shape, tensor.stride()
    fits = len(found) == len(shape)
    for at in range(len(shape) if fits else 0):  # one by one, as torch 2.11 compares no tuples here
        fits = fits and found[at] == shape[at] and steps[at] == strides[at]
    if not fits:
        raise ShapeError(
            f"{name} has shape {tuple(tensor.shape)} and strides {tuple(tensor.stride())}, planned were "
            f"{shape} and {strides}"
        )


for _name, _operation in (
    ("contract", contract), ("contraction", contraction), ("plan", plan), ("plan_call", plan_call),
    ("permute", permute), ("permutation", permutation), ("permutation plan", permutation_plan),
    ("permute_plan_call", permute_plan_call), ("einsum", einsum), ("cascade", cascade),
    ("traced cascade", traced_cascade), ("planned cascade", planned_cascade),
    ("text of a plan's call", spelled_plan), ("text of a permutation plan's call", spelled_move_plan),
):  # fmt: skip
    taken_by(_name, _operation)
