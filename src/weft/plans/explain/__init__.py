"""What a plan does and why, in plain text."""
