"""Bins of each block in shared memory

A block counts its own elements in shared memory, where the SM executes additions, and adds its bins to those in global
memory at its end: 256 additions per block instead of 8192.

    x  7 3 7 7 0 ...   --->  bins of the block, shared   --->  bins in global memory, once a block
"""

from weft_bench.ladder.threads import blocks, cuda, int32, launch

BINS, THREADS, EACH = 256, 256, 32


@cuda.jit
def block_bins(x, d):
    bins = cuda.shared.array(BINS, int32)
    thread = cuda.threadIdx.x
    bins[thread] = 0
    cuda.syncthreads()
    first = cuda.blockIdx.x * THREADS * EACH
    for at in range(first + thread, min(first + THREADS * EACH, x.shape[0]), THREADS):
        cuda.atomic.add(bins, x[at], 1)
    cuda.syncthreads()
    cuda.atomic.add(d, thread, bins[thread])


def run(x, d):
    d.zero_()
    launch(block_bins, (blocks(x.shape[0], THREADS * EACH),), THREADS, x, d)
    return d
