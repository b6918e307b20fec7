"""Secure sums: exact totals, drop-outs, what the server sees, and runs."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, ks_2samp

from protofed.errors import ConfigError, UserError
from protofed.experiment.config import Config
from protofed.experiment.wording import void_text
from protofed.methods import METHODS
from protofed.trust.secure_sum.field import (
    FRACTION_BITS,
    LARGEST,
    MOST_CLIENTS,
    PRIME,
    field_difference,
    field_sum,
    from_field,
    mask,
    to_field,
)
from protofed.trust.secure_sum.protocol import SecureClient, SecureSumError, secure_total, unmasked_total
from protofed.trust.secure_sum.shamir import recovered_secret, share_secret
from protofed.trust.secure_sum.totals import needed_clients, secure_sum_problems, summed_upload
from toys import config, everything, federation, played, runner_of

STEP = 2.0**-FRACTION_BITS


# ---- the field ----


def test_the_field_holds_what_it_must():
    """The largest sum of all clients is below half of the prime, so that its sign is known."""
    assert MOST_CLIENTS * LARGEST * 2**FRACTION_BITS < PRIME / 2
    assert 2 * PRIME < 2**64


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-LARGEST, LARGEST), min_size=1, max_size=5), st.integers(0, 2**32))
def test_numbers_return_from_the_field_up_to_rounding(numbers, seed):
    values = np.array(numbers)
    element = to_field(values)
    assert np.abs(from_field(element) - values).max() <= STEP / 2
    secret = mask(seed.to_bytes(32, "big"), len(values))
    assert np.array_equal(field_difference(field_sum(element, secret), secret), element)


@pytest.mark.parametrize("number", [np.nan, np.inf, 2 * LARGEST])
def test_numbers_that_do_not_fit_are_refused(number):
    with pytest.raises(UserError, match="cannot be summed securely"):
        to_field(np.array([1.0, number]))


# ---- shares ----


def test_every_set_of_enough_shares_gives_the_secret_and_fewer_do_not():
    secret = bytes(range(32))
    shares = share_secret(secret, [1, 2, 3, 4, 5], 3)
    for holders in itertools.combinations(shares, 3):
        assert recovered_secret({holder: shares[holder] for holder in holders}) == secret
    assert recovered_secret(shares) == secret
    with pytest.raises(ValueError, match="too few"):
        recovered_secret({holder: shares[holder] for holder in (1, 2)})
    with pytest.raises(ValueError, match="threshold of 6"):
        share_secret(secret, [1, 2], 6)


# ---- the protocol ----


def vectors_of(clients, size=7):
    draw = np.random.RandomState(3)
    return {client: draw.normal(scale=100, size=size) for client in clients}


@pytest.mark.parametrize("dropped", [c for n in range(3) for c in itertools.combinations(range(5), n)])
def test_the_total_is_exact_for_every_pattern_of_drop_outs_under_the_threshold(dropped):
    """5 clients, of which 3 must stay. The only error is the rounding of each vector."""
    vectors = vectors_of(range(5))
    left = {client: to_field(vector) for client, vector in vectors.items() if client not in dropped}
    total = secure_total(left, range(5), round=2, threshold=3)
    expected = left[min(left)] * np.uint64(0)
    for vector in left.values():
        expected = field_sum(expected, vector)
    assert np.array_equal(total, expected)
    exact = sum(vectors[client] for client in left)
    assert np.abs(from_field(total) - exact).max() <= len(left) * STEP / 2 + 1e-12


@pytest.mark.parametrize("left", list(itertools.combinations(range(5), 2)))
def test_with_too_few_clients_the_total_stays_secret(left):
    vectors = {client: to_field(np.ones(3)) for client in left}
    with pytest.raises(SecureSumError, match=r"2 clients uploaded .* 3 are needed"):
        secure_total(vectors, range(5), round=0, threshold=3)


def parties_of(count, threshold, round=0):
    parties = {number: SecureClient(number, round, threshold) for number in range(count)}
    keys = {number: party.public_keys() for number, party in parties.items()}
    messages = {number: party.shares(keys) for number, party in parties.items()}
    return parties, keys, messages


def delivered(parties, messages):
    for number, party in parties.items():
        party.receive({sender: sent[number] for sender, sent in messages.items() if sender != number})


def test_drop_outs_while_masks_are_removed_do_no_harm_under_the_threshold():
    parties, keys, messages = parties_of(5, 3)
    delivered(parties, messages)
    uploads = {number: parties[number].masked(to_field(np.array([number + 0.5]))) for number in range(4)}
    revealed = {number: parties[number].reveal(uploads) for number in (0, 2, 3)}  # client 1 is gone after its upload
    total = unmasked_total(keys, parties, uploads, revealed, 0, 3)
    assert from_field(total).tolist() == [0.5 + 1.5 + 2.5 + 3.5]
    with pytest.raises(SecureSumError, match="2 helped"):
        unmasked_total(keys, parties, uploads, {n: revealed[n] for n in (0, 2)}, 0, 3)


def test_a_client_reveals_one_secret_of_each_other_client_and_only_once():
    parties, _, messages = parties_of(4, 3)
    delivered(parties, messages)
    revealed = parties[0].reveal([0, 1, 2])
    assert sorted(revealed.seeds) == [0, 1, 2]
    assert sorted(revealed.keys) == [3]
    with pytest.raises(SecureSumError, match="asked twice"):
        parties[0].reveal([0, 1, 3])
    with pytest.raises(SecureSumError, match="2 clients uploaded"):
        parties[1].reveal([0, 1])


def test_a_server_that_changes_shares_or_keys_is_noticed():
    parties, keys, messages = parties_of(3, 2)
    changed = bytearray(messages[0][1])
    changed[-1] ^= 1
    with pytest.raises(SecureSumError, match="from client 0 have been changed"):
        parties[1].receive({0: bytes(changed)})
    with pytest.raises(SecureSumError, match="from client 2 have been changed"):
        parties[1].receive({2: messages[0][1]})  # of another sender
    with pytest.raises(SecureSumError, match="other keys"):
        SecureClient(0, 0, 2).shares(keys)
    with pytest.raises(SecureSumError, match="other keys"):
        parties[0].shares({**keys, 2: keys[1]})  # one client in two places
    with pytest.raises(SecureSumError, match="threshold is 4"):
        SecureClient(0, 0, 4).shares(keys)


def test_clients_that_were_told_of_different_clients_do_not_read_each_others_shares():
    """All keys are true. A server that chose who knows whom could otherwise remove all masks of one upload."""
    clients = {number: SecureClient(number, 0, 2) for number in range(3)}
    keys = {number: client.public_keys() for number, client in clients.items()}
    two = {number: keys[number] for number in (0, 1)}
    clients[0].shares(two)
    sent = clients[1].shares(keys)
    with pytest.raises(SecureSumError, match="or it was told of other clients"):
        clients[0].receive({1: sent[0]})
    clients[2].shares(keys)
    clients[2].receive({1: sent[2]})


def test_what_the_server_sees_of_an_upload_is_uniform():
    """All zeros and a large vector look the same: uniform over the field. Wrong masks would fail at once.

    p-values below 1e-6 happen once in a million runs, because the secrets are drawn newly each time.
    """
    size = 40_000
    views = []
    for value in (0.0, 12345.678):
        parties, _, messages = parties_of(2, 2)
        delivered(parties, messages)
        views.append(parties[0].masked(to_field(np.full(size, value))))
    for view in views:
        bins = np.bincount((view // np.uint64(PRIME // 64 + 1)).astype(int), minlength=64)
        assert chisquare(bins).pvalue > 1e-6
        low = np.bincount((view & np.uint64(63)).astype(int), minlength=64)
        assert chisquare(low).pvalue > 1e-6
        assert abs(np.corrcoef(view[:-1].astype(float), view[1:].astype(float))[0, 1]) < 6 / size**0.5
    assert ks_2samp(*(view.astype(float) for view in views)).pvalue > 1e-6
    assert (
        chisquare(np.bincount((to_field(np.full(size, 1.0)) & np.uint64(63)).astype(int), minlength=64)).pvalue < 1e-6
    )


def test_one_mask_alone_hides_an_upload():
    """Without the seed of its own, or without the common masks, an upload still is not the vector."""
    parties, _, messages = parties_of(3, 2)
    delivered(parties, messages)
    vector = to_field(np.zeros(50))
    view = parties[1].masked(vector)
    assert not np.array_equal(view, vector)
    assert not np.array_equal(field_difference(view, mask(parties[1]._seed, 50)), vector)


# ---- methods and runs ----

SECURE = {"secure_sum": True}


@pytest.mark.parametrize("name", ["fedproto", "fedavg", "fedrep"])
def test_a_run_with_secure_sums_is_a_run_up_to_rounding(name):
    """3 rounds; the rounding of 2^-24 per upload moves weights by less than 1e-4 in this short training."""
    plain = everything(played(config(name), federation()))
    secure = everything(played(config(name, privacy=SECURE), federation()))
    for key in plain.keys() - {"server/holds"}:
        assert torch.allclose(plain[key], secure[key], atol=1e-4), key


@pytest.mark.parametrize("pooling", ["clients", "examples"])
def test_the_mean_of_prototypes_is_that_of_the_method(pooling):
    runner = runner_of(config(method={"pooling": pooling}), federation())
    reports = runner.engine.train(0, runner._messages(range(6)))
    uploads = [report.upload for report in reports]
    site = runner.members.server(0, 0)
    plain = runner.method.aggregate(site, runner.server, uploads)
    total = summed_upload(runner.method, uploads, range(6), 0, 0.67)
    secure = runner.method.aggregate(site, runner.server, [total])
    assert torch.allclose(plain.prototypes.mean, secure.prototypes.mean, atol=1e-5)
    assert torch.equal(plain.prototypes.support, secure.prototypes.support)


def test_secure_sums_repeat_bit_for_bit_although_the_secrets_differ():
    one, other = (everything(played(config(privacy=SECURE), federation())) for _ in range(2))
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_a_round_with_too_few_uploads_is_refused():
    runner = runner_of(config("fedavg"), federation())
    uploads = [report.upload for report in runner.engine.train(0, runner._messages([0, 1]))]
    with pytest.raises(UserError, match=r"privacy.threshold"):
        summed_upload(runner.method, uploads, range(6), 0, 0.67)
    assert summed_upload(runner.method, uploads, range(2), 0, 1.0).num_examples == 18


def test_a_round_of_clients_without_examples_is_void_and_keeps_the_model():
    """The weights of an average are all 0; a total of 0 would be a model of zeros."""
    members = federation([[0, 1, 2, 0], []])
    runner = runner_of(config("fedavg", privacy=SECURE, run={"sample": 1}), members)
    uploads = [report.upload for report in runner.engine.train(0, runner._messages([1]))]
    for method in (runner.method, config("fedavg", method={"weights": "equal"}).method):
        with pytest.raises(SecureSumError, match="no examples"):
            summed_upload(method, uploads, [1], 0, 1.0)
    secure = played(config("fedavg", privacy=SECURE, run={"sample": 1, "rounds": 6}), members)
    plain = played(config("fedavg", run={"sample": 1, "rounds": 6}), members)
    assert {tuple(row["clients"]) for row in plain.rounds} == {(0,), (1,)}
    assert [bool(row.get("void")) for row in secure.rounds] == [row["clients"] == [1] for row in secure.rounds]
    for name, value in plain.server.params.items():
        assert torch.allclose(secure.server.params[name], value, atol=1e-4)


@pytest.mark.parametrize("name", ["fedtgp", "fpl", "mpfedcl", "protomargin", "fedatt", "fesem", "creff", "local"])
def test_methods_that_need_single_uploads_are_refused(name):
    with pytest.raises(ConfigError, match=f"cannot be used with method {name}: its server needs single uploads"):
        Config.of({"method": {"name": name}, "privacy": SECURE})


def test_rules_and_options_that_need_single_uploads_are_refused():
    assert "compares single uploads" in secure_sum_problems("fedavg", METHODS["fedavg"](), "krum")[0]
    assert secure_sum_problems("fedavg", METHODS["fedavg"]()) == []
    for options in ({"send": "own", "nearest": "own"}, {"pooling": "written"}):
        with pytest.raises(ConfigError, match=r"privacy\.secure_sum"):
            Config.of({"method": options, "privacy": SECURE})


def test_noise_and_secure_sums_go_together():
    privacy = {**SECURE, "encoder": "frozen", "noise": 1.0, "floor": 1.0}
    runner = played(config(rounds=1, privacy=privacy), federation())
    noisy = played(config(rounds=1, privacy={**privacy, "secure_sum": False}), federation())
    assert torch.allclose(runner.server.prototypes.mean, noisy.server.prototypes.mean, atol=1e-5)


@pytest.mark.parametrize(
    ("threshold", "clients", "needed"), [(0.55, 100, 55), (0.56, 25, 14), (0.7, 6, 5), (0.1, 1, 1)]
)
def test_the_needed_clients_are_the_share_rounded_up(threshold, clients, needed):
    assert needed_clients(threshold, clients) == needed


def test_a_round_below_the_threshold_is_void_in_a_run():
    """Client 0 alone of six uploads in the first round: the server's state stays, and the next round goes on."""
    runner = runner_of(config("fedavg", rounds=2, privacy=SECURE), federation())
    before, train = runner.server, runner.engine.train
    runner.engine.train = lambda *arguments: train(*arguments)[:1]
    row = runner.one_round(0)
    assert runner.server is before
    assert row["void"] is True
    assert "1 clients uploaded" in void_text(row)
    assert "5 are needed (privacy.threshold)" in void_text(row)
    runner.engine.train = train
    row = runner.one_round(1)
    assert row["void"] is False
    assert "void_reason" not in row


