"""Networks over ranks whose intermediates are distributed by modes: `net(*tensors, group=..., distribute="modes")`.

    plan      what ranks share out in each step, how each result is placed, what travels; its time and its memory
    search    which modes: dynamic programming over the tree, one dimension of the mesh after the other; the mesh, and
              the slices where a rank's memory needs some
    call      a call of all ranks: agreed on, run, its result whole on every rank; the steps of one rank
    report    the plan in words
"""
