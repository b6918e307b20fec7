"""Trust: checks of what clients send (`guard.py`), averages that bad uploads cannot move far, attackers, and noise.

This package may import the vocabulary, methods and engines.
"""
