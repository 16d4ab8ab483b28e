"""Ceilings of a device where a plan describes itself: known ones, nothing is measured."""

from __future__ import annotations

import torch

from weft.errors import UnsupportedError
from weft.machine.ceilings import Ceilings, ceilings, from_datasheet
from weft.planner.schedule import Target


def known_ceilings(target: Target) -> tuple[Ceilings | None, str]:
    """Ceilings of a device that are known without measuring, else a sentence that says why none are."""
    if target.kind == "interpreter":
        return None, "Triton's interpreter has no ceilings"
    try:
        if target.kind == "cpu":
            return ceilings(target.device, may_measure=False), ""
        if torch.cuda.is_available() and torch.cuda.get_device_name(target.index) == target.name:
            return ceilings(target.device, may_measure=False), ""
        return from_datasheet(target.name), ""
    except UnsupportedError:
        return None, f"no ceilings are known for {target.name}, so no floor is given: `weft info` measures them"
