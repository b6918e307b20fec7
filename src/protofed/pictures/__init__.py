"""Pictures of runs, drawn with matplotlib.

`catalogue.py` is the registry behind `protofed draw`, `style.py` sets how pictures look. This package may import
measures, models, experiment and everything below them.
"""
