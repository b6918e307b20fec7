"""Trust: checks of what clients send. `guard.py` rejects uploads that cannot be used.

This package may import the vocabulary only.
"""
