"""One kernel of a plan as data: what it takes of an SM, how many of it run at once, its code at every level.

Of a GPU that is here these are the loaded kernel's own; of another one the kernel is cross-compiled at first use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from weft.base.caches import cached_property
from weft.base.figures import counted
from weft.errors import UnsupportedError
from weft.machine.datasheets import limits_of
from weft.planner.registry import need_triton, supposed_fault
from weft.planner.schedule import Target
from weft_bench.kernels import machine_code
from weft_bench.kernels.machine_code import KernelLoop, Resources
from weft_bench.machine.occupancy import Occupancy, Waves, occupancy, waves

if TYPE_CHECKING:
    from weft.gpu.common.cubins import Cubin


class Kernel:
    """A Triton kernel of a plan. Compiling it, and reading its machine code, wait until they are needed.

    Raises `UnsupportedError` where there is nothing to compile for (Triton's interpreter, an AMD GPU's PTX), or a tool
    is missing.
    """

    def __init__(self, launch: Any, target: Target) -> None:
        self._launch, self._target = launch, target
        self.name: str = launch.function.name
        self.programs: int = launch.programs  # of one call

    @cached_property
    def compiled(self) -> Any:
        """Triton's compiled kernel, with the texts of all levels."""
        if self._launch.loaded is not None:
            need_triton("the texts of a stored kernel are compiled")
            return self._launch.compile()
        self._check_target()
        from weft.gpu.common.inspect import TARGETS, compiled

        architecture = f"sm_{self._target.capability}" if self._target.kind == "cuda" else "gfx942"
        if architecture not in TARGETS:
            raise UnsupportedError(f"kernels are cross-compiled for {', '.join(TARGETS)}, not for {architecture}")
        return compiled(self._launch, architecture)

    def _check_target(self) -> None:
        if self._target.kind not in ("cuda", "hip"):
            raise UnsupportedError(f"{self.name} is compiled for no GPU: it runs in {self._target.name}")

    @property
    def ttgir(self) -> str:
        """Triton's own representation of the kernel, with the layouts of all tiles."""
        return str(self.compiled.asm["ttgir"])

    @property
    def ptx(self) -> str:
        """NVIDIA's virtual machine code."""
        return str(self._code("ptx"))

    @cached_property
    def sass(self) -> str:
        """The GPU's machine code, with comments that name source lines."""
        return machine_code.sass(self._machine_code)

    @property
    def registers(self) -> int:
        """32-bit registers that each thread is launched with."""
        return self._resources.registers

    @property
    def spills(self) -> int:
        """Bytes of local memory of each thread: registers that did not fit."""
        return self._resources.stack

    @property
    def shared(self) -> int:
        """Bytes of shared memory of each program, but for what the driver keeps."""
        known = self._cubin
        return known.shared if known is not None else int(self.compiled.metadata.shared)

    @property
    def warps(self) -> int:
        """Warps of a program, those of all roles."""
        known = self._cubin
        return known.threads // 32 if known is not None else int(self.compiled.metadata.num_warps)

    @cached_property
    def occupancy(self) -> Occupancy:
        """How many programs an SM of the target holds at once."""
        self._check_target()
        if self._cubin is None:
            raise UnsupportedError(f"{self.name} is compiled for {self._target.name}, of which no limits are known")
        return occupancy(
            limits_of(self._target.capability), registers=self.registers, shared=self.shared, warps=self.warps,
            barriers=self._cubin.barriers, carveout=self._launch.carveout,
        )  # fmt: skip

    @property
    def waves(self) -> Waves:
        """How the programs of one call fall into waves on the target's SMs."""
        return waves(self.programs, self._target.processors, self.occupancy.blocks)

    def blocks_by_driver(self) -> int:
        """Programs of the kernel that fit on an SM at once, by CUDA's driver; of a loaded kernel alone."""
        import ctypes

        from weft.gpu.common.driver import loaded_driver

        if self._launch.loaded is None:
            raise UnsupportedError(f"{self.name} is not loaded: the driver answers for kernels on a GPU that is here")
        blocks, function = ctypes.c_int(), ctypes.c_void_p(self._launch.loaded.function)
        status = loaded_driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
            ctypes.byref(blocks), function, 32 * self.warps, ctypes.c_size_t(self.shared)
        )
        if status:
            raise UnsupportedError(f"CUDA's driver does not say how many blocks of {self.name} fit: error {status}")
        return blocks.value

    def loop(self, *, of: str = "sass") -> KernelLoop:
        """The loop that the kernel is about, in "sass" or in "ptx"."""
        lines = machine_code.read_ptx(self.ptx) if of == "ptx" else machine_code.read_sass(self.sass)
        return machine_code.loop_of(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what it takes of an SM."""
        held, run = self.occupancy, self.waves
        return {
            "name": self.name, "programs": self.programs, "warps": self.warps, "registers": self.registers,
            "spills": self.spills, "shared": self.shared, "blocks_per_sm": held.blocks, "occupancy": held.share,
            "limited_by": list(held.binds), "waves": run.count, "tail": run.tail, "slots_used": run.used,
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"Kernel({self.name!r}, {counted(self.programs, 'program')}, {self._target.name})"

    @cached_property
    def _resources(self) -> Resources:
        if (loaded := self._launch.loaded) is not None:
            return Resources(loaded.registers, loaded.stack)
        return machine_code.resources(self._machine_code, self.compiled.metadata.name)

    @cached_property
    def _cubin(self) -> Cubin | None:
        """The kernel as it is launched; None for an AMD GPU."""
        from weft.gpu.common.cubins import Cubin

        if self._launch.loaded is not None:
            found: Cubin = self._launch.loaded.cubin
            return found
        return Cubin.of(self.compiled) if self._target.kind == "cuda" else None

    @property
    def _machine_code(self) -> bytes:
        if self._cubin is None:
            raise UnsupportedError(f"{self.name} has no cubin: it is compiled for {self._target.name}")
        return self._cubin.code

    def _code(self, kind: str) -> Any:
        if kind not in self.compiled.asm:
            raise UnsupportedError(f"{self.name} has no {kind}: it is compiled for {self._target.name}")
        return self.compiled.asm[kind]


def kernels_of(launch: Any, target: Target) -> tuple[Kernel, ...]:
    """The kernels that a built launch launches; those of a vendor's library, and of the CPU, are not among them."""
    if target.kind == "cpu" or supposed_fault() is not None:
        return ()
    return tuple(Kernel(each, target) for each in launched_kernels(launch))


def launched_kernels(launch: Any) -> Iterator[Any]:
    """Kernel launches within a launch, found by its attributes: `kernels`, or one `launch`."""
    from weft.gpu.common.launch import KernelLaunch

    if isinstance(launch, KernelLaunch):
        yield launch
        return
    inner = getattr(launch, "kernels", None)
    if inner is None:
        one = getattr(launch, "launch", None)
        inner = () if one is None else (one,)
    for each in inner:
        yield from launched_kernels(each)
