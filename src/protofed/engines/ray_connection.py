"""The connection to a cluster of Ray, or to a Ray that is started on this machine."""

from __future__ import annotations

import os
import secrets
import socket
from typing import Any

from protofed.errors import UserError

_HERE = ("", "local")
"""The addresses that stand for a Ray of its own on this machine."""
_SECONDS_TO_ANSWER = 10.0
"""Seconds in which a cluster must answer."""
_ADVICE = "docs/cluster.md says how a cluster is started, and which token it needs."


def connected_ray(address: str, cores: int, option: str = "engine.address") -> tuple[Any, bool]:
    """Ray, connected to the cluster at the address, and whether this call connected it.

    `address`: "" or "local" starts a Ray with this number of cores on this machine, "auto" is the cluster that this
    machine belongs to. `option`: where the user gave the address; messages begin with it. Ray has no authentication
    unless it is told to, and reports its use to its makers unless it is told not to.
    """
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address in _HERE:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        for name in ("RAY_agent_register_timeout_ms", "RAY_gcs_server_request_timeout_seconds"):
            os.environ.setdefault(name, "300000" if name.endswith("ms") else "300")  # a busy machine starts slowly
    try:
        import ray
    except ModuleNotFoundError as problem:
        raise UserError(f'{option}: Ray needs another package: pip install "protofed[ray]".') from problem
    if ray.is_initialized():
        return ray, False
    _require_answer(address, option)
    options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    if address in _HERE:
        options |= {"address": "local", "num_cpus": max(1, cores), "object_store_memory": 200 * 2**20}
    else:
        options["address"] = address
    try:
        ray.init(**options)
    except Exception as problem:  # Ray raises plain ones, too
        where = "on this machine" if address in _HERE else f"at {address}"
        raise UserError(f"{option}: Ray does not start or answer {where}: {problem} {_ADVICE}") from problem
    return ray, True


def _require_answer(address: str, option: str) -> None:
    """Raise an error if nobody listens at an address with a port, for which Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        return
    try:
        socket.create_connection((host, int(port)), timeout=_SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError) as problem:
        raise UserError(f"{option}: nobody answers at {address}: {problem}. {_ADVICE}") from problem
