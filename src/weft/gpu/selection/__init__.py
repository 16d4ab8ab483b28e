"""Which pair an algebra selected: the largest or smallest combination along k, and where it stands."""
