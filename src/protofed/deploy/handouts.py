"""The texts that `protofed deploy init` writes: the Flower app, instructions, examples for systemd and containers."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from protofed import __version__
from protofed.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protofed.deploy.deployment import ServerNetwork
    from protofed.experiment.config import Config

APP = f"""# The Flower app of this federation. It has no code of its own: all hosts use their installed protofed.
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "protofed-app"
version = "{__version__}"
description = "A federation of protofed"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "protofed"

[tool.flwr.app.components]
serverapp = "protofed_app.server:app"
clientapp = "protofed_app.client:app"

[tool.flwr.app.config]
folder = ""
resume = false
rounds = 0
"""
APP_MODULES = {
    "__init__.py": "",
    "server.py": "from protofed.deploy import server_app\n\napp = server_app.app\n",
    "client.py": "from protofed.deploy import client_app\n\napp = client_app.app\n",
}
"""The modules of the app. Flower looks for an assignment to `app` in their text."""
POLICY = """# What this client may send. Every message is checked before it leaves; see docs/deploy.md of protofed.
may_send = {may_send}
may_report = ["counts", "losses", "scores"]  # figures about the data, the training and the tests
min_examples_per_class = 0  # classes with fewer training examples are never mentioned
small_classes = "refuse"    # "refuse": upload nothing while there is such a class; "drop": as if it had no examples
max_rounds = 0              # 0: no limit
require_secure_sum = {secure}  # true: uploads leave only masked, as a part of a secure sum
"""
SERVER_SETTINGS = """# The settings of the server; see docs/deploy.md of protofed.
clients = {clients}  # the position is the client's number
min_clients = 0        # clients that must have enrolled before the first round; 0: all of them
wait_seconds = 300.0   # how long to wait for them, and for one to come back if all are gone
round_seconds = 600.0  # the deadline for the answers of a round
"""
CLIENT_SETTINGS = """# The settings of this client; see docs/deploy.md of protofed.
name = "{name}"
data = "{data}"    # relative to this folder
position = {position}         # in the list of clients of server.toml; the draw of a test set depends on it
keep_sent = {keep_sent}    # true: keep the content of every message that leaves in sent/

# [net]              # a net for this client only, instead of the one in experiment.toml
# name = "mlp"
# hidden = [64]
"""


def folder_readme(path: Path, names: Sequence[str], network: ServerNetwork, hosts: Sequence[str]) -> str:
    """The README.md of the deployment."""
    clients = ", ".join(f"`{name}`" for name in names)
    first = names[0]
    secrets = ["- `server/server.key`: the server's key."] if network.tls else []
    secrets += ["- `clients/NAME/client.key`: the client's key."] if network.auth else []
    if network.tls:
        secrets.insert(
            0, "- `authority/ca.key`: it signs certificates. It stays with the operator and goes to no host."
        )
    protection = "\n".join(secrets) or "- None: connections are neither encrypted nor authenticated (no `--tls`)."
    return f"""# A federation of protofed

Server: {", ".join(hosts)}, port {network.port}. Clients: {clients}.

## On this machine, to try it

```
protofed deploy up {shlex.quote(str(path))}
protofed deploy status {shlex.quote(str(path))}     # in a second terminal
protofed deploy down {shlex.quote(str(path))}       # or Ctrl-C in the first one
protofed deploy resume {shlex.quote(str(path))}     # continue after an interruption
```

## On several machines

Every machine needs protofed {__version__} with Flower (`pip install 'protofed[flower]'`; for tables
`pip install 'protofed[flower,tables]'`).

1. Copy `server/` to the server, and each folder in `clients/` to its own machine, over a secure way (`scp -rp`).
   Copy nothing else.
