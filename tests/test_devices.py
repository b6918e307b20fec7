"""Devices: what runs in a step stays on the device of the step.

No GPU is needed for this. On torch's `meta` device tensors have shapes and no values, so that a tensor that is made on
the CPU inside a step, or a value that is read back to Python, is an error there. It would be an error, or would stop
the GPU until the value has arrived, on a GPU.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import protofed
from protofed.core import Batch, Client, Loss, Phase
from protofed.devices import CPU, choose_device, moved
from protofed.draws import generator
from protofed.engines import gpu_graph, placement
from protofed.engines.choice import check_workers, choose_workers
from protofed.engines.loop import Loop
from protofed.engines.placement import DeviceCopies
from protofed.engines.replay import Replayed
from protofed.engines.stack_training import Trainee, outcomes_on_device
from protofed.engines.stacked import Stacked
from protofed.errors import UserError
from protofed.examples import Examples
from protofed.experiment.member_copies import placed_members
from protofed.methods import METHODS
from protofed.methods.fedavg import FedAvg
from protofed.methods.local import Local
from protofed.nets import NETS, make_net
from protofed.training import TrainSection, outcome_on_device
from toys import config, examples, federation, net, played, played_on

META = torch.device("meta")


class NothingOnTheCPU(TorchDispatchMode):
    """Inside this block, an operation that gives a tensor on the CPU is an error; single numbers may be there."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.device != META and leaf.dim():
                raise RuntimeError(f"{func} made a tensor on {leaf.device}")
        return out


def watched(method: Any) -> Any:
    """The same method; during its loss, nothing may be on the CPU."""

    class Watched(type(method)):
        def loss(self, *arguments):
            with NothingOnTheCPU():
                return super().loss(*arguments)

    made = object.__new__(Watched)
    made.__dict__.update(method.__dict__)
    return made


def on_meta(data: Examples) -> Examples:
    return DeviceCopies(META, [data]).placed([data])[0]


def clients_of(method: Any, where: Any, data: list[Examples]) -> list[tuple[Client, Any, Any]]:
    """Clients with their data on the meta device, what each keeps, and the message of the server."""
    made = [Client(where, 0, 0, number, len(data), own) for number, own in enumerate(data)]
    server = method.start(made[0])
    sites = [replace(client, data=on_meta(client.data)) for client in made]
    return [
        (site, method.join(client), method.broadcast(server, client.client))
        for site, client in zip(sites, made, strict=True)
    ]


def train_on_meta(method: Any, where: Any, data: list[Examples], engine: str, **options: Any) -> list[Any]:
    """The outcomes of training, by the functions that the engine uses."""
    training = TrainSection(**{"batch": 4, "clip": 1.0, **options})
    clients, method = clients_of(method, where, data), watched(method)
    if engine == "loop":
        return [
            outcome_on_device(
                method, client, client.data, method.receive(kept, down), method.prepare(down), kept,
                method.phases(training.epochs), training,
            )
            for client, kept, down in clients
        ]  # fmt: skip
    trainees = [
        Trainee(client, method.receive(kept, down), method.prepare(down), kept, method.phases(training.epochs))
        for client, kept, down in clients
    ]
    patience = 0 if engine == "replayed" else 100
    return outcomes_on_device(method, trainees, training, lambda key, build: Replayed(build(), patience))


def everything_is_on_meta(outcomes: list[Any]) -> bool:
    found = [leaf for outcome in outcomes for leaf in tree_leaves((outcome.params, outcome.terms, outcome.observed))]
    return {leaf.device for leaf in found} == {META}


QUICK = ("fedproto", "mpfedcl", "fednh")
"""Methods of which recorded steps are among the fast tests; a recording takes half a second."""
LABELS = [[0, 1, 2, 0, 1, 2, 0, 1], [0, 1] * 3, [2, 1]]


ENGINES = [
    pytest.param(name, engine, marks=pytest.mark.slow if engine == "replayed" and name not in QUICK else [])
    for name in sorted(METHODS)
    for engine in ("loop", "stacked", "replayed")
]


