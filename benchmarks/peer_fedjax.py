"""Rounds of fedjax's federated averaging with the images, net and batch size of `speed.py`.

    python peer_fedjax.py IMAGES.npz SETTINGS

`speed.py` runs this in a separate environment. For every line on standard input it trains one round and prints the
seconds (wall, CPU), the number of local trainings and the number of optimiser steps as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

SETTINGS = json.loads(sys.argv[2])
if SETTINGS["cores"] == 1:  # XLA has threads of its own, which OMP_NUM_THREADS does not limit
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import haiku as hk  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

jax.tree_map = jax.tree.map  # jax 0.10 has it no more, and fedjax 0.0.17 calls it
import fedjax  # noqa: E402


def mnist_net(x: Any) -> Any:
    """Workload W: FedProto's MNIST net."""
    x = jax.nn.relu(hk.max_pool(hk.Conv2D(10, 5, padding="VALID")(x), (1, 2, 2, 1), (1, 2, 2, 1), "VALID"))
    x = hk.dropout(hk.next_rng_key(), 0.5, hk.Conv2D(20, 5, padding="VALID")(x), broadcast_dims=(1, 2))
    x = jax.nn.relu(hk.max_pool(x, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"))
    x = jax.nn.relu(hk.Linear(50)(hk.Flatten()(x)))
    return hk.Linear(10)(hk.dropout(hk.next_rng_key(), 0.5, x))


def cifar_net(x: Any) -> Any:
    """Workload P: the CNN of pfl-research's CIFAR-10 benchmark."""
    x = jax.nn.relu(hk.Conv2D(32, 3, padding="VALID")(x))
    x = jax.nn.relu(hk.Conv2D(64, 3, padding="VALID")(x))
    x = hk.dropout(hk.next_rng_key(), 0.25, hk.max_pool(x, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"))
    x = jax.nn.relu(hk.Linear(128)(hk.Flatten()(x)))
    return hk.Linear(10)(hk.dropout(hk.next_rng_key(), 0.5, x))


NETS = {"W": mnist_net, "P": cifar_net}
COUNTS = {"trainings": 0, "steps": 0}


class CountedDataset(fedjax.ClientDataset):
    """A client's examples; the batches that its training takes are counted."""

    def shuffle_repeat_batch(self, *arguments: Any, **options: Any) -> Iterator[Any]:
        COUNTS["trainings"] += 1
        for batch in super().shuffle_repeat_batch(*arguments, **options):
            COUNTS["steps"] += 1
            yield batch


def main(file: str) -> None:
    images = np.load(file)
    x, y = np.ascontiguousarray(images["x"].transpose(0, 2, 3, 1)), images["y"].astype(np.int32)
    model = fedjax.create_model_from_haiku(
        hk.transform(lambda batch: NETS[SETTINGS["net"]](batch["x"])),
        {"x": x[:1], "y": y[:1]},
        lambda batch, logits: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], logits),
    )
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(SETTINGS["lr"], SETTINGS["momentum"] or None),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=SETTINGS["batch"], num_epochs=1, drop_remainder=True),
    )
    parts = np.split(np.arange(len(y)), np.cumsum(images["sizes"])[:-1])
    data = [CountedDataset({"x": x[rows], "y": y[rows]}) for rows in parts]
    state = algorithm.init(model.init(jax.random.PRNGKey(0)))
    assert sum(leaf.size for leaf in jax.tree.leaves(state.params)) in (21840, 1626442)
    for number, _ in enumerate(sys.stdin):
        before = dict(COUNTS)
        wall, cpu = time.perf_counter(), time.process_time()
        keys = jax.random.split(jax.random.PRNGKey(number), len(data))
        clients = [(client, own, keys[client]) for client, own in enumerate(data)]
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)
        seconds = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(state.params))
        print("\n" + json.dumps(seconds | {key: COUNTS[key] - before[key] for key in COUNTS}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
