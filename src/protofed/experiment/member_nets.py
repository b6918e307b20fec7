"""The nets of the clients: built for the shapes of their inputs, with initial weights from files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protofed.nets import make_net
from protofed.nets.weights import read_weights, with_our_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protofed.core import Net
    from protofed.experiment.config import Config


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


def load_net_weights(config: Config, nets: tuple[Net, ...]) -> tuple[tuple[Net, ...], tuple[str, ...]]:
    """The nets with initial weights from files, and a note per file about the tensors that matched."""
    counts = counts_by_share([choice.share for choice in config.nets], len(nets))
    files = [choice.weights for choice, count in zip(config.nets, counts, strict=True) for _ in range(count)]
    loaded: dict[tuple[Net, str], Net] = {}
    notes = []
    for net, file in dict.fromkeys(zip(nets, files, strict=True)):
        loaded[net, file] = net.starting_from(with_our_names(read_weights(file))) if file else net
        if file:
            random = [name for name in net.shapes if name not in loaded[net, file].initial_params]
            rest = f"; at random: {', '.join(random)}" if random else ""
            notes.append(
                f"net {net.name}: {len(net.shapes) - len(random)} of {len(net.shapes)} tensors from {file}{rest}"
            )
    return tuple(loaded[key] for key in zip(nets, files, strict=True)), tuple(notes)


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