@pytest.mark.parametrize(("method", "engine"), ENGINES)
def test_steps_of_every_method_stay_on_the_device(method, engine):
    labels = LABELS if engine != "replayed" else LABELS[:1] * 2  # each shape of a stack is recorded, which is slow
    data = [examples(own, seed) for seed, own in enumerate(labels)]
    outcomes = train_on_meta(config(method).method, net(dropout=0.3), data, engine)
    assert all(outcome.steps for outcome in outcomes)
    assert everything_is_on_meta(outcomes)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_predictions_of_every_method_stay_on_the_device(method):
    runner = played(config(method, rounds=1), federation())
    made, toy, x = runner.method, runner.members.nets[0], torch.zeros(2, 4, device=META)
    kept, down = runner.engine.state()[0], made.broadcast(runner.server, 0)
    params = made.receive(kept, down)
    with NothingOnTheCPU():
        scores = made.predict(toy, *moved((params,), META), x, *moved((down, kept), META))
        shared = made.predict_global(toy, moved(runner.server, META), x)
    assert scores
    assert {value.device for value in (*scores.values(), *shared.values())} == {META}


SHAPES = {"cnn1d": (3, 32), "mlp_synthetic": (60,), "mlp_features": (12,), "mlp_spiral": (2,)}
SIZES = {"cnn": (1, 28, 28), "cnn_celeba": (3, 84, 84), "cnn_fednh": (3, 32, 32), "efficientnet_lite0": (3, 32, 32)}
SMALL = {"deeplab": {"width": 0.25}, "resnet18": {"width": 4}, "unet": {"channels": (4, 8)}}


def images(name: str, count: int = 6) -> Examples:
    shape = SHAPES.get(name) or SIZES.get(name) or ((3, 32, 32) if name in SMALL or "net" in name else (1, 28, 28))
    x, y = torch.zeros(count, *shape), torch.arange(count) % 3
    mask = torch.zeros(count, *shape[1:], dtype=torch.uint8) if name in ("deeplab", "unet") else None
    return Examples(x, y, torch.arange(count), mean=(0.5,) * shape[0], mask=mask)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "deeplab")) for name in sorted(NETS)]
)
def test_steps_of_every_net_stay_on_the_device(name):
    options = {key: value for key, value in SMALL.get(name, {}).items() if key in NETS[name].__dataclass_fields__}
    data = images(name)
    made = make_net(name, NETS[name](**options), data.shape, 3)
    for engine in ("loop",) if made.trains_alone else ("loop", "stacked"):
        outcomes = train_on_meta(FedAvg(), made, [data, data], engine)
        assert everything_is_on_meta(outcomes)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_augmentation_and_adam_stay_on_the_device(engine):
    data = images("lenet")
    made = make_net("lenet", NETS["lenet"](), data.shape, 3)
    options = {"augment": ("crop", "flip"), "optimiser": "adamw", "weight_decay": 0.1, "schedule_by": "step"}
    assert everything_is_on_meta(train_on_meta(Local(), made, [data, data], engine, **options))


class MakesATensor(FedAvg):
    """Planted: a tensor on the CPU in the loss."""

    def loss(self, net, params, batch, down, kept):
        loss = super().loss(net, params, batch, down, kept)
        return Loss(supervised=loss.terms["supervised"] + torch.zeros(3).sum())


class ReadsAValue(FedAvg):
    """Planted: a value that is read back in the loss."""

    def loss(self, net, params, batch, down, kept):
        loss = super().loss(net, params, batch, down, kept)
        return Loss(supervised=loss.terms["supervised"] * (1 + 0 * loss.terms["supervised"].detach().sum().item()))


@pytest.mark.parametrize("engine", ["loop", "stacked", "replayed"])
@pytest.mark.parametrize("planted", [MakesATensor, ReadsAValue])
def test_planted_tensors_and_values_are_found(planted, engine):
    data = [examples(own, seed) for seed, own in enumerate(LABELS)]
    with pytest.raises(RuntimeError, match=r"made a tensor on cpu|item\(\)"):
        train_on_meta(planted(), net(), data, engine)


