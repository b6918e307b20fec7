"""docs/disclosure.md says what methods send, and a test of the server's model sends clients nothing more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from protofed.deploy.policy import Policy, kinds_sent, message_kinds
from protofed.experiment.options import option_descriptions
from protofed.messages import flatten
from protofed.methods import METHODS
from toys import config, federation, played

PAGE = (Path(__file__).parents[1] / "docs" / "disclosure.md").read_text(encoding="utf-8")
QUICK = {"creff": {"each": 5, "match_steps": 2, "head_epochs": 2}, "fedtgp": {"epochs": 2}, "mpfedcl": {"cap": 1}}


def words(kinds: set[str]) -> str:
    return ", ".join(sorted(kinds)) or "nothing"


def test_the_table_is_that_of_the_messages_types():
    rows = [
        f"| {name} | {words(kinds_sent(method))} | {words(message_kinds(method.types()['down']))} |"
        for name, method in sorted(METHODS.items())
    ]
    assert "\n".join(rows) in PAGE


def test_the_page_has_every_key_of_the_policy_with_its_default():
    keys = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE, re.MULTILINE))
    assert keys.keys() == option_descriptions(Policy).keys()
    assert keys["may_send"] == '`["prototypes"]`'
    assert (keys["min_examples_per_class"], keys["max_rounds"], keys["small_classes"]) == ("0", "0", '`"refuse"`')


WITHOUT_A_PART = ("creff", "mpfedcl", "protomargin", "fedper")
"""Methods whose server has more than it sends; the others are compared with the slow tests."""


@pytest.mark.parametrize(
    "method",
    [name if name in WITHOUT_A_PART else pytest.param(name, marks=pytest.mark.slow) for name in sorted(METHODS)],
)
def test_the_servers_model_is_tested_without_more_than_clients_are_sent_anyway(method):
    members = federation()
    runner = played(config(method, rounds=2, method=QUICK.get(method, {})), members)
    net, x = members.nets[0], members.balanced[0].take(torch.arange(5))[0]
    scores = runner.method.predict_global(net, runner.server, x)
    if not scores:
        return
    reduced = runner.method.model_state(runner.server)
    for way, values in runner.method.predict_global(net, reduced, x).items():
        assert torch.equal(values, scores[way])
    drawn = runner.method.start(members.server(0, 0))  # from the seed, which every client has
    sent = {
        value.numpy().tobytes()
        for state in (runner.method.broadcast(runner.server, 0), drawn)
        for value in flatten(state).values()
    }
    for name, value in flatten(reduced).items():
        assert not value.numel() or name.endswith("/shape") or value.numpy().tobytes() in sent, name
