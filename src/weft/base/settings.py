"""Settings of the environment that turn something off."""

from __future__ import annotations


def turns_off(value: str | None) -> bool:
    """Whether the value of an environment variable says no: 0, off, no or false; one that is not set does not."""
    return value is not None and value.lower() in ("0", "off", "no", "false")
