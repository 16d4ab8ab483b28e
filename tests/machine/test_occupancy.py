"""Blocks per SM by CUDA's own formula, which is compiled here, and by figures that others have published."""

from __future__ import annotations

import importlib.util
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from weft.errors import UnsupportedError
from weft.machine.datasheets import LIMITS, find_sm, limits_of
from weft_bench.machine.occupancy import occupancy, waves

PROGRAM = r"""
#include <limits.h>
#include <stdio.h>
#include "cuda_occupancy.h"
int main(void) {
    int major, minor, warps_sm, shared_sm, regs, warps, bars, carveout; long shared;
    while (scanf("%d %d %d %d %d %ld %d %d %d", &major, &minor, &warps_sm, &shared_sm, &regs, &shared, &warps, &bars,
                 &carveout) == 9) {
        cudaOccDeviceProp p = {0}; cudaOccFuncAttributes f = {0}; cudaOccDeviceState s = {0}; cudaOccResult r = {0};
        p.computeMajor = major; p.computeMinor = minor; p.maxThreadsPerBlock = 1024; p.warpSize = 32;
        p.maxThreadsPerMultiprocessor = 32 * warps_sm; p.regsPerBlock = p.regsPerMultiprocessor = 65536;
        p.sharedMemPerBlock = 48 * 1024; p.sharedMemPerMultiprocessor = shared_sm;
        p.reservedSharedMemPerBlock = major < 8 ? 0 : 1024; p.numSms = 100;
        p.sharedMemPerBlockOptin = shared_sm - p.reservedSharedMemPerBlock;
        f.maxThreadsPerBlock = INT_MAX; f.numRegs = regs; f.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        f.maxDynamicSharedSizeBytes = shared; f.numBlockBarriers = bars; s.carveoutConfig = carveout;
        if (cudaOccMaxActiveBlocksPerMultiprocessor(&r, &p, &f, &s, 32 * warps, shared)) printf("-1 0 0\n");
        else printf("%d %d %ld\n", r.activeBlocksPerMultiprocessor, r.allocatedRegistersPerBlock,
                    (long)r.allocatedSharedMemPerBlock);
    }
    return 0;
}
"""


def header() -> Path | None:
    """CUDA's formula, which Triton brings."""
    found = importlib.util.find_spec("triton")
    if found is None or not found.submodule_search_locations:
        return None
    file = Path(found.submodule_search_locations[0]) / "backends" / "nvidia" / "include" / "cuda_occupancy.h"
    return file if file.exists() else None


def test_it_is_cudas_formula(tmp_path: Path) -> None:
    """Twelve thousand kernels, likely and unlikely ones, on each architecture of the table."""
    file, compiler = header(), shutil.which("cc")
    if file is None or compiler is None:
        pytest.skip("no cuda_occupancy.h, or no C compiler")
    (tmp_path / "ask.c").write_text(PROGRAM)
    build = [compiler, "-O1", "-w", f"-I{file.parent}", "ask.c", "-o", "ask"]
    subprocess.run(build, cwd=tmp_path, check=True, timeout=120)
    draw = random.Random(28)
    asked = []
    for limits in LIMITS.values():
        for _ in range(2000):
            shared = draw.choice([0, draw.randrange(48 * 1024), draw.randrange(limits.shared_block + 1)])
            registers = draw.choice([draw.randrange(1, 256), 8 * draw.randrange(1, 32)])
            warps, barriers = draw.choice([1, 2, 4, 8, 12, 16, draw.randrange(1, 33)]), draw.choice([1, 1, 3, 16])
            asked.append((limits, registers, shared, warps, barriers, draw.choice([None, None, 0, 58, 100])))
    lines = "\n".join(
        f"{each.capability // 10} {each.capability % 10} {each.warps} {each.shared} {registers} {shared} {warps} "
        f"{barriers} {-1 if carveout is None else carveout}"
        for each, registers, shared, warps, barriers, carveout in asked
    )
    run = subprocess.run([tmp_path / "ask"], input=lines, capture_output=True, text=True, check=True, timeout=60)
    answers = [tuple(map(int, line.split())) for line in run.stdout.splitlines()]
    assert len(answers) == len(asked)
    assert len({blocks for blocks, _, _ in answers}) > 12
    for (limits, registers, shared, warps, barriers, carveout), answer in zip(asked, answers, strict=True):
        mine = occupancy(limits, registers=registers, shared=shared, warps=warps, barriers=barriers, carveout=carveout)
        said = (limits.capability, registers, shared, warps, barriers, carveout)
        assert (mine.blocks, mine.registers, mine.shared) == answer, said


