"""From a contraction to the way it is computed: schedules, candidates, planner."""
