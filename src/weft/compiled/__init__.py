"""weft's calls as operations that torch knows (`torch.ops.weft`), for its compiler, its export and dispatch modes.

An operation's schema takes tensors, numbers and one text. The text says all else that a call does, functions included;
it means the same in another process.
"""