@pytest.mark.parametrize("kind", [Loop, Stacked])
def test_a_run_whose_data_are_elsewhere_gives_the_same_bits(kind, monkeypatch):
    """With the second name of the CPU as the device, all copies are made, and nothing may change."""
    other = torch.device("cpu:0")
    assert other != CPU
    experiment = config("fedproto", train={"epochs": 2})
    reference = played_on(kind, experiment, federation())
    for on_device in (True, False):
        monkeypatch.setattr(placement, "fits", lambda size, device, answer=on_device: answer)
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
        runner = played_on(kind, experiment, placed_members(federation(), other))
        for mine, theirs in zip(tree_leaves(runner.server), tree_leaves(reference.server), strict=True):
            assert torch.equal(mine, theirs)
        assert runner.evaluations == reference.evaluations


def test_shared_arrays_are_copied_once_and_hooks_see_the_cpu():
    data = examples([0, 1, 2, 0])
    parts = [data.subset([0, 1]), data.subset([2, 3])]
    first, second = DeviceCopies(META, parts).placed(parts)
    assert first.for_steps.x is second.for_steps.x
    assert first.for_steps.take(torch.tensor([0]))[0].device == META
    assert first.take(torch.tensor([0]))[0].device == first.labels.device == CPU
    assert first.subset([0]).copy is None


def test_data_that_do_not_fit_stay_here(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 4000))
    assert placement.fits(500, torch.device("cuda"))
    assert not placement.fits(501, torch.device("cuda"))
    assert placement.fits(10**12, META)


@pytest.mark.parametrize(
    ("name", "gpus", "mps", "expected"),
    [("auto", 0, False, "cpu"), ("auto", 2, True, "cuda"), ("auto", 0, True, "mps"), ("cpu", 1, True, "cpu"),
     ("cuda:1", 2, False, "cuda:1")],
)  # fmt: skip
def test_one_place_chooses_the_device(monkeypatch, name, gpus, mps, expected):
    pretend(monkeypatch, gpus, mps)
    assert str(choose_device(name)) == expected


@pytest.mark.parametrize(("name", "gpus"), [("cuda", 0), ("cuda:1", 1), ("mps", 1)])
def test_a_device_that_does_not_exist_is_an_error(monkeypatch, name, gpus):
    pretend(monkeypatch, gpus, False)
    with pytest.raises(UserError, match=f'engine.device: got "{name}", but torch'):
        choose_device(name)


def pretend(monkeypatch: Any, gpus: int, mps: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


def test_the_experiment_file_takes_devices(monkeypatch):
    with pytest.raises(UserError, match=r'engine.device: .*must be "cpu", "cuda", "cuda:1"'):
        protofed.run({"engine": {"device": "gpu"}})
    pretend(monkeypatch, 0, False)
    with pytest.raises(UserError, match='got "cuda:1"'):
        protofed.run({"run": {"rounds": 1}, "engine": {"device": "cuda:1"}})
    result = protofed.run({"run": {"rounds": 1}, "data": {"limit": 240, "clients": 2}, "engine": {"device": "auto"}})
    assert result.state.config.engine.device == "cpu"


def test_a_gpu_has_one_process():
    check_workers(1, torch.device("cuda"))
    with pytest.raises(UserError, match=r"engine.workers: got 2, but forked processes cannot share a GPU"):
        check_workers(2, torch.device("cuda"))
    big, data = net(), examples([0, 1] * 8)
    big.cost = 1e12
    assert choose_workers([big], [on_meta(data)], 1, 1) == 1


def test_bfloat16_rounds_the_layers_and_nothing_else():
    """Layers compute in bfloat16, whose numbers have 8 binary digits: a relative error of up to 2^-8 each."""
    toy, x = net(), examples([0, 1, 2] * 5).normalised(examples([0, 1, 2] * 5).x)
    params = toy.init(torch.Generator())
    exact = toy(params, x)[1]
    toy.precision = "bfloat16"
    rounded = toy(params, x)[1]
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).abs().max() < 3 * 2**-8 * exact.abs().max()  # three layers
    toy.precision = "float32"
    data = examples([0, 1, 2] * 4)
    where = Client(toy, 0, 0, 0, 1, data)
    outcomes = [
        outcome_on_device(Local(), where, data, params, (), (), [Phase(1)], TrainSection(batch=4, precision=precision))
        for precision in ("float32", "bfloat16")
    ]
    assert {value.dtype for value in outcomes[1].params.values()} == {torch.float32}
    assert toy.precision == "float32"
    assert any(not torch.equal(outcomes[0].params[name], outcomes[1].params[name]) for name in params)


