"""What is to be computed, and nothing of how: notation, contraction, canonical form."""

from weft.spec.canonical import canonical
from weft.spec.contraction import Arithmetic, Contraction, Extra, Layout, Mode, Role, Strides
from weft.spec.notation import Label, Notation, parse

__all__ = [
    "Arithmetic",
    "Contraction",
    "Extra",
    "Label",
    "Layout",
    "Mode",
    "Notation",
    "Role",
    "Strides",
    "canonical",
    "parse",
]
