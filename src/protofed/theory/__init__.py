"""The papers' convergence bounds as pure functions of named constants, one file per paper.

`statements.py` lists every lemma, theorem and corollary with its equation, its premises and both versions: as printed,
and corrected where the printed one is wrong. `docs/theory.md` explains them. This package may import nothing of
protofed.
"""
