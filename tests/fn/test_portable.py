"""Functions as data, and the functions that data describes."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from fn.function_cases import CASES, Case
from weft.errors import FunctionError
from weft.fn import fingerprint, portable, trace


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_function_is_the_same_function_after_a_journey_as_text(case: Case) -> None:
    for dtype in case.dtypes:
        traced = case.trace(dtype)
        found = portable.read(json.loads(json.dumps(portable.written(traced))))
        again = trace(found, traced.dtypes, names=traced.inputs[1:], hook="fn")
        assert again.identity == traced.identity
        assert again.inputs == traced.inputs


def test_constants_keep_their_kind_and_every_bit() -> None:
    def odd(value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        clipped = torch.where(value > 0.1, value, -math.inf).clamp(max=3)
        return clipped * -0.0, value.to(torch.float16), value + True, value.pow(2), value / math.nan

    traced = trace(odd, (torch.float64,), hook="fn")
    again = trace(portable.read(portable.written(traced)), (torch.float64,), hook="fn")
    assert again.identity == traced.identity
    shifted = trace(lambda z: z * (1 - 2j), (torch.complex64,), hook="fn")
    assert trace(portable.read(portable.written(shifted)), (torch.complex64,), hook="fn").identity == shifted.identity


def test_one_text_is_one_function_and_can_be_told_from_others() -> None:
    one, other = (portable.written(trace(fn, (torch.float32,), hook="fn")) for fn in (torch.relu, functional.gelu))
    assert portable.read(one) is portable.read(json.loads(json.dumps(one)))
    assert fingerprint(portable.read(one)) is not None
    assert fingerprint(portable.read(one)) != fingerprint(portable.read(other))


def test_an_operation_that_torch_lacks_is_named() -> None:
    data = {"takes": ["x"], "does": [["aten.frobnicate.default", [{"at": 0}], {}]], "gives": {"at": 1}}
    with pytest.raises(FunctionError, match=r"uses aten\.frobnicate\.default, which this torch lacks"):
        portable.read(data)


def test_a_triton_function_is_found_by_its_name() -> None:
    pytest.importorskip("triton")
    import portable_functions as there

    traced = trace(there.halved, (torch.float32,), hook="fn")
    data = portable.written(traced)
    assert portable.read(data) is there.halved
    code = (
        "import json, sys\nfrom weft.fn import portable\n"
        "found = portable.read(json.loads(sys.stdin.read()))\n"
        "print(found.fn.__qualname__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(data), capture_output=True, text=True, check=True, timeout=120,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert done.stdout.strip() == "halved"
    with pytest.raises(FunctionError, match=r"calls the Triton function gone of module portable_functions"):
        portable.read({"triton": "portable_functions:gone", "key": "another"})
