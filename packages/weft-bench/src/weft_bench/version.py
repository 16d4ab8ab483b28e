"""The version of weft-tensor-bench: that of the weft it measures."""

__version__ = "0.2.0"
