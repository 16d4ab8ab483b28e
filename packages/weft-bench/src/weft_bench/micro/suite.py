"""All microbenchmarks by name, run one after another: one that cannot be run says why, and the others go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from weft.errors import UnsupportedError
from weft.machine.stamp import device_stamp
from weft_bench.environment import disclose
from weft_bench.micro.computing import divergence, held, registers
from weft_bench.micro.launching import launch
from weft_bench.micro.memory import coalescing, l2, shared, transfer
from weft_bench.micro.pairs import pairs
from weft_bench.micro.record import Micro, Micros
from weft_bench.profiling.record import keep_l2

BUDGET = 0.1  # seconds of samples for each timing

MICROS: Mapping[str, Callable[[torch.device, str, float], Micro]] = {
    "launch": launch, "coalescing": coalescing, "registers": registers, "held": held, "divergence": divergence,
    "transfer": transfer, "shared": shared, "l2": l2, "pairs": pairs,
}  # fmt: skip
ON_CPU = ("launch",)  # what can be asked of a CPU, too


def run(
    names: Sequence[str], device: torch.device, budget: float = BUDGET, begun: Callable[[str], None] = lambda name: None
) -> Micros:
    """The results of microbenchmarks by name; "all" stands for every one. `UnsupportedError` for other names."""
    wanted = list(MICROS) if "all" in names else list(names)
    if strangers := [name for name in wanted if name not in MICROS]:
        raise UnsupportedError(f"no microbenchmark is called '{strangers[0]}': there are {', '.join(MICROS)} and all")
    device_name = str(device_stamp(device)["name"])
    environment = disclose(
        device, workloads={"microbenchmarks": wanted, "inputs": "see each of them"},
        correctness="none of the values is compared while it is timed: tests hold what the kernels compute",
        budget=budget,
    )  # fmt: skip
    found: list[Micro] = []
    for name in wanted:
        begun(name)
        if device.type != "cuda" and name not in ON_CPU:
            if "all" not in names:
                raise UnsupportedError(f"the microbenchmark '{name}' is of a GPU, not of '{device}'")
            found.append(Micro(name, device_name, "", "", (), (), missing="it is of a GPU"))
            continue
        try:
            found.append(MICROS[name](device, device_name, budget))
            if name == "l2":
                keep_l2(device, 1e12 * found[-1].figures["L2 TB/s"])
        except (UnsupportedError, RuntimeError) as error:
            found.append(Micro(name, device_name, "", "", (), (), missing=str(error).partition("\n")[0]))
    return Micros(found, environment)
