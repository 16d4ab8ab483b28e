"""Complex numbers: gathered where they lie, moved and converted, or as contractions of real numbers."""
