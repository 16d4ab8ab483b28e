"""`python -m weft` is the `weft` command."""

from weft.cli import main

if __name__ == "__main__":
    main()
