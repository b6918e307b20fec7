"""The papers' bounds: values computed by hand (each docstring has another one), and the list of all statements."""

from __future__ import annotations

import inspect
import math

import pytest

from protofed.studies.reproduce.papers import ENTRIES
from protofed.theory import fednh_bounds as nh
from protofed.theory import fedproto_bounds as fp
from protofed.theory import mpfedcl_bounds as mp
from protofed.theory.statements import STATEMENTS


def test_fedproto_by_hand():
    assert fp.fedproto_lemma1(L1=4, sigma2=3, eta=0.25, E=2, S=8) == -(0.25 - 0.125) * 8 + 4 * 2 * 0.0625 * 3 / 2
    assert fp.fedproto_lemma2(lam=2, L2=0.5, eta=0.25, E=2, G=3) == 1.5
    assert fp.fedproto_lemma2_squared(lam=2, L2=0.5, eta=0.25, E=2, G=3, distances=0.5) == 0.75
    assert fp.fedproto_theorem1(L1=4, L2=0.5, sigma2=3, G=3, eta=0.25, lam=2, E=2, S=8) == -1 + 0.75 + 1.5
    assert fp.fedproto_largest_eta(L1=4, L2=0.5, sigma2=3, G=3, lam=2, E=2, S=8) == 2 * (8 - 6) / (4 * (8 + 6))
    assert fp.fedproto_largest_eta(L1=4, L2=0.5, sigma2=3, G=3, lam=3, E=2, S=8) == 0  # 8 < 9
    assert fp.fedproto_largest_lambda(L2=0.5, G=3, E=2, S=8) == 8 / 3
    assert fp.fedproto_largest_lambda(L2=0, G=3, E=2, S=8) == math.inf
    etas = fp.fedproto_corollary1_etas(L1=4, L2=0.5, sigma2=3, G=3, lam=1, squares=[5, 3])
    assert etas == [2 * (5 - 3) / (4 * (5 + 6)), 2 * (8 - 3) / (4 * (8 + 6))]
    safe = fp.fedproto_corollary1_safe_etas(L1=4, L2=0.5, sigma2=3, G=3, lam=1, squares=[5, 1, 0])
    assert safe == [2 * (5 - 1.5) / (4 * (5 + 3)), 0, 0]
    assert fp.fedproto_corollary1_safe_etas(L1=4, L2=0.5, sigma2=0, G=3, lam=0, squares=[0]) == [0]
    assert fp.fedproto_corollary1_lambda(L2=0.5, G=3, E=2, square=6) == 2
    words = {"L1": 2, "L2": 0.5, "sigma2": 1, "G": 2, "eta": 0.5, "lam": 0.5, "E": 4, "delta": 8}
    assert fp.fedproto_theorem2_rounds(epsilon=4, **words) == 16 / (4 * 4 * 0.5 - 4 * 0.5 * (1 + 1))
    assert fp.fedproto_theorem2_enough(epsilon=4, **words) == 5
    assert fp.fedproto_theorem2_rounds(epsilon=2, **words) == math.inf  # 4 · 2 · 0.5 - 4 = 0
    assert fp.fedproto_theorem2_enough(epsilon=2, **words) == math.inf
    assert fp.fedproto_theorem2_eta(L1=2, L2=0.5, sigma2=1, G=2, lam=0.5, epsilon=4) == 2 * 3.5 / (2 * 5)
    assert fp.fedproto_theorem2_lambda(L2=0.5, G=2, epsilon=4) == 4
    assert fp.fedproto_theorem2_lambda(L2=0, G=2, epsilon=4) == math.inf


def test_mpfedcl_by_hand():
    assert mp.mpfedcl_lemma1_printed(L1=2, delta2=3, eta=0.5, square=4) == -(0.5 - 0.25) * 12
    assert mp.mpfedcl_lemma1(L1=2, delta2=3, eta=0.5, square=4) == -(0.5 - 0.75) * 4
    assert mp.mpfedcl_lemma2_printed(classes=3, L2=2, eta=0.5, G=1, tau=0.25, v=3) == 24
    assert mp.mpfedcl_lemma2(L2=2, eta=0.5, G=1, tau=0.25, v=3, E=2) == 144
    assert mp.mpfedcl_lemma2(L2=2, eta=0.5, G=1, tau=0.25, v=3, model_steps=1) == 24
    same = {"L2": 2, "G": 1, "tau": 0.25, "v": 3}
    assert mp.mpfedcl_theorem1_printed(L1=2, delta2=3, eta=0.5, square=4, classes=3, **same) == -3 + 24
    assert mp.mpfedcl_theorem1(L1=2, delta2=3, eta=0.5, square=4, **same) == 1 + 72
    assert mp.mpfedcl_corollary1_printed(L1=2, delta2=3, square=32, classes=3, **same) == 1 - 48 / 96
    assert mp.mpfedcl_corollary1_printed(L1=2, delta2=3, square=0, classes=3, **same) == 0
    assert mp.mpfedcl_corollary1(L1=2, delta2=4, square=288, **same) == 0.25 * (1 - 144 / 288)
    assert mp.mpfedcl_corollary1(L1=2, delta2=4, square=100, **same) == 0
    few = {"L1": 2, "L2": 1, "delta2": 1.5, "G": 1, "eta": 0.5, "tau": 1, "epsilon": 8, "delta": 6}
    assert mp.mpfedcl_theorem2_rounds_printed(v=0.5, classes=3, **few) == 6 / (0.25 * 12 - 0.5)
    assert mp.mpfedcl_theorem2_rounds(v=0.125, **few) == 6 / (0.125 * 8 - 6 * 0.5 * 0.125)
    assert mp.mpfedcl_theorem2_rounds(v=1, **few) == math.inf
    assert mp.mpfedcl_theorem2_rounds_printed(v=6, classes=3, **few) == math.inf
    assert mp.mpfedcl_theorem2_eta_printed(L1=2, delta2=3, epsilon=32, classes=3, **same) == 0.5
    assert mp.mpfedcl_theorem2_eta(L1=2, delta2=4, epsilon=288, **same) == 0.125


