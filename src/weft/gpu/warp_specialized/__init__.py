"""TMA tiles, producer and consumer warps, in Gluon."""
