"""The recipes of docs/cookbook, run and measured as their pages show them."""
