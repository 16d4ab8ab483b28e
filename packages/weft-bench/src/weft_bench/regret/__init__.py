"""The suite `regret`: the time that weft's calls take from the first of a fresh process on, over torch's time."""
