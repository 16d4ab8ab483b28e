"""`python -m weft` is the `weft` command, which needs typer and rich."""

import sys


def main() -> None:
    """Entry point of the `weft` command. It ends with 2 and a sentence where the extra `cli` is not installed."""
    try:
        from weft.cli.main import main as command
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(f"weft: the command needs {error.name}: pip install 'weft-tensor[cli]'", file=sys.stderr)
        sys.exit(2)
    command()


if __name__ == "__main__":
    main()
