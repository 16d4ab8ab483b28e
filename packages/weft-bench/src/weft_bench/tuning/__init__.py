"""Tuning many problems at once: jobs, records, studies, calibration."""
