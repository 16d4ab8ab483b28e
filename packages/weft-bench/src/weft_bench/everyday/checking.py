"""Whether a call of a case is right: some elements of it, or all, within the oracle's bound of float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import weft
from weft.networks.report import growth
from weft.oracle.judgement import fill_unwritten
from weft.testing import assert_close
from weft_bench.cases.everyday import EverydayCase
from weft_bench.checking import CALLS
from weft_bench.everyday.calls import Call, Planned, weft_call

NEAR = 0.03  # relative difference of torch's way, in the norm: what is more is another computation
GROUPS = 3  # products of a group that are checked


def check_default(case: EverydayCase, tensors: Sequence[torch.Tensor]) -> None:
    """Check weft's plain call. `AccuracyError` or `AssertionError` names the worst element."""
    if case.task in ("move", "group"):
        check(case, weft_call(case), tensors)
    else:
        check_later(weft_call(case), weft_call(case, validate=True), tensors)


def check_planned(case: EverydayCase, plans: Planned, tensors: Sequence[torch.Tensor]) -> None:
    """Check a call by plans."""
    if plans.checked is not None:
        check_later(plans.call, plans.checked, tensors)
    else:
        check(case, plans.call, tensors)


def check_later(call: Call, checked: Call, tensors: Sequence[torch.Tensor]) -> None:
    """Check that later calls of one kind give what the call that is `checked` gives, each element nearly."""
    right, result = _flat(checked(*tensors)), _flat(_later(call, tensors))
    if right.shape != result.shape:
        raise AssertionError(f"a later call has {result.numel()} elements, the checked one {right.numel()}")
    there = right.isfinite()
    most = NEAR * (right.abs() + right[there].abs().square().mean().sqrt())
    off = torch.where(there, ~((result - right).abs() <= most), result.nan_to_num() != right.nan_to_num())
    if count := int(off.sum()):
        at = int(off.int().argmax())
        raise AssertionError(f"{count} elements of a later call are off: element {at} is {result[at]}, not {right[at]}")


def _later(call: Call, tensors: Sequence[torch.Tensor]) -> Any:
    """The last of some results, in memory that the one before it left full of poison."""
    for _ in range(CALLS - 1):
        result = call(*tensors)
        for part in [result] if isinstance(result, torch.Tensor) else result:
            fill_unwritten(part)
        del result, part
    return call(*tensors)


def check(case: EverydayCase, call: Call, tensors: Sequence[torch.Tensor]) -> None:
    """Check all elements of a result; of a group some products. What is only moved is compared bit for bit."""
    result = _later(call, tensors)
    if case.task == "move" and case.fused is None:
        if not torch.equal(result, torch.einsum(case.equation, *tensors)):
            raise AssertionError("elements differ from those that torch moves")
        return
    for have, reference, bound in _expected(case, tensors, result):
        assert_close(have, reference, bound)


def check_alike(call: Call, other: Call, tensors: Sequence[torch.Tensor]) -> None:
    """Check that torch's way computes what weft does, roundings aside."""
    ours, theirs = (_flat(each(*tensors)) for each in (call, other))
    if ours.shape != theirs.shape:
        raise AssertionError(f"torch's way has {theirs.numel()} elements, weft's {ours.numel()}")
    finite = ours.isfinite() & theirs.isfinite()
    if not bool((finite | (ours == theirs)).all()):
        raise AssertionError("torch's way is infinite elsewhere than weft's")
    ours, theirs = ours[finite], theirs[finite]
    away = float((ours - theirs).norm() / ours.norm().clamp_min(1e-30))
    if not away <= NEAR:
        raise AssertionError(f"torch's way computes something else: {away:.2g} away")


def _flat(result: Any) -> torch.Tensor:
    parts = [result] if isinstance(result, torch.Tensor) else result
    wide = [part.to(torch.complex128 if part.is_complex() else torch.float64).reshape(-1) for part in parts]
    return torch.cat(wide)


def _expected(
    case: EverydayCase, tensors: Sequence[torch.Tensor], result: Any
) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Each part of the result that is checked, what is right, and the bound."""
    if case.task == "group":
        chosen = sorted({0, len(result) // 2, len(result) - 1})[:GROUPS]
        return [(result[at], *weft.testing.expectation(case.equation, *tensors[2 * at : 2 * at + 2])) for at in chosen]
    if case.count > 2:
        return [(result, *_of_network(case, tensors))]
    options, equation = dict(case.options), case.equation
    operands = list(tensors[: case.count])
    if case.fused is not None:
        given = zip(case.fused.operands.items(), tensors[case.count :], strict=True)
        options["epilogue"] = case.fused.epilogue
        options["operands"] = {name: (modes, x) for (name, modes), x in given}
        options["indices"] = dict(case.fused.indices)
    if case.count == 1:
        term, output = equation.split("->")
        equation = f"{term},->{output}"
        operands.append(operands[0].new_ones(()))
    options.setdefault("out_dtype", case.dtype)
    return [(result, *weft.testing.expectation(equation, *operands, **options))]


def _of_network(case: EverydayCase, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """All operands by `torch.einsum` in double precision, and the bound of a tree of contractions."""
    wide = torch.complex128 if tensors[0].is_complex() else torch.float64
    relative, low = growth(weft.network(case.equation, *tensors).plan)
    exact = torch.einsum(case.equation, *(x.to(wide) for x in tensors))
    magnitude = torch.einsum(case.equation, *(x.abs().double() for x in tensors))
    return exact, relative * magnitude + low
