"""A tree of halves: idle warps instead of idle lanes

The same tree, but the first half of the threads adds the sums of the second half. The active threads are adjacent, so
whole warps are idle and end early, and no warp has waiting lanes until one warp is left.

    distance 128   threads 0 .. 127 add what 128 .. 255 have     four warps work, four are idle
    distance  64   threads 0 ..  63                              two work
    distance  32   threads 0 ..  31                              one works; from here on lanes are idle
"""

from weft_bench.ladder.threads import cuda, float32, launch, uint32

THREADS = 256


@cuda.jit
def halves(x, d):
    sums = cuda.shared.array(THREADS, float32)
    row, thread = uint32(cuda.blockIdx.x), uint32(cuda.threadIdx.x)
    total = float32(0)
    for column in range(thread, uint32(x.shape[1]), uint32(THREADS)):
        total += x[row, column]
    sums[thread] = total
    cuda.syncthreads()
    distance = uint32(THREADS // 2)
    while distance > 0:
        if thread < distance:
            sums[thread] += sums[thread + distance]
        cuda.syncthreads()
        distance //= uint32(2)
    if thread == 0:
        d[row] = sums[0]


def run(x, d):
    launch(halves, (x.shape[0],), THREADS, x, d)
    return d
