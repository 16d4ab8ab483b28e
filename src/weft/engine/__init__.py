"""The life of a call: the one table of known calls. It imports `planner` and what lies below, and no backend."""
