"""Descriptions of plans: what a plan does and why, in plain text."""
