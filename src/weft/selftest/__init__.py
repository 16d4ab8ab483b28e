"""Whether the kernels compute right on this machine: small problems of each family, run before its first use.

    cases      what is run: one table
    trials     a case as tensors on a device, run on a schedule of its family; what is wrong with a result
    gate       before a plan uses a family for the first time on a machine
    whole      every family, for `weft doctor`

Verdicts are stored in weft's cache, and `weft.planner.verdicts` keeps the planner from families that failed.
"""
