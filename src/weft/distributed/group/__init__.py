"""The ranks of a process group: what they say to one another, what travels between them, and what that costs."""
