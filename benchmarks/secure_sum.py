"""Measure what a secure sum costs a client: the table of docs/privacy.md.

    python benchmarks/secure_sum.py [--json docs/results/data/secure_sum.json]

CPU seconds of one client of 10, 100 and 1,000, with all its peers' keys and encrypted shares, and the bytes that it
sends; under a minute on one core. The vectors are FedProto's prototypes (10 classes, 50 numbers) and its CNN for mnist.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from protofed.trust.secure_sum.field import to_field
from protofed.trust.secure_sum.protocol import SecureClient
from protofed.trust.secure_sum.shamir import SHARE_BYTES

CLIENTS = (10, 100, 1000)
VECTORS = {"prototypes": 10 * 50 + 20, "weights": 21_842}
KEPT = Path(__file__).parents[1] / "docs" / "results" / "data" / "secure_sum.json"


def cpu(action: Callable[[], Any]) -> tuple[Any, float]:
    """The result of an action, and its CPU seconds."""
    began = time.process_time()
    return action(), time.process_time() - began


def measured(clients: int, size: int) -> dict[str, float]:
    """What one client of a round spends and sends."""
    threshold = math.ceil(0.67 * clients)
    peers = {number: SecureClient(number, 0, threshold) for number in range(1, clients)}
    client, spent = cpu(lambda: SecureClient(0, 0, threshold))
    keys = {0: client.public_keys(), **{number: peer.public_keys() for number, peer in peers.items()}}
    shares, seconds = cpu(lambda: client.shares(keys))
    spent += seconds
    messages = {}
    for number, peer in peers.items():  # only the shares for this client, so that not all peers compute all shares
        peer._keys = keys
        about = f"protofed shares 0 {number} 0".encode() + peer._view()
        messages[number] = bytes(12) + peer._cipher(0).encrypt(bytes(12), bytes(2 * SHARE_BYTES), about)
    _, seconds = cpu(lambda: client.receive(messages))
    spent += seconds
    masked, seconds = cpu(lambda: client.masked(to_field(np.ones(size))))
    spent += seconds
    _, seconds = cpu(lambda: client.reveal(range(clients)))
    up = 64 + sum(map(len, shares.values())) + masked.nbytes + clients * SHARE_BYTES
    return {"seconds": spent + seconds, "bytes": up, "plain_bytes": 4 * size}


def table(kept: dict[str, Any]) -> str:
    """The Markdown table."""
    lines = ["| upload | clients | CPU seconds of a client | it sends | without secure sums |", "|---|---|---|---|---|"]
    for name, by_clients in kept.items():
        for clients, row in by_clients.items():
            cells = (f"{row['seconds']:.2f}", f"{row['bytes'] / 1e3:,.0f} kB", f"{row['plain_bytes'] / 1e3:,.0f} kB")
            lines.append(f"| {name} | {int(clients):,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path, default=KEPT)
    options = parser.parse_args()
    kept = {name: {str(clients): measured(clients, size) for clients in CLIENTS} for name, size in VECTORS.items()}
    options.json.write_text(json.dumps(kept, indent=1) + "\n")
    print(table(kept))


if __name__ == "__main__":
    main()
