"""The net of each client: built from [net], with the weights that it starts from, or given in Python."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from protofed.errors import UserError
from protofed.examples import Examples
from protofed.experiment.config import Config
from protofed.experiment.encoder_constants import with_constants
from protofed.experiment.stored import GIVEN
from protofed.net import Net, Params
from protofed.nets import make_net
from protofed.nets.own import own_nets
from protofed.nets.weights import input_format, read_weights, read_weights_and_metadata, with_our_names

_LISTED = 6
"""The number of tensors that start at random whose names are shown."""


def client_nets(
    config: Config, train: Sequence[Examples], classes: int, given: Sequence[Any] | None, weights: bool = True
) -> tuple[tuple[Net, ...], tuple[str, ...]]:
    """The net of each client, and notes about files with weights. `given`: the nets that were given in Python.

    `weights`: whether initial weights are read from files; a trained model does not need them.
    """
    if given is not None:
        return own_nets(given, train, classes), ()
    if any(choice.name == GIVEN for choice in config.nets):
        raise UserError(
            "This run has nets that were given in Python, so they are needed again: protofed.run(config, out, "
            "nets=[...], resume=True) continues it, and protofed.Result.load(folder, nets=[...]) opens it."
        )
    nets = build_nets(config, [examples.shape for examples in train], classes)
    return load_net_weights(config, nets) if weights else (nets, ())


def build_nets(config: Config, shapes: Sequence[tuple[int, ...]], classes: int) -> tuple[Net, ...]:
    """The net of each client, for inputs of these shapes. Clients with equal nets and shapes share the object."""
    designs = [choice.design for choice in config.nets]
    counts = counts_by_share([choice.share for choice in config.nets], len(shapes))
    numbers = [number for number, count in enumerate(counts) for _ in range(count)]  # of each client's [[net]]
    keys = list(zip(numbers, shapes, strict=True))
    nets = {
        (number, shape): make_net(config.nets[number].name, designs[number], shape, classes, designs)
        for number, shape in dict.fromkeys(keys)
    }
    return tuple(nets[key] for key in keys)


def own_or_shared_nets(
    config: Config, shapes: Sequence[tuple[int, ...]], classes: int, tables: Sequence[Mapping[str, Any] | None]
) -> tuple[Net, ...]:
    """The net of each client: that of its own [net] table, or if it has None that of the experiment."""
    nets = list(build_nets(config, shapes, classes))
    own: dict[Any, Net] = {}
    for number, (table, shape) in enumerate(zip(tables, shapes, strict=True)):
        if table is not None:
            (choice,) = Config.of({"net": table}).nets
            key = (json.dumps(dict(table), sort_keys=True), shape)
            if key not in own:
                own[key] = make_net(choice.name, choice.design, shape, classes)
            nets[number] = own[key]
    return tuple(nets)


def load_net_weights(config: Config, nets: tuple[Net, ...]) -> tuple[tuple[Net, ...], tuple[str, ...]]:
    """The nets with initial weights from files, and a note per file about the tensors that matched."""
    counts = counts_by_share([choice.share for choice in config.nets], len(nets))
    files = [choice.weights for choice, count in zip(config.nets, counts, strict=True) for _ in range(count)]
    loaded: dict[tuple[Net, str], Net] = {}
    notes = []
    for net, file in dict.fromkeys(zip(nets, files, strict=True)):
        layers = with_our_names(read_weights(file)) if file else {}
        loaded[net, file] = net.starting_from(layers) if file else net
        if file:
            taken = loaded[net, file].initial_params
            random = [name for name in net.shapes if name not in taken]
            more = f" and {len(random) - _LISTED} more" if len(random) > _LISTED else ""
            rest = f"; at random: {', '.join(random[:_LISTED])}{more}" if random else ""
            if any("running_mean" in name for name in layers) and not any("running_mean" in name for name in taken):
                rest += "; it was trained with batch norm, the statistics of which this net has no place for"
            notes.append(f"net {net.name}: {len(taken)} of {len(net.shapes)} tensors from {file}{rest}")
    return tuple(loaded[key] for key in zip(nets, files, strict=True)), tuple(notes)


def initial_layers(config: Config, client: int, clients: int) -> Params:
    """The tensors in the file that the net of a client starts from; {} if there is none."""
    counts = counts_by_share([choice.share for choice in config.nets], clients)
    files = [choice.weights for choice, count in zip(config.nets, counts, strict=True) for _ in range(count)]
    return with_our_names(read_weights(files[client])) if files[client] else {}


def constants_of_weights(config: Config, examples: Examples) -> Examples:
    """The examples with the constants by which the inputs of net.weights were normalised (data.normalise)."""
    files = {choice.weights for choice in config.nets}
    if len(files) > 1 or "" in files:
        raise UserError(
            'data.normalise: "weights" takes the constants of net.weights, so all nets must start from the same file. '
            'Set net.weights, or use data.normalise = "dataset".'
        )
    (file,) = files
    constants = input_format(read_weights_and_metadata(file)[1])
    if constants is None:
        raise UserError(
            f'data.normalise: {file} does not say how its inputs were normalised. Use data.normalise = "dataset", or '
            "weights written by `protofed export` or `protofed pretrain`."
        )
    return with_constants(examples, constants, file, "data.normalise")


def counts_by_share(shares: list[float], clients: int) -> list[int]:
    """The number of clients for each share, by largest remainders; of equal remainders the first comes first.

    >>> counts_by_share([1, 1, 1], 20)
    [7, 7, 6]
    """
    exact = [share * clients / sum(shares) for share in shares]
    counts = [int(value) for value in exact]
    by_remainder = sorted(range(len(shares)), key=lambda number: counts[number] - exact[number])  # the largest first
    for number in by_remainder[: clients - sum(counts)]:
        counts[number] += 1
    return counts
