"""A histogram by atomic additions to memory

Each thread adds one to the bin of its element. The units of the L2 execute additions to one bin one after the other:
with 256 bins, some hundred thousand threads queue for few addresses.

    x  7 3 7 7 0 ...   --->  bins in global memory   [0] +1   [3] +1   [7] +1 +1 +1, one after the other
"""

from weft_bench.ladder.threads import blocks, cuda, launch

THREADS = 256


@cuda.jit
def atomics(x, d):
    at = cuda.grid(1)
    if at < x.shape[0]:
        cuda.atomic.add(d, x[at], 1)


def run(x, d):
    d.zero_()
    launch(atomics, (blocks(x.shape[0], THREADS),), THREADS, x, d)
    return d
