"""Layers whose bias, activation and gate are fused into the product: modules as those of `torch.nn`.

They have the same parameters, the same initial values from the same seed, and state dicts that torch's own modules
load, where torch has such a layer.

>>> import torch, weft
>>> layer = weft.nn.Linear(4, 8, activation="gelu")
>>> layer(torch.rand(2, 3, 4)).shape
torch.Size([2, 3, 8])
"""

from weft.nn.attention import Attention
from weft.nn.linear import Bilinear, Einsum, GatedLinear, Linear
from weft.nn.tuning import tune

__all__ = ["Attention", "Bilinear", "Einsum", "GatedLinear", "Linear", "tune"]