def test_a_missed_quorum_does_not_have_the_reason_of_an_earlier_round():
    runner = runner_of(config("fedavg", privacy={"secure_sum": True}, trust={"quorum": 1.0}), federation())
    safeguards = runner.safeguards
    assert safeguards.seen_by_server(0, safeguards.above_quorum([], 0), [0, 1]) == []
    assert safeguards.secure.problem == "no upload can be used"
    assert safeguards.above_quorum([], 2) == []
    assert safeguards.void
    assert safeguards.secure.problem == ""


def test_weights_too_large_for_the_field_are_refused():
    runner = runner_of(config("fedavg"), federation())
    upload = runner.engine.train(0, runner._messages([0]))[0].upload
    huge = {name: value * 0 + 1e6 for name, value in upload.message.params.items()}
    upload = upload._replace(message=upload.message._replace(params=huge))
    with pytest.raises(UserError, match=r'Use method\.weights = "equal"'):
        summed_upload(runner.method, [upload], [0], 0, 1.0)


def test_without_the_package_secure_sums_say_what_to_install(monkeypatch):
    runner = runner_of(config("fedavg"), federation())
    uploads = [report.upload for report in runner.engine.train(0, runner._messages([0]))]
    monkeypatch.setitem(__import__("sys").modules, "protofed.trust.secure_sum.protocol", None)
    with pytest.raises(UserError, match=r"pip install 'protofed\[privacy\]'"):
        summed_upload(replace(runner.method), uploads, [0], 0, 1.0)
