"""Measuring weft beside its peers: suites, statistics, environment, reports."""
