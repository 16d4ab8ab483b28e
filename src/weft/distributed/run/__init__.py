"""One call on one rank: the request is checked, parts travel and are contracted, sums are finished."""