2. Open TCP port {network.port} of the server for the addresses of the clients, and for nobody else.
3. On the server: `protofed deploy server server`
4. On each client: `protofed deploy client {first}` (with the client's own name).

The server starts the first round when all clients have enrolled. It ends when the run has ended; the clients wait for
the next one until they are stopped. `protofed deploy server server --resume` continues after an interruption.
The results are in `server/run`, like those of `protofed run --out`.

`protofed.service` and `compose.yaml` in each folder are examples for systemd and for containers.

## Secrets

{protection}

What a client has sent: `protofed deploy sent clients/{first}`.
"""


def client_readme(name: str, file: str, target: str, has_data: bool, kinds: Sequence[str]) -> str:
    """The README.md of a client's folder. `file`: that of its data; `target`: a table's column of labels."""
    if has_data:
        data = f"`{file}` has this client's data."
    elif target:
        data = f"""**Put this client's table into `{file}`** (or another kind of table, and name it in `client.toml`):
one row per example, and the label in the column `{target}`. Texts, missing values and columns that other clients do not
have are allowed. Its data, and what is learned of its columns (medians, scales, categories), stay in this folder."""
    else:
        data = """**Put this client's data into `data.npz`**, written with numpy:

```python
import numpy as np

np.savez("data.npz", x=inputs, y=labels)  # also x_test=..., y_test=..., classes=[...]
```

`x` has the inputs [n, ...], numbers without missing values. `y` has the labels [n]: class names, or whole numbers from
0. Without `x_test` and `y_test`, a fifth of each class is held out for tests. `classes` lists the names of all classes
in order; give the same list to every client, or to none. The data stay in this folder."""
    sent = ", ".join(kinds) or "no tensors"
    return f"""# Client {name}

Start it with `protofed deploy client .` in this folder. It trains on this machine.

{data}

`policy.toml` says what may leave this machine; with this method: {sent}, and figures. `protofed deploy sent .` shows
what has left. `store/` has this client's model: keep a copy of it. `client.key` and `{file}` are for nobody else.
"""


def systemd_unit(kind: str, folder: Path, protofed: Path) -> str:
    """An example of a systemd unit for a server or client."""
    more = " --resume" if kind == "server" else ""
    return f"""# An example: change the user and the paths, copy it to /etc/systemd/system/protofed-{kind}.service, then
# systemctl enable --now protofed-{kind}
[Unit]
Description=protofed {kind}
Wants=network-online.target
After=network-online.target

[Service]
User=protofed
ExecStart="{protofed}" deploy {kind} "{folder}"{more}
Restart=on-failure
RestartSec=15
KillMode=mixed
TimeoutStopSec=60
UMask=0077
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=strict
ReadWritePaths={json.dumps(str(folder))}

[Install]
WantedBy=multi-user.target
"""


def compose_file(kind: str, port: int) -> str:
    """An example of a compose file for a server or client."""
    server = kind == "server"
    more = " --resume --listen 0.0.0.0" if server else ""
    ports = f'\n    ports: ["{port}:{port}"]' if server else ""
    return f"""# An example: `PROTOFED_SOURCE=/path/to/protofed docker compose up --build` in this folder.
services:
  {kind}:
    build:
      context: ${{PROTOFED_SOURCE:?set it to a clone of protofed}}
      dockerfile_inline: |
        FROM python:3.11-slim
        COPY . /source
        RUN pip install --no-cache-dir '/source[flower,tables]'
    command: protofed deploy {kind} /{kind}{more}
    init: true
    restart: on-failure
    stop_grace_period: 60s
    volumes: [".:/{kind}"]{ports}
"""


def copy_net_weights(config: Config, folder: Path) -> None:
    """Copy the files of net.weights to where a server or client in this folder looks for them.

    Files with an absolute path must be on every machine.
    """
    for choice in config.nets:
        file = Path(choice.weights)
        if not choice.weights or file.is_absolute():
            continue
        if ".." in file.parts:
            raise UserError(
                f"net.weights: got {choice.weights}; must be a file in this folder or below, or an absolute path that "
                "is the same on every machine."
            )
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, folder / file)
