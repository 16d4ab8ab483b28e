"""Why a plan is fast, or slow: launches, counters, what they say, energy, scaling models. Never imported by `weft`."""
