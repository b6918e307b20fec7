"""Parts that several methods share: clustering, distances, margins, prototypes on a sphere, and message types.

This package may import the vocabulary only.
"""
