"""The `weft` command: one file for each of its verbs."""
