"""Measurements of a card that are made once and kept on disk: the bandwidth of its L2, and models of its energy."""

from __future__ import annotations

from typing import Any

import torch

from weft.machine.stamp import device_stamp
from weft.machine.store import Store


def keep_l2(device: torch.device, rate: float) -> None:
    """Remember the bandwidth of a card's L2, bytes/s."""
    Store("micro").save(_key(device, "l2"), {"text": "bandwidth of the L2", "rate": rate})


def kept_l2(device: torch.device) -> float | None:
    """The bandwidth of a card's L2, bytes/s, where `weft micro l2` has measured it."""
    found: Any = Store("micro").load(_key(device, "l2"))
    return float(found["rate"]) if isinstance(found, dict) and isinstance(found.get("rate"), int | float) else None


def keep_model(device: torch.device, rate: str, coefficients: dict[str, float]) -> None:
    """Remember an energy model for products of one rate name."""
    Store("energy").save(_key(device, rate), {"text": f"energy of {rate} products", **coefficients})


def kept_model(device: torch.device, rate: str) -> dict[str, float] | None:
    """The coefficients of an energy model that was fitted before."""
    found: Any = Store("energy").load(_key(device, rate))
    if not isinstance(found, dict):
        return None
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}


def _key(device: torch.device, what: str) -> dict[str, Any]:
    return {"environment": device_stamp(device), "what": what}
