"""What can be done with the models of a finished run: predict, export, let a new client join; and pre-training.

This package may import experiment and everything below it.
"""
