"""Stage 7: sizes chosen for the shape

`weft.chain` makes two contractions, each with the kernel, the tiles, warps and stages that are predicted to be the
fastest for its extents. What is best differs from shape to shape.

    weft.chain("pq,bqc,cr->bpr", G, X, M)
"""

from weft.groups.operators import chain


def run(g, x, m, y):
    return chain("pq,bqc,cr->bpr", g, x, m, out=y, specialize="now")
