"""Uses of the models of a finished run: predicting, exporting, joining as a new client; and pre-training of encoders.

This package may import experiment and everything below it.
"""
