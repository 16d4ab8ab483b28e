"""Kernels have the same keys in Triton's cache in every process, whichever came first there: what one process has
compiled another finds."""

from __future__ import annotations

import json

from commands import python
from forked import said

KEYS = """
import json, sys
from weft.gpu.common.triton_versions import settle_key
from weft.gpu.complex.interleaved_kernel import interleaved_kernel
from weft.gpu.gett.kernel import gett_kernel
from weft.gpu.permute.kernel import permute_kernel
from weft.gpu.semiring.kernel import semiring_kernel
from weft.gpu.simt.kernel import simt_kernel
from weft.gpu.warp_specialized.kernel import ws_kernel
kernels = [interleaved_kernel, gett_kernel, permute_kernel, semiring_kernel, simt_kernel, ws_kernel]
for kernel in kernels[:: int(sys.argv[1])]:
    settle_key(kernel)
print(json.dumps({kernel.fn.__name__: kernel.cache_key for kernel in kernels}))
"""


def reversed_keys() -> dict[str, str]:
    """Of the kernels, keyed in reverse by a new interpreter, whose hashes are its own."""
    return json.loads(python(KEYS, "-1", limit=300, TRITON_INTERPRET="0"))


def test_a_kernel_has_one_key_whichever_is_compiled_first() -> None:
    first, reverse = json.loads(said(KEYS, "1")), reversed_keys()
    assert len(first) == 6
    assert first == reverse


OPERATIONS = """
import torch, weft
from weft.gpu.common.constants import meant, whole
from weft.gpu.common.operation import operation

def of(function):
    a = torch.empty(4, 4, device="meta")
    found = meant(operation(weft.plan("ab,bc->ac", a, a, backend="reference", epilogue=function).contraction))
    return found, str(whole(found))

(relu, first), (again, second), (tanh, other) = of(torch.relu), of(lambda x: torch.relu(x)), of(torch.tanh)
assert relu.epilogue.cache_key in first
assert first == second
assert first != other
"""


def test_an_operation_stands_in_keys_by_the_code_of_its_functions() -> None:
    """Triton keys a kernel by the text of such a constant: two functions of one name must not share it."""
    said(OPERATIONS)
