"""Cross-compile every family's kernels for every device that it serves, and print what they hold: a script of
`reporting`, whose cases are devices.
"""

from __future__ import annotations

from typing import Any

import torch

from gpu.devices import DEVICES, TASKS, Task
from gpu.reporting import print_report
from weft.gpu.common.cubins import excess
from weft.gpu.common.inspect import compiled
from weft.gpu.common.launch import KernelLaunch, collected
from weft.gpu.transpose.family import square_launch
from weft.planner.schedule import Schedule, Target
from weft.spec import Layout
from weft_bench.kernels.instructions import instructions

TRIED = 8  # schedules, until one fits into the device


def ranked(task: Task, target: Target) -> list[Schedule]:
    """Schedules of a family, the fastest by prediction first; none where it does not serve the device."""
    description = task.describe()
    if task.room.supports(description, target) is not None:
        return []
    schedules = task.room.schedules(description, target).schedules
    return sorted(schedules, key=lambda schedule: task.room.predict(description, schedule, target))[:TRIED]


def built(task: Task, schedule: Schedule, target: Target) -> list[KernelLaunch]:
    """All launches of a schedule."""
    with collected() as made:
        task.room.build(task.describe(), schedule, target)
    return made


def transposed(target: Target) -> list[KernelLaunch]:
    """A square matrix in place: a family without the doors of the others."""
    return [square_launch(Layout((1, 1, 1000, 1000), (1, 1, 1000, 1), torch.float32), False, target)]


class Report:
    """Of one device. Kernels of families that are made of others' are reported once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._target = DEVICES[name]
        self.found: dict[str, dict[str, Any]] = {}

    def filled(self) -> dict[str, dict[str, Any]]:
        for family, task in TASKS.items():
            for schedule in ranked(task, self._target):
                if self._take(family, built(task, schedule, self._target)):
                    break
        self._take("transpose", transposed(self._target))
        return self.found

    def _take(self, family: str, launches: list[KernelLaunch]) -> bool:
        """Add the kernels that were not met before; False where one of them does not fit into the device."""
        new = {}
        for launch in launches:
            kernel = launch.kernel.fn.__name__
            if kernel in self.found or kernel in new:
                continue
            try:
                binary = compiled(launch, self._name)
            except Exception as error:
                new[kernel] = {"family": family, "error": f"{type(error).__name__}: {str(error)[-2000:]}"}
                continue
            taken = binary.metadata.shared, getattr(binary.metadata, "tmem_size", None) or 0
            if excess(*taken, self._target) is not None:
                return False
            text = binary.asm["amdgcn" if self._target.kind == "hip" else "ptx"]
            new[kernel] = {"family": family, **instructions(text)}
        self.found |= new
        return True


def main() -> None:
    print_report({name: Report(name).filled for name in DEVICES})


if __name__ == "__main__":
    main()
