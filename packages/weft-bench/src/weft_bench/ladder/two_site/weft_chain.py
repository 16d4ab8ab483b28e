"""Stage 7: sizes chosen for the shape

`weft.chain` does both products in one launch like the stage before, in Triton, with tiles, warps and stages that
follow the extents: small ones for few columns, larger ones where there is more to do. Where two contractions are
predicted to be faster, as here, it makes them. What is best differs from shape to shape.

    weft.chain("pq,bqc,cr->bpr", G, X, M)
"""

from weft.groups.chain import chain


def run(g, x, m, y):
    return chain("pq,bqc,cr->bpr", g, x, m, out=y, specialize="now")
