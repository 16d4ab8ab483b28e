"""What every room may use: bounded caches, arrays of other libraries, text of figures, the terminal."""
