"""The measurements of `weft tune`, and the record of them."""
