"""The algebra `log` by products of exponentials."""
