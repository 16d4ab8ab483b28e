"""A tree of neighbours

A block sums a row: each of its 256 threads adds every 256th element, and a tree in shared memory adds the 256 sums. A
thread whose number is divisible by twice the distance adds its neighbour at that distance. In the first steps all
eight warps work with half, a quarter, an eighth of their lanes, and the other lanes wait (divergence).

    distance 1   0 1 2 3 4 5 6 7 ...     threads 0 2 4 6 ... add
    distance 2   0   2   4   6           threads 0   4   ...
    distance 4   0       4               threads 0       ...
"""

from weft_bench.ladder.threads import cuda, float32, launch, uint32

THREADS = 256


@cuda.jit
def neighbours(x, d):
    sums = cuda.shared.array(THREADS, float32)
    row, thread = uint32(cuda.blockIdx.x), uint32(cuda.threadIdx.x)
    total = float32(0)
    for column in range(thread, uint32(x.shape[1]), uint32(THREADS)):
        total += x[row, column]
    sums[thread] = total
    cuda.syncthreads()
    distance = uint32(1)
    while distance < uint32(THREADS):
        if thread % (uint32(2) * distance) == 0:
            sums[thread] += sums[thread + distance]
        cuda.syncthreads()
        distance *= uint32(2)
    if thread == 0:
        d[row] = sums[0]


def run(x, d):
    launch(neighbours, (x.shape[0],), THREADS, x, d)
    return d
