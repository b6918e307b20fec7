"""Own modules: every way to give one, what becomes of it, and what is said of those that do not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import protofed
from protofed.errors import UserError
from protofed.experiment.config import Config
from protofed.models.join import join
from protofed.nets.own import OwnNet
from test_federation import Both, Residual, X, Y, _own_nets_draw_where_they_like, line, table  # noqa: F401

NETS = {
    "sequence": line,
    "sequence and a name": lambda: (line(), "2"),
    "module and a name": lambda: (Residual(), "fc"),
    "pair": lambda: (nn.Linear(4, 6), nn.Linear(6, 3)),
    "joint": Both,
    "batch norm": lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)),
    "head of two layers": lambda: (nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), "1"),
}


@pytest.mark.parametrize("made", [False, True], ids=["module", "function"])
@pytest.mark.parametrize("way", NETS)
def test_every_way_to_give_a_net_learns_and_comes_back_as_it_was(way, made):
    given = NETS[way] if made else NETS[way]()
    federation = protofed.Federation([table(60), table(60)], nets=[given])
    result = protofed.run({"run": {"rounds": 20}}, federation=federation)
    assert result.summary["accuracy"]["head"]["mean"] > 0.8
    module = result.model(1)
    x, _ = table(7)
    out = module(torch.tensor(x, dtype=torch.float32))
    logits = out[1] if isinstance(out, tuple) else out
    np.testing.assert_allclose(logits.detach(), result.predict(x, client=1)["scores"], rtol=1e-5, atol=1e-6)
    first = NETS[way]()
    first = nn.Sequential(*first) if way == "pair" else first[0] if isinstance(first, tuple) else first
    assert type(module) is type(first)
    if way != "pair":
        assert module.state_dict().keys() == first.state_dict().keys()
    assert not module.training


def test_a_module_starts_from_its_weights_and_a_function_from_the_seed():
    module, data = line(), [table(20), table(20)]
    given = protofed.Federation(data, nets=[module]).members(Config.of({}))
    for seed in (0, 1):
        for client in (0, 1):
            start = given.client(seed, 0, client).fresh_params()
            assert torch.equal(start["body.0.weight"], module[0].weight)
    made = protofed.Federation(data, nets=[line]).members(Config.of({}))
    starts = [
        made.client(seed, 0, client).fresh_params()["body.0.weight"]
        for seed, client in ((0, 0), (0, 1), (1, 0), (0, 0))
    ]
    assert torch.equal(starts[0], starts[3])
    assert not torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])


def test_running_leaves_the_given_module_alone():
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    protofed.run({"run": {"rounds": 2}}, federation=protofed.Federation([table(30)], nets=[module]))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert module.training


def test_statistics_of_batch_norm_stay_private_unless_weights_are_shared():
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))

    federation = protofed.Federation([table(40), (table(40)[0] + 5, table(40)[1])], nets=[net])
    for method, shared in (("fedproto", False), ("fedavg", True)):
        result = protofed.run({"run": {"rounds": 2}, "method": {"name": method}}, federation=federation)
        first, second = (result.model(client)[1].running_mean for client in (0, 1))
        assert torch.equal(first, second) == shared
        assert first.abs().sum() > 0


def test_frozen_layers_stay():
    module = line()
    module[0].requires_grad_(False)
    result = protofed.run({"run": {"rounds": 2}}, federation=protofed.Federation([table(30)], nets=[module]))
    assert torch.equal(result.model(0)[0].weight, module[0].weight)
    assert not torch.equal(result.model(0)[2].weight, module[2].weight)


def test_embeddings_of_different_sizes_are_refused_with_names():
    federation = protofed.Federation([(X, Y)] * 2, nets=[line(), (nn.Linear(4, 7), nn.Linear(7, 3))])
    with pytest.raises(UserError) as refused:
        protofed.run(federation=federation)
    assert str(refused.value) == (
        "fedproto needs embeddings of the same size: client 0 has nets[0] (Sequential) of dim 6, "
        "1 nets[1] (Linear) of dim 7. Give every net the same dim (net.dim)."
    )


def test_a_net_that_shares_a_tensor_or_draws_is_refused():
    tied = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 3))
    tied[2].weight = tied[0].weight
    with pytest.raises(UserError, match=r"nets.0. cannot be used with inputs of shape .4,.: .* which are tied"):
        OwnNet.net(tied, "nets[0]", (4,), 3)
    body, head = nn.Linear(4, 4), nn.Linear(4, 4)
    head.weight = body.weight
    with pytest.raises(UserError, match="has one tensor under two names"):
        OwnNet.net((body, head), "nets[0]", (4,), 4)

    class Noisy(nn.Module):
        def forward(self, x):
            return x + torch.randn_like(x) if self.training else x

    noisy = nn.Sequential(nn.Linear(4, 4), Noisy(), nn.Linear(4, 3))
    with pytest.raises(UserError, match="drew from torch's global generator"):
        protofed.run(federation=protofed.Federation([(X, Y)], nets=[noisy]))


def test_a_joint_net_has_no_head_to_call():
    net = OwnNet.net(Both(), "nets[0]", (4,), 3)
    with pytest.raises(UserError, match="returns its embedding and logits together"):
        net.head(net.init(torch.Generator()), torch.zeros(1, 6))


def test_a_layer_that_stands_there_twice_is_not_lost():
    relu = nn.ReLU()
    module = nn.Sequential(nn.Linear(4, 8), relu, nn.Linear(8, 8), relu, nn.Linear(8, 3))
    net = OwnNet.net(module, "nets[0]", (4,), 3)
    x = torch.linspace(-3, 3, 40).reshape(10, 4)
    params = net.init(torch.Generator())
    assert torch.equal(net(params, x)[1], module(x))
    assert torch.equal(net.loaded(params)(x), module(x))
    assert len(net.loaded(params)) == 5


def test_what_comes_after_the_named_layer_is_noticed_in_a_function_too():
    with pytest.raises(UserError, match="computes more after the layer that was named as its last"):
        OwnNet.net(lambda: (Residual(after=True), "fc"), "nets[0]", (4,), 3)


def test_a_function_that_returns_the_same_module_again_and_again():
    module, data = line(), [table(30)]
    before = module[0].weight.clone()
    runs = [protofed.Federation(data, nets=[lambda: module]).run({"run": {"rounds": 2}}) for _ in range(2)]
    assert runs[0].model(0) is not module
    assert runs[0].rounds[0]["loss"] == runs[1].rounds[0]["loss"]
    assert torch.equal(module[0].weight, before)


def test_a_module_changed_later_does_not_change_the_federation():
    module = line()
    federation = protofed.Federation([table(30)], nets=[module])
    first = federation.run({"run": {"rounds": 1}}).rounds[0]["loss"]
    with torch.no_grad():
        module[0].weight.fill_(3.0)
    assert federation.run({"run": {"rounds": 1}}).rounds[0]["loss"] == first


def test_a_module_with_a_secret_state_is_refused():
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()), persistent=False)

        def forward(self, x):
            self.seen += self.training
            return x * (1 + self.seen)

    with pytest.raises(UserError, match="changes a buffer that is not in its state dict"):
        OwnNet.net(nn.Sequential(nn.Linear(4, 4), Counting(), nn.Linear(4, 3)), "nets[0]", (4,), 3)


def test_layers_whose_names_cannot_be_stored_are_refused():
    odd = nn.Sequential()
    odd.add_module("a/b", nn.Linear(4, 4))
    odd.add_module("out", nn.Linear(4, 3))
    with pytest.raises(UserError, match=r"has a layer with a / in its name, body.a/b.weight"):
        OwnNet.net(odd, "nets[0]", (4,), 3)


def test_batch_norm_and_batches_of_one():
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    with pytest.raises(UserError, match=r"train.batch: got 1, but net .* has batch norm"):
        protofed.Federation([table(12)], nets=[net]).run({"train": {"batch": 1}})


def test_a_net_that_cannot_train_is_said():
    frozen = line()
    frozen.requires_grad_(False)
    with pytest.raises(UserError, match="has no parameter that can train"):
        protofed.Federation([table(12)], nets=[frozen]).run()


def few_outputs(count: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, count))


def of_classes(rows: int, *classes: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = table(rows, classes=4)
    chosen = np.isin(y, classes)
    return x[chosen], y[chosen]


CLASSES = [(0, 1, 2, 3), (1, 3), (0, 3), (1, 3), (0, 1, 2)]


def heterogeneous_outputs(**more) -> protofed.Federation:
    return protofed.Federation(
        [of_classes(80, *classes) for classes in CLASSES],
        nets=[few_outputs(len(classes)) for classes in CLASSES],
        **more,
    )


def test_outputs_are_spread_to_their_classes_by_hand():
    net = OwnNet.net(few_outputs(2), "nets[0]", (4,), 4, (1, 3))
    assert net.outputs == (1, 3)
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    params = net.init(torch.Generator())
    raw = net.loaded(params)(x)
    assert raw.shape == (3, 2)
    logits = net(params, x)[1]
    assert torch.equal(logits[:, [1, 3]], raw)
    assert (logits[:, [0, 2]] == -torch.inf).all()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_nets_may_have_outputs_for_their_clients_classes_only(engine):
    federation = heterogeneous_outputs()
    result = federation.run({"run": {"rounds": 20}, "engine": {"name": engine}})
    assert result.summary["accuracy"]["head"]["mean"] > 0.9
    assert result.summary["accuracy"]["prototype"]["mean"] > 0.9
    assert all(np.isfinite(list(row["loss"].values())).all() for row in result.rounds)
    for client, classes in enumerate(CLASSES):
        module = result.model(client)
        assert module[2].weight.shape == (len(classes), 6)
        x, _ = table(30, classes=4)
        predicted = result.predict(x, client)["label"]
        assert set(predicted) <= set(classes)
        with torch.no_grad():
            answers = module(torch.tensor(x, dtype=torch.float32)).argmax(1).numpy()
        assert np.array_equal(np.array(classes)[answers], predicted)


def test_engines_agree_on_clients_with_few_outputs_that_share_a_module():
    """Clients 0 and 1 have the same classes, and so one net: they train as a stack. Client 2 has others."""
    data = [of_classes(80, 1, 3), of_classes(60, 1, 3), of_classes(60, 0, 2)]
    federation = protofed.Federation(data, nets=[few_outputs(2)])
    assert federation.nets[0] is federation.nets[1]
    assert [net.outputs for net in federation.nets] == [(1, 3), (1, 3), (0, 2)]
    loop, stacked = (federation.run({"run": {"rounds": 6}, "engine": {"name": name}}) for name in ("loop", "stacked"))
    for client in range(3):
        torch.testing.assert_close(
            stacked.model(client).state_dict(), loop.model(client).state_dict(), rtol=1e-4, atol=1e-4
        )


def test_few_outputs_in_a_joint_net_and_a_function():
    class Joint(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x):
            z = torch.tanh(self.body(x))
            return z, self.head(z)

    data = [of_classes(80, 1, 3), of_classes(80, 0, 2)]
    result = protofed.Federation(data, nets=[Joint(), lambda: few_outputs(2)]).run({"run": {"rounds": 15}})
    assert result.summary["accuracy"]["head"]["mean"] > 0.9


def test_a_net_with_neither_all_outputs_nor_those_of_its_client_is_refused():
    with pytest.raises(UserError) as refused:
        protofed.Federation([of_classes(40, 1, 3), of_classes(40, 0, 1, 2)], nets=[few_outputs(3)])
    assert str(refused.value) == (
        "nets[0] (Sequential) returns embeddings [2, 6] and logits [2, 3] for 2 inputs; they must be [2, dim] and "
        "[2, 4], because there are 4 classes, or [2, 2], because its client has 2 of them. "
        "Change the net, or set the classes of the federation."
    )


@pytest.mark.parametrize("method", ["fedavg", "fedper", "fednh"])
def test_heads_with_different_outputs_are_not_averaged(method):
    federation = protofed.Federation([of_classes(40, 1, 3), of_classes(40, 0, 2)], nets=[few_outputs(2)])
    with pytest.raises(UserError) as refused:
        federation.run({"method": {"name": method}})
    assert str(refused.value) == (
        f"{method} combines the heads of clients, but nets[0] (Sequential) has outputs for its client's classes only. "
        "Give every net 4 outputs, or use a method that shares prototypes (fedproto)."
    )


def test_a_model_with_few_outputs_is_exported_with_its_labels(tmp_path):
    import json

    from safetensors import safe_open

    from protofed.models.export import write_model

    result = heterogeneous_outputs().run({"run": {"rounds": 1}})
    write_model(result.state.model(1), tmp_path / "model.safetensors")
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert json.loads(file.metadata()["labels"]) == [1, 3]
        assert file.get_tensor("2.weight").shape == (2, 6)


def test_a_newcomer_may_have_few_outputs_and_needs_its_own_net_for_other_classes():
    federation = protofed.Federation([of_classes(80, 1, 3), of_classes(80, 0, 2)], nets=[few_outputs(2)])
    result = federation.run({"run": {"rounds": 10}})
    joined = join(result, of_classes(80, 0, 3), net=few_outputs(2), epochs=5)
    assert joined.accuracy["head"] > 0.9
    with pytest.raises(UserError, match="has outputs for the classes of its client only, and the newcomer has other"):
        join(result, of_classes(80, 0, 3))


class Recurrent(nn.Module):
    """A module that reads the four numbers of an input one after the other."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.out = layer(1, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        z = self.layer(x.unsqueeze(-1))[0][:, -1]
        return z, self.out(z)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_nets_which_vmap_cannot_map_train_one_client_after_the_other(layer):
    federation = protofed.Federation([table(30), table(30)], nets=[Recurrent(layer)])
    assert federation.nets[0].trains_alone
    result = protofed.run({"run": {"rounds": 1}}, federation=federation)
    x, _ = table(5)
    logits = result.model(1)(torch.tensor(x, dtype=torch.float32))[1]
    np.testing.assert_allclose(logits.detach(), result.predict(x, client=1)["scores"], atol=1e-6)
