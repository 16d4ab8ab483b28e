"""Tiles loaded by Hopper's tensor memory accelerator."""
