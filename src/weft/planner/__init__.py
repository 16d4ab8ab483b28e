"""How a contraction is to be computed: schedules, the choice among them, what tuning remembered."""
