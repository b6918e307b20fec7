"""The engine whose clients are other machines, reached through Flower (extra `protofed[flower]`).

`wire.py` turns messages into Flower's records and back, `remote.py` is the engine. The apps that Flower starts are in
`deploy/`. This package may import the vocabulary and `engines/`. Only it and `deploy/` import Flower.
"""
