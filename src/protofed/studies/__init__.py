"""Studies: many runs that answer one question. `sweep.py`: grids over seeds; `reproduce/`: the papers' tables.

This package may import pictures, measures, models, experiment and everything below them; only `cli` is above it.
"""
