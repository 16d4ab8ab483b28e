"""The cases of a suite as jobs for the tuner, described without tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from weft.cli.tuning import Job
from weft.errors import UnsupportedError, WeftError
from weft.planner.request import Request
from weft.planner.schedule import Description
from weft.planner.target import resolve_backend, target_of
from weft.selftest.case import PermuteCase
from weft.spec import Layout
from weft.testing import layout_strides
from weft_bench.cases import FUNCTIONS, Case


def of_suite(
    name: str,
    pairs: Sequence[str] = (),
    only: Sequence[str] = (),
    *,
    work: int | None = None,
    device: torch.device,
    backend: str = "auto",
) -> tuple[list[Job], dict[str, str]]:
    """The cases of a suite of `weft_bench.suites`, as its benchmark will run them, and why others are left out."""
    from weft_bench.suites import entries

    chosen = resolve_backend(backend, device)
    if chosen == "reference":
        raise UnsupportedError("the reference backend chooses nothing: there is nothing to tune")
    target = target_of(chosen, device)
    jobs, skipped = [], {}
    for entry in entries(name, pairs, only, work):
        case = entry.case
        try:
            jobs.append(
                Job(entry.group, case.name, _equation(case), _extents(case), described(case), chosen, target)
            )  # fmt: skip
        except WeftError as error:
            skipped[f"{entry.group} {case.name}"] = str(error).partition("\n")[0]
    return jobs, skipped


def described(case: Case | PermuteCase) -> Description:
    """The description that a plan for this case's tensors is made of.

    Raises `UnsupportedError` for what is planned otherwise: matrices in place, and a C that an epilogue takes.
    """
    if isinstance(case, PermuteCase):
        return _permutation(case)
    if case.c_as:
        raise UnsupportedError("its C is an operand of the epilogue")
    request = _request(case)
    d = _layout(case.d_shape, case.dtypes[2], case.layouts[3])
    c = None
    if case.add:
        shape = tuple(1 if at in case.c_ones else extent for at, extent in enumerate(case.d_shape))
        c = _layout(shape, case.dtypes[2], case.layouts[2])
    return request.contraction(c, d)


def _request(case: Case) -> Request:
    from weft.algebra import find
    from weft.planner.options import Options
    from weft.plans.resolving import resolved

    given = case.options()
    functions = tuple(given[hook] for hook in ("a_fn", "b_fn", "c_fn", "epilogue"))
    options = Options(
        given["out_dtype"], given["precision"], given["accumulate"], functions,
        algebra=find(given.get("algebra", "plus_times")), backend="reference", promote=given.get("promote", False),
    )  # fmt: skip
    # Tensors without memory tell shapes, strides and conjugation; the alignment is put right below.
    operands = []
    for shape, dtype, layout, conjugated in zip(case.shapes, case.dtypes, case.layouts, case.conjugate, strict=False):
        strides, _ = layout_strides(shape, layout)
        tensor = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
        operands.append(tensor.conj() if conjugated else tensor)
    request = resolved(case.notation, str(case.equation), operands[0], operands[1], options)
    a, b = (
        _layout(shape, dtype, layout)
        for shape, dtype, layout in zip(case.shapes, case.dtypes, case.layouts, strict=False)
    )
    return replace(request, a=a, b=b)


def _layout(shape: tuple[int, ...], dtype: torch.dtype, layout: str) -> Layout:
    """As `weft.testing.random_operand` and `poisoned` lay a tensor out: past a guard of whole 16-byte words."""
    strides, at = layout_strides(shape, layout)
    offset = at * dtype.itemsize
    return Layout(shape, strides, dtype, min(16, offset & -offset) if offset else 16)


def _permutation(case: PermuteCase) -> Description:
    from weft.api.permute import plan_permute

    if "in place" in case.tags:
        raise UnsupportedError("matrices in place are not planned")
    x = torch.empty(case.shape, dtype=case.dtype, device="meta")
    function = FUNCTIONS[case.fn] if case.fn else None
    return plan_permute(x, case.equation, fn=function, out_dtype=case.out_dtype, backend="reference").permutation


def _equation(case: Case | PermuteCase) -> str:
    return case.equation if isinstance(case, PermuteCase) else str(case.notation)


def _extents(case: Case | PermuteCase) -> dict[str, int]:
    if isinstance(case, PermuteCase):
        return dict(zip(case.equation.partition("->")[0], case.shape, strict=True))
    return {str(label): extent for label, extent in case.extents.items()}
