"""Tools for every room: bounded caches, arrays of other libraries, text of figures, the terminal."""
