"""The text in which a plan of a cascade says its form, blocks, masks, what serves, and memory."""

from __future__ import annotations

import math
from typing import Any

from weft.base.figures import share, si
from weft.spec.dtypes import dtype_name


def explained(plan: Any) -> str:
    """Several lines of text on a `CascadePlan`."""
    elements = math.prod(plan.extents[label] for label in plan.notation.s)
    block = math.prod(max(plan.blocks.extents[label], 1) for label in plan.frame.order)
    size = plan.types.accumulate.itemsize
    cut = ", ".join(f"{label}={plan.blocks.extents[label]}" for label in plan.frame.order)
    every = math.prod(-(-plan.extents[label] // max(plan.blocks.extents[label], 1)) or 1 for label in plan.frame.order)
    lines = [
        f"cascade     {plan.notation}",
        "modes       " + ", ".join(f"{label}={extent}" for label, extent in plan.extents.items()),
        f"types       {dtype_name(plan.said.dtype)}, sums in {dtype_name(plan.types.accumulate)}",
        f"form        {plan.program.form}: {plan.program.why}",
        f"passes      {len(plan.program.stages)}",
        f"blocks      {cut}: {block} elements, {every} blocks",
    ]
    for at, stage in enumerate(plan.program.stages):
        left = sum(math.prod(extent for _, extent in box.values()) for box in plan.blocks.cut(stage, {}))
        if left < elements:
            lines.append(f"masks       pass {at + 1} computes {share(left / elements)} of S")
    if plan.few is not None:
        lines.append("serves      torch's operations, on all of S at once: it has few elements")
    elif plan.said.device.type == "cpu":
        why = dict.fromkeys(each for each in plan.loops.rows.values() if isinstance(each, str))
        how = f"in torch's operations: {', '.join(why)}" if why else "in loops that are compiled for this function"
        lines.append(f"loops       {how}")
    held, all_of_it = si(block * size, "B"), si(elements * size, "B")
    if plan.kernel is None:
        lines.append(f"memory      {held} of S at a time; all of it would be {all_of_it}")
    else:
        waits = plan.arriving is not None and not plan.arriving.serves
        since = f", from call {plan.arriving.due} on" if waits else ""
        lines.append(f"kernel      {plan.kernel.tile}{since}")
        lines.append(f"memory      S stays on the chip; all of it would be {all_of_it}")
    return "\n".join(lines)
