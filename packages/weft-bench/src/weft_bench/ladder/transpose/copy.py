"""The copy rate

The same bytes, read and written in order. A transposition can be no faster: this is the mark.

    X  -->  X
"""


def run(x, d):
    return d.copy_(x)