@pytest.mark.parametrize("name", ["toy", "lenet"])
def test_bfloat16_is_the_same_in_every_engine_up_to_its_rounding(name):
    """After two steps. Each rounds to 8 binary digits, and a gradient is a sum in which most of it may cancel."""
    data = (
        examples([0, 1, 2] * 3)
        if name == "toy"
        else replace(images(name, 9), x=torch.rand(9, 3, 32, 32, generator=generator(name)))
    )
    made = net() if name == "toy" else make_net(name, NETS[name](), data.shape, 3)
    start, training = made.init(torch.Generator()), TrainSection(batch=8, lr=0.05, precision="bfloat16")
    clients = [Client(made, 0, 0, number, 2, data) for number in (0, 1)]
    alone = [outcome_on_device(Local(), one, data, start, (), (), [Phase(1)], training) for one in clients]
    trainees = [Trainee(client, start, (), (), [Phase(1)]) for client in clients]
    together = outcomes_on_device(Local(), trainees, training, lambda key, build: Replayed(build(), 0))
    for mine, theirs in zip(together, alone, strict=True):
        for key, value in theirs.params.items():
            step = (value - start[key]).abs().max()
            assert (mine.params[key] - value).abs().max() <= 0.25 * step + 1e-6, key


class FakeCuda:
    """`torch.cuda`, as far as a capture needs it: a graph that runs what was called inside `graph`."""

    def __init__(self, captures: bool = True) -> None:
        self.captures, self.runs = captures, 0
        self.CUDAGraph = lambda: SimpleNamespace(replay=self.replay)
        self.Stream = lambda: SimpleNamespace(wait_stream=lambda stream: None)
        self.current_stream = self.Stream

    def replay(self) -> None:
        for fixed, new in zip(self.step.outputs, self.run(*self.step.inputs), strict=True):
            fixed.copy_(new)

    @contextmanager
    def stream(self, stream):
        yield

    @contextmanager
    def graph(self, graph):
        if not self.captures:
            raise RuntimeError("operation not permitted when stream is capturing")
        yield

    def synchronize(self) -> None:
        pass


def test_a_captured_step_copies_in_and_out(monkeypatch):
    fake = FakeCuda()
    monkeypatch.setattr(torch, "cuda", fake)
    fake.run = lambda a, b: [a + b, a * b]
    step = fake.step = gpu_graph.CapturedStep(fake.run, [torch.zeros(2), torch.zeros(2)])
    first = step(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    second = step(first[0], torch.tensor([1.0, 1.0]))
    assert [value.tolist() for value in first] == [[4, 6], [3, 8]]
    assert [value.tolist() for value in second] == [[5, 7], [4, 6]]


def test_a_step_that_cannot_be_captured_is_replayed_as_it_is(monkeypatch):
    run = lambda x: [x]  # noqa: E731
    assert gpu_graph.captured(run, [torch.zeros(2)]) is run
    monkeypatch.setattr(torch, "cuda", FakeCuda(captures=False))
    on_gpu = [SimpleNamespace(device=torch.device("cuda"))]
    monkeypatch.setattr(gpu_graph.CapturedStep, "__init__", lambda *given: fail())
    assert gpu_graph.captured(run, on_gpu) is run


def fail() -> None:
    raise RuntimeError("not permitted")


def test_a_batch_is_a_batch_on_any_device():
    x, y = on_meta(examples([0, 1, 2])).for_steps.take(torch.tensor([2, 0]))
    assert {value.device for value in Batch.of(x, y)} == {META}
