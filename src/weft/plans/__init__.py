"""A plan bound to tensors: built launches, checks of a call, `explain`."""
