"""A directive for the pages of commands: ``{command} weft cache list`` shows how it is called and its options.

They are read from the command itself, so that a page cannot lack one.
"""

from __future__ import annotations

from typing import Any

import typer
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from weft.cli.main import app


def command(words: list[str]) -> Any:
    """The command that `words` name, "weft" first; `KeyError` where there is none."""
    found: Any = typer.main.get_command(app)
    for word in words[1:]:
        found = found.commands[word]
    return found


def described(words: list[str]) -> str:
    """Markdown: the line of usage, what the command does, and a table of its arguments and options."""
    found = command(words)
    shown = [parameter for parameter in found.params if parameter.name != "help"]
    arguments = [each for each in shown if each.param_type_name == "argument"]
    options = [each for each in shown if each.param_type_name == "option"]
    usage = [*words, *(_argument(each) for each in arguments), *(["[options]"] if options else [])]
    lines = ["```text", " ".join(usage), "```", "", *(found.help or "").splitlines(), ""]
    if shown:
        lines += ["| | | default |", "|-|-|-|"]
        lines += [f"| `{_argument(each)}` | {_cell(each)} | |" for each in arguments]
        lines += [f"| `{_spelled(each)}` | {_cell(each)} | {_default(each)} |" for each in options]
    return "\n".join(lines)


def _argument(parameter: Any) -> str:
    name = parameter.name.upper() + ("..." if parameter.nargs == -1 or parameter.multiple else "")
    return name if parameter.required else f"[{name}]"


def _spelled(option: Any) -> str:
    return " / ".join([*option.opts, *option.secondary_opts])


def _cell(parameter: Any) -> str:
    return (parameter.help or "").replace("|", "\\|").replace("*", "\\*")


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    return "" if parameter.default is None or parameter.default is False else f"`{parameter.default}`"


class Command(SphinxDirective):
    """Takes the words of a command."""

    required_arguments = 2
    optional_arguments = 2

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes(described(self.arguments))


def setup(sphinx: Sphinx) -> dict[str, bool]:
    sphinx.add_directive("command", Command)
    return {"parallel_read_safe": True}
