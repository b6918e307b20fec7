"""Pictures of runs, drawn with matplotlib.

`catalogue.py` is the registry behind `protofed draw`, and `style.py` sets the appearance of pictures. This package may
import measures, models, experiment and everything below them.
"""
