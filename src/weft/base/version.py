"""The version of weft, stated once."""

__version__ = "0.1.0"
