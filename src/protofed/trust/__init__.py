"""Trust: checks of what clients send, and noise on it. `guard.py` rejects uploads that cannot be used.

This package may import the vocabulary, methods and engines.
"""
