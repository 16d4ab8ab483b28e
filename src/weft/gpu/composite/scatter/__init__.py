"""The product goes to a workspace, and D is written from there."""
