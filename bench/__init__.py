"""Measurements, never tests: CPU per page, because wall clocks on shared machines say little."""
