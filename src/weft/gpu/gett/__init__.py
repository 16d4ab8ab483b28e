"""GETT: operands gathered where they lie, tiles along several modes at once."""
