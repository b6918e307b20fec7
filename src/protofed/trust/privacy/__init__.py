"""Private prototypes: clipped class sums with Gaussian noise, DP-SGD, and what both of them cost (docs/privacy.md).

`section.py` has the options, `rules.py` says for which methods a guarantee holds, `release.py` makes noisy prototypes,
`private_training.py` is DP-SGD, `private_loop.py` is the engine that uses both, and `accounting.py` computes epsilon.
"""
