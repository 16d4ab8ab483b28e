"""Profiles of contractions over ranks and in blocks: what ran when on each rank, beside what was predicted."""
