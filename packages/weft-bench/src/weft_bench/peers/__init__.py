"""Who is measured beside weft."""
