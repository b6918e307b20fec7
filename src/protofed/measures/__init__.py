"""Measures of finished runs, and statistics over seeds.

`on_demand.py` is the registry behind `protofed measure`; the other files are pure functions. This package may import
experiment and everything below it.
"""
