"""The version of weft-bench: that of the weft it measures."""

__version__ = "0.2.0"
