"""torch's copy

The same bytes, read and written in order, by the driver's copy: no kernel is launched. The roof is the best rate of
copies that `weft info` measures. Where the driver's copy is slower, a transposition can be faster than this rung.

    X  -->  X
"""


def run(x, d):
    return d.copy_(x)
