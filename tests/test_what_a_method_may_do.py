"""The mistakes on docs/what-a-method-may-do.md: each is refused in these words, with the author's line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import protofed
from protofed.errors import UserError
from protofed.methods import METHODS
from protofed.testing import check_method

PAGE = Path(__file__).parents[1] / "docs" / "what-a-method-may-do.md"
GOOD = '''\
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F

from protofed.core import Loss, Method, Needs, Nothing, Weights, average_uploads, cross_entropy, weighted_mean

STEPS = 0


@dataclass(frozen=True)
class Mine(Method[Weights, Weights, Weights, Nothing]):
    """FedAvg, once more."""

    needs: ClassVar[Needs] = "equal nets"

    def start(self, site):
        return Weights(site.fresh_params())

    def receive(self, kept, down):
        return down.params

    def loss(self, net, params, batch, down, kept):
        z, logits = net(params, batch.x)
        return Loss(supervised=cross_entropy(logits, batch))

    def upload(self, trained):
        return Weights(trained.params)

    def aggregate(self, site, server, uploads):
        return Weights(average_uploads(uploads))
'''
LOSS = "        return Loss(supervised=cross_entropy(logits, batch))\n"
LOOP = 'engine.name = "loop" trains one client after the other: use it to debug a loss.'
PURE = (
    "A loss may depend only on its arguments and on the options of the method: engines call it once for many clients, "
    "and later repeat the recorded operations without calling it."
)
MISTAKES = {
    "a misspelt hook": (
        "def aggregate(",
        "def agregate(",
        "mine.py, line 31: Mine.agregate is not a hook, so nothing would call it. "
        'Did you mean "aggregate"? If it is a function of your own, begin its name with an underscore.',
    ),
    "other parameters": (
        "def loss(self, net, params, batch, down, kept):",
        "def loss(self, net, params, batch):",
        "mine.py, line 24: Mine.loss takes (self, net, params, batch), but it is called with (self, net, params, batch, "
        "down, kept). Give it these parameters.",
    ),
    "no dataclass": (
        '@dataclass(frozen=True)\nclass Mine(Method[Weights, Weights, Weights, Nothing]):\n    """FedAvg, once more."""\n',
        "class Mine(Method[Weights, Weights, Weights, Nothing]):\n    pull: float = 1.0\n\n",
        "mine.py, line 12: Mine is not a dataclass, so pull would not be an option. Write @dataclass(frozen=True) above "
        "the class.",
    ),
    "a bare tensor": (
        LOSS,
        "        return cross_entropy(logits, batch)\n",
        "mine.py, line 26: Mine.loss returned a Tensor; must be a Loss with named terms, for example "
        "Loss(supervised=cross_entropy(logits, batch)).",
    ),
    "a term per example": (
        LOSS,
        '        values = F.cross_entropy(logits, batch.y, reduction="none")\n        return Loss(supervised=values)\n',
        'mine.py, line 27: the term "supervised" of Mine.loss has shape [4]; must be a tensor with a single number. '
        "weighted_mean(values, batch.weight) takes the mean over a batch.",
    ),
    "padding that counts": (
        LOSS,
        "        return Loss(supervised=F.cross_entropy(logits, batch.y))\n",
        'mine.py, line 26: Mine.loss counts padding: its term "supervised" is NUMBER for a batch, and NUMBER with 3 more '
        "examples of weight 0. The stacked engine adds such examples to short batches. Use cross_entropy(logits, batch) "
        "instead of F.cross_entropy, and weighted_mean(values, batch.weight) instead of mean().",
    ),
    "a counter": (
        LOSS,
        f"        global STEPS\n        STEPS += 1\n{LOSS}",
        f"mine.py, line 27: Mine.loss changes STEPS. {PURE} {LOOP}",
    ),
    "a draw": (
        LOSS,
        f"        logits = logits + 0.1 * torch.randn_like(logits)\n{LOSS}",
        "mine.py, line 26: Mine.loss draws random numbers (randn_like). The result could not be repeated. Draw in "
        "another hook with site.generator(...), and let the loss get the numbers in its arguments; for dropout use "
        "nn.Dropout in the net.",
    ),
    "a value that is read": (
        LOSS,
        f"        if z.mean() > 0:\n            logits = 2 * logits\n{LOSS}",
        "mine.py, line 26: Mine.loss reads the value of a tensor (if, item, float, bool), but engines compute the losses "
        "of many clients at once, so that a tensor has no single value. Use torch.where, or arithmetic with a mask. "
        f"{LOOP}",
    ),
    "a mask as an index": (
        LOSS,
        f"        z = z[batch.y > 0]\n{LOSS}",
        "mine.py, line 26: Mine.loss selects elements by a mask or makes a tensor with a shape that depends on values, "
        "which cannot be stacked over clients. Multiply by the mask, or use torch.where; compare labels with "
        f"torch.arange(classes) instead of F.one_hot. {LOOP}",
    ),
    "text in the state": (
        "        return Weights(site.fresh_params())\n",
        '        return Weights({**site.fresh_params(), "about": "mine"})\n',
        'mine.py, line 19: Mine.start returned a str at "params/about"; must consist of tensors, Prototypes, dicts and '
        "NamedTuples. Numbers can be tensors (torch.tensor(3.0)), and text can be an option of the method.",
    ),
    "an upload that changes its shape": (
        "        return Weights(trained.params)\n",
        '        labels = trained.data.labels\n        return Weights({**trained.params, "method.seen": labels * 1.0})\n',
        'mine.py, line 30: Mine.upload returned shape [6] for "params/method.seen" at client 1, and shape [12] at client '
        "0. All clients must send the same names and shapes. Prototypes have a row for every class, also for those that "
        "a client does not have.",
    ),
    "an error of Python": (
        "        return Weights(average_uploads(uploads))\n",
        "        return Weights(uploads[0].params)\n",
        "mine.py, line 32: Mine.aggregate failed with AttributeError: 'Upload' object has no attribute 'params'.",
    ),
}
ONLY_STACKED = {"padding that counts", "a counter", "a value that is read", "a mask as an index"}
"""The loop trains with these losses: they are debugged there."""


def shown(problem: UserError) -> str:
    return re.sub(r"\b\d+\.\d+\b(?=( for a batch| with 3))", "NUMBER", str(problem))


def written(folder: Path, mistake: str) -> str:
    old, new, _ = MISTAKES[mistake]
    assert GOOD.count(old) == 1
    (folder / "mine.py").write_text(GOOD.replace(old, new))
    return "./mine.py:Mine"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_check_says_what_is_wrong_and_where(mistake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng(devices=[]), pytest.raises(UserError) as caught:
        check_method(written(tmp_path, mistake))
    assert shown(caught.value) == MISTAKES[mistake][2]


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_run_says_the_same(mistake, engine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = {"run": {"rounds": 1}, "data": {"clients": 3, "limit": 61}, "train": {"batch": 4}}
    table |= {"partition": {"name": "iid"}, "method": {"name": written(tmp_path, mistake)}, "engine": {"name": engine}}
    if engine == "loop" and mistake in ONLY_STACKED:
        protofed.run(table)
        return
    with torch.random.fork_rng(devices=[]), pytest.raises(UserError) as caught:
        protofed.run(table)
    expected = MISTAKES[mistake][2]
    if mistake == "an upload that changes its shape":
        assert re.sub(r"\[\d+\]|client \d", "_", str(caught.value)) == re.sub(r"\[\d+\]|client \d", "_", expected)
    else:
        assert shown(caught.value).removeprefix("The experiment has a problem:\n  - method.name: ") == expected


def test_the_page_lists_every_mistake():
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    rows = re.findall(r"^\| \d+ \| (.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == len(MISTAKES) >= 10
    for _, _, message in MISTAKES.values():
        sentence = message.split(": ", 1)[1].split(". ")[0].split(" is NUMBER")[0].split(", but")[0]
        first_words = " ".join(re.sub(r"\[\d+\]|\bMine\b", "_", sentence).split()[:3])
        assert first_words in re.sub(r"\[\d+\]|\bMine\b", "_", text), first_words


def test_a_correct_method_passes_every_check(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(GOOD)
    found = check_method("./mine.py:Mine")
    assert [sentence.partition(":")[0] for sentence in found[1:]] == [
        "loop",
        "loss",
        "stacked",
        "replayed",
        "wire",
        "resumed",
        "workers",
    ]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_no_hook_of_ours_looks_misspelt(name, monkeypatch):
    from protofed import contract

    monkeypatch.setattr(contract, "origin_of", lambda kind: kind)
    contract.check_method_class.__wrapped__(METHODS[name])


def test_an_impure_loss_without_a_variable_is_found_by_its_values(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = GOOD.replace("STEPS = 0", "import time").replace(
        LOSS, "        return Loss(supervised=cross_entropy(logits, batch) * (1 + time.perf_counter_ns() % 1009))\n"
    )
    (tmp_path / "mine.py").write_text(code)
    with pytest.raises(UserError, match=r"mine.py, line 24: Mine.loss gives its term \"supervised\" = .* and then"):
        check_method("./mine.py:Mine")


def test_trying_a_loss_changes_no_bit_of_a_run_with_batch_norm(tmp_path, monkeypatch):
    from protofed.engines.loop import Loop
    from toys import config, everything, federation, net, played_on

    class Mine(METHODS["fedavg"]):
        """FedAvg of another author."""

    members = federation(nets=[net(norm=True)] * 6)
    ours, theirs = (played_on(Loop, config(kind(), train={"batch": 4}), members) for kind in (METHODS["fedavg"], Mine))
    assert theirs.engine.tried
    assert not ours.engine.tried
    torch.testing.assert_close(everything(theirs), everything(ours), rtol=0, atol=0)


@pytest.mark.parametrize("draw", ["random.random()", "np.random.rand()"])
def test_draws_of_python_and_numpy_are_found(draw, tmp_path, monkeypatch):
    import random

    import numpy as np

    monkeypatch.chdir(tmp_path)
    state, numbers = random.getstate(), np.random.get_state()
    line = f"        logits = logits + {draw}\n{LOSS}"
    (tmp_path / "mine.py").write_text(
        GOOD.replace("STEPS = 0", "import random\nimport numpy as np").replace(LOSS, line)
    )
    with pytest.raises(UserError, match=r"mine.py, line 27: Mine.loss draws random numbers\. The result"):
        check_method("./mine.py:Mine")
    random.setstate(state)
    np.random.set_state(numbers)
