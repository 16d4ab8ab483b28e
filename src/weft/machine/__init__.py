"""What a device can do and how it is timed: work counts, ceilings, roofline, timing, clocks, the store on disk."""