@pytest.mark.parametrize(
    ("target", "registers", "shared", "warps", "blocks", "binds"),
    [
        # The thesis's table 5.4: 62.5 % of 64 warps, where registers allow 40.
        ("a100", 48, 0, 8, 5, ("registers",)),
        ("sm_80", 32, 0, 8, 8, ("warps", "registers")),
        # cuda_occupancy.h against the driver, as others report it: 168 registers fit five blocks of two warps on 8.9.
        ("sm_89", 200, 0, 2, 4, ("registers",)),
        ("sm_89", 168, 16888, 2, 5, ("shared memory",)),
        ("h200", 96, 64 * 1024, 8, 2, ("registers",)),
        ("h200", 168, 227 * 1024, 12, 1, ("registers", "shared memory")),
        ("sm_90", 32, 0, 1, 32, ("block slots",)),
        ("rtx5090", 128, 100 * 1024, 8, 0, ("shared memory",)),
    ],
)
def test_known_kernels(
    target: str, registers: int, shared: int, warps: int, blocks: int, binds: tuple[str, ...]
) -> None:
    found = occupancy(find_sm(target)[0], registers=registers, shared=shared, warps=warps)
    assert (found.blocks, found.binds) == (blocks, binds)
    assert found.warps == blocks * warps
    assert found.by[binds[0]] == blocks


def test_waves_and_their_tail() -> None:
    """The book's example: 80 SMs with 4 blocks each, a grid of one block more than one wave holds."""
    one, more = waves(320, 80, 4), waves(321, 80, 4)
    assert (one.full, one.tail, one.used) == (1, 0, 1.0)
    assert (more.full, more.tail) == (1, 1)
    assert more.count == pytest.approx(321 / 320)
    assert more.used == pytest.approx(321 / 640)
    assert "1 of 320 slots in the last" in str(more)
    # Nine blocks: packed by four to an SM they keep three SMs at work, spread nine.
    assert waves(329, 80, 4).active == (3, 9)
    assert one.active == (80, 80)
    assert waves(10, 132, 0).used == 0


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(UnsupportedError, match=r"target 'h2000' is none of .*did you mean 'h200'"):
        find_sm("h2000")
    with pytest.raises(UnsupportedError, match=r"compute capability 6.0 is not in the table"):
        limits_of(60)
    with pytest.raises(UnsupportedError, match=r"no kernel has 0 warps a block$"):
        occupancy(LIMITS[90], registers=96, shared=0, warps=0)


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        ({"registers": 32, "shared": 0, "warps": 48}, "48 warps are 1536 threads, a block has at most 1024"),
        ({"registers": 300, "shared": 0, "warps": 1}, "300 registers, a thread has at most 255"),
        ({"registers": 32, "shared": 228 * 1024, "warps": 1}, "233472 B of shared memory, a block has at most 232448"),
        ({"registers": 255, "shared": 0, "warps": 32}, "registers"),  # too many together, none by itself
    ],
)
def test_what_no_block_may_have_is_named(kernel: dict[str, int], said: str) -> None:
    assert str(occupancy(limits_of(90), **kernel)) == f"no block fits an SM ({said})"
