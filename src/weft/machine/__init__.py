"""A device's abilities and its timing: work counts, ceilings, roofline, timing, clocks, the store on disk."""
