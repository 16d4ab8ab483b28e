"""One call on one rank: what is asked is checked, parts travel and are contracted, sums are finished."""