def test_fednh_by_hand():
    assert nh.fednh_lemma1_printed(mean_square=16) == 4
    assert nh.fednh_lemma1(mean_norm=3) == 3
    assert nh.fednh_lemma2_printed(classes=7) == 7
    assert nh.fednh_lemma2(s=2) == math.sqrt(2) * 2
    kappa = nh.fednh_kappa(M_G=3, M_f=2, M_p=1, J=2, rho=0.75, classes=5)
    assert kappa == 2 * 2 * 3 * 12 + 3 * 2 * 3 * 1 * 2 * 5
    assert nh.fednh_training(L_g=4, sigma2=3, eta=0.25, J=2, S=8) == -0.25
    assert nh.fednh_lemma3_printed(L_g=4, sigma2=3, eta=0.25, J=2, S=8, rho=0.75, kappa=16) == -0.25 + 1
    corrected = nh.fednh_lemma3(L_g=4, sigma2=3, eta=0.25, J=2, S=8, M_G=2, s=3, moved=0.5)
    assert corrected == pytest.approx(-0.25 + 4 + 1.5 * math.sqrt(2))
    angle = math.asin(0.25)
    assert nh.fednh_step_of_unit_rows(rho=0.8, classes=9) == pytest.approx(3 * 2 * math.sin(angle / 2))
    assert nh.fednh_step_of_unit_rows(rho=0.4, classes=9) == 6
    words = {"rho": 0.5, "classes": 9, "eta": 0.5, "J": 2, "M_G": 1, "M_f": 2, "first": 8}
    assert nh.fednh_step_of_free_rows(t=1, **words) == 4
    assert nh.fednh_step_of_free_rows(t=3, **words) == 3 * 3 * 2 * 0.75 + 1
    assert nh.fednh_lemma4_smallest_rho(M_G=3, J=2, kappa=72) == 0.75
    assert not nh.fednh_lemma4_holds(M_G=3, M_f=2, M_p=1, J=2, rho=0.99, classes=5)
    assert nh.fednh_lemma4_eta_printed(L_g=2, sigma2=3, M_G=3, J=2, rho=0.5, kappa=12) == 2 * 12 / (2 * (9 + 6))
    assert nh.fednh_lemma4_eta_printed(L_g=2, sigma2=3, M_G=3, J=2, rho=0.5, kappa=40) == 0
    assert nh.fednh_lemma4_eta(L_g=2, sigma2=3, J=2, S=18, rho=0.5, kappa=12) == 2 * 12 / (2 * (18 + 6))
    assert nh.fednh_theorem2_smallest_rho(M_G=3, J=2, epsilon=18, kappa=72) == 0.75
    assert nh.fednh_theorem2_smallest_rho(M_G=3, J=2, epsilon=4.5, kappa=72) == 0.875
    smallest = nh.fednh_theorem2_smallest_epsilon(M_G=3, M_f=2, M_p=1, J=2, rho=0.75, classes=5)
    assert smallest == 0.25 * kappa / 2
    words = {"L_g": 2, "sigma2": 1, "J": 2, "rho": 0.5, "kappa": 8, "epsilon": 4}
    assert nh.fednh_theorem2_eta_printed(**words) == (8 - 2 * (1 - 2)) / 10
    assert nh.fednh_theorem2_eta(**words) == (8 - 4) / 10
    few = {"L_g": 2, "sigma2": 1, "eta": 0.25, "J": 2, "rho": 0.5, "epsilon": 4, "delta": 3}
    assert nh.fednh_theorem2_rounds_printed(kappa=2, **few) == 6 / (0.5 * (6 - 1 - 1))
    assert nh.fednh_theorem2_rounds(kappa=2, **few) == 6 / (0.5 * (6 - 0.5 - 1))
    assert nh.fednh_theorem2_rounds(kappa=20, **few) == math.inf
    assert nh.fednh_theorem2_rounds_printed(kappa=20, **few) == math.inf


def test_every_statement_has_functions_with_premises_and_is_listed():
    wanted = {
        "fedproto": ("Lemma 1", "Lemma 2", "Theorem 1", "Corollary 1", "Theorem 2"),
        "mpfedcl": ("Lemma 1", "Lemma 2", "Theorem 1", "Corollary 1", "Theorem 2"),
        "fednh": ("Lemma 1", "Lemma 2", "Lemma 3", "Lemma 4", "Theorem 1", "Theorem 2"),
    }
    assert {paper: tuple(s.name for s in STATEMENTS if s.paper == paper) for paper in wanted} == wanted
    listed = {bound for statement in STATEMENTS for bound in (*statement.printed, *statement.corrected)}
    defined = {
        bound
        for module in (fp, mp, nh)
        for name, bound in inspect.getmembers(module, inspect.isfunction)
        if bound.__module__ == module.__name__
    }
    assert listed == defined
    names = {entry.name for entry in ENTRIES}
    for statement in STATEMENTS:
        assert f"{statement.paper}-{statement.name.lower().replace(' ', '')}" in names
        for bound in (*statement.printed, *statement.corrected):
            assert bound.__doc__
            assert ">>>" in bound.__doc__
