"""What a device can do, what a contraction asks of it, and the floor that follows."""
