"""How a launch follows the one before it: its programs come to the SMs while the last of that one still run.

On Hopper and later a launch may be *dependent by program* (CUDA C++ Programming Guide, "Programmatic Dependent
Launch"): it begins when all programs of the launch before have said so, and itself waits until they have ended and what
they wrote is seen. So the microsecond between two launches, in which the device would start programs, passes
alongside the first one's last programs. On an H200 a product of 200^3 takes 2.9 us after another instead of 3.5, a
permutation of a megaword 2.6 instead of 3.2.

Every kernel of weft waits before anything else, and only then lets the next launch come: whoever waits for a launch has
waited for all that were before it. A launch that is not weft's waits for the whole of weft's, as ever.

Programs that come so take SMs as these become free. Kernels that stay on the device for long, with an order of
tiles that makes neighbours share what the cache holds, lose more by that than they gain (3 % of a product of 5184^3):
such kernels launch early only when they are short, and release their dependents only at exit.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from weft.gpu.common.release import PDL_OPTION
from weft.planner.target import interpreting


@tl.core.builtin
def _pdl_wait(_semantic: Any = None) -> None:
    if getattr(_semantic.builder.options, PDL_OPTION, False):
        gdc_wait(_semantic=_semantic)


@tl.core.builtin
def _pdl_begin(_semantic: Any = None) -> None:
    if getattr(_semantic.builder.options, PDL_OPTION, False):
        gdc_wait(_semantic=_semantic)
        gdc_launch_dependents(_semantic=_semantic)


def _nothing() -> None:
    """Wait for nothing: in the interpreter each launch ends before the next begins."""


pdl_wait = _nothing if interpreting() else _pdl_wait
"""Wait for all launches before this one: the first statement of kernels that stay on the device."""

pdl_begin = _nothing if interpreting() else _pdl_begin
"""The same, and then let the next launch come: the first statement of all others."""
