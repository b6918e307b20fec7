"""Secure sums (Bonawitz et al. 2017): the server learns the total of the clients' uploads, and no single upload.

`field.py` has the arithmetic and the masks, `shamir.py` shares of secrets, `protocol.py` both sides of a round, and
`totals.py` what is summed for a method.
"""
