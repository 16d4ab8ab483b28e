"""What `weft tune` measures, and the record of it."""
