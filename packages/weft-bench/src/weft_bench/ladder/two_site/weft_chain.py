"""Stage 7: sizes chosen for the shape

`weft.chain` computes two contractions, each with the kernel, tiles, warps and stages that are predicted to be fastest
for its extents. The best choice differs from shape to shape.

    weft.chain("pq,bqc,cr->bpr", G, X, M)
"""

from weft.groups.operators import chain


def run(g, x, m, y):
    return chain("pq,bqc,cr->bpr", g, x, m, out=y, specialize="now")
