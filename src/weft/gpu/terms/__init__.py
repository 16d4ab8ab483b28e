"""Products of float32 matrices by terms of a shorter type, in one kernel: see `weft.planner.split_schemes`."""
