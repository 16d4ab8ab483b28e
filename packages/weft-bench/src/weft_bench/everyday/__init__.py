"""The suite `everyday`: weft's plain call, plans and tiers beside torch's plain way and `torch.compile`."""
