"""Descriptions of a computation, and nothing of how it is done: notation, contraction, canonical form."""

from weft.spec.canonical import canonical
from weft.spec.contraction import Arithmetic, Aux, Contraction, Layout, Mode, Role, Strides
from weft.spec.notation import Label, Notation, parse

__all__ = [
    "Arithmetic",
    "Aux",
    "Contraction",
    "Label",
    "Layout",
    "Mode",
    "Notation",
    "Role",
    "Strides",
    "canonical",
    "parse",
]
