"""Engines: how the clients' local training and evaluation is carried out.

`engine.py` says what an engine offers, `loop.py` is the specification, `choice.py` the registry and the rule of "auto".
This package may import the vocabulary only.
"""
