"""The app that Flower starts at the server: it enrols the clients and runs the experiment, as `protofed run` does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from protofed.deploy.client_data import read_balanced
from protofed.deploy.deployed_runner import DeployedRunner
from protofed.deploy.descriptions import Description, enrolled_sizes
from protofed.deploy.enrolment import EnrolledMembers, Enrolment
from protofed.deploy.secure_engine import SecureRemote
from protofed.deploy.settings import EXPERIMENT_FILE, ServerSettings, read_server_settings
from protofed.deploy.status import ServerStatus
from protofed.engines.flower.exchange import Patience, Post
from protofed.engines.flower.nodes import Clock, Nodes
from protofed.engines.flower.remote import Agreement, Remote
from protofed.engines.scoring import with_input_shape
from protofed.engines.threads import one_thread
from protofed.errors import UserError
from protofed.examples import Examples
from protofed.experiment.config import Config, read_toml
from protofed.experiment.folder import Folder
from protofed.experiment.pixels import check_pixel_labels
from protofed.experiment.run import open_run_folder, run_to_end
from protofed.experiment.secure_round import refuse_attackers

if TYPE_CHECKING:
    from protofed.experiment.results import Result

app = ServerApp()
RUN_FOLDER = "run"
"""The run folder in the server's folder."""


@app.main()
def run_server(grid: Grid, context: Context) -> None:
    """Run the experiment in the folder that the run's config names."""
    options = context.run_config
    serve(grid, Path(str(options["folder"])), resume=bool(options.get("resume")), rounds=int(options.get("rounds", 0)))


def serve(grid: Grid, folder: Path, resume: bool = False, rounds: int = 0, clock: Clock | None = None) -> Result:
    """Enrol the clients and run the experiment. `rounds`: instead of run.rounds, or of what the run had before."""
    settings = read_server_settings(folder)
    status = ServerStatus(folder, settings.clients)
    try:
        return _served(grid, folder, settings, status, resume, rounds, clock)
    except UserError as problem:
        status.failed(str(problem))
        raise
    except BaseException as problem:
        status.failed(f"{type(problem).__name__}: {problem}")
        raise


def _served(
    grid: Grid,
    folder: Path,
    settings: ServerSettings,
    status: ServerStatus,
    resume: bool,
    rounds: int,
    clock: Clock | None,
) -> Result:
    out = folder / RUN_FOLDER
    resume = resume and (out / "config.toml").exists()
    if not resume and (out / "config.toml").exists():
        raise UserError(f"{out} has a run. Continue it with `protofed deploy resume`, or move the folder away.")
    if resume and not rounds:  # as many as the run was last started with
        rounds = read_toml(out / "config.toml")["run"]["rounds"]
    file = Config.load(folder / EXPERIMENT_FILE)
    refuse_attackers(file)
    enrolment = Enrolment(folder, file, settings, resume)
    if enrolment.is_fixed:  # their numbers are those of the run, which may have fewer clients than server.toml
        status.members(enrolment.run, enrolment.names)
    nodes = Nodes(grid, enrolment, status, clock)
    _wait_for_clients(nodes, enrolment, settings)
    status.members(enrolment.run, enrolment.names)
    members = enrolment.members(read_balanced(folder / "balanced.npz"))
    _check_nets(members, file, enrolment.names)
    if resume:
        _check_balanced(members, out, folder / "balanced.npz")
    engine = _engine(nodes, enrolment, members, file, settings)
    engine.has_noise = file.privacy.is_on
    examined = bool(engine.agreement.examinable)
    config, notes = _deployed(file.with_clients(len(members)), members.notes, rounds, examined)
    with one_thread(), open_run_folder(out, resume, config, members) as run_folder:
        runner = DeployedRunner(config, replace(members, notes=notes), run_folder, [status], engine)
        runner.connect()
        return run_to_end(runner, resume)


def _wait_for_clients(nodes: Nodes, enrolment: Enrolment, settings: ServerSettings) -> None:
    """Wait until all clients have enrolled, or until enough of them have and the time is over."""
    began, clock = nodes.clock.now(), nodes.clock
    enough = min(settings.enough, len(enrolment.names))
    while True:
        nodes.look()
        here = [number for number in range(len(enrolment.names)) if nodes.of(number) is not None]
        if len(here) == len(enrolment.names):
            break
        if clock.now() - began >= settings.wait_seconds:
            if len(here) >= enough:
                break
            missing = [name for number, name in enumerate(enrolment.names) if number not in here]
            raise UserError(
                f"{len(here)} of {len(enrolment.names)} clients have enrolled after {settings.wait_seconds:g} s, but "
                f"{enough} are needed (min_clients in server.toml). Missing: {', '.join(missing)}."
            )
        clock.sleep(settings.poll_seconds)
    if not enrolment.is_fixed:  # a new run: its members are the clients that are here
        nodes.by_client = {position: nodes.by_client[number] for position, number in enumerate(here)}
        nodes.rivals = {}  # they have the old numbers; these nodes are asked again
        enrolment.fix([enrolment.names[number] for number in here])


def _check_nets(members: EnrolledMembers, config: Config, names: tuple[str, ...]) -> None:
    """Raise an error if the method cannot combine the clients' nets."""
    try:
        members.check_nets(config.method_name, config.method)
        check_pixel_labels(members, config.method_name, config.method)
    except UserError as problem:
        numbers = ", ".join(f"{number} is {name}" for number, name in enumerate(names))
        raise UserError(f"{problem} (Client {numbers}.)") from None


def _check_balanced(members: EnrolledMembers, out: Path, file: Path) -> None:
    """Raise an error if the run to resume was made with other data, perhaps because the server lost its test set."""
    before = Folder(out).partition()
    if not members.balanced and before and before["sha256"] != members.describe()["sha256"]:
        raise UserError(
            f"{out} was made with other data: its partition.json does not match, and {file} does not exist. If the "
            "server had this file when the run began, restore it from a backup or from the folder of `protofed deploy "
            "init`. If not, the data of a client have changed: start a new run."
        )


def _deployed(config: Config, notes: tuple[str, ...], rounds: int, examined: bool) -> tuple[Config, tuple[str, ...]]:
    """The experiment as it can be run on several machines, and notes about what is left out."""
    run = config.run
    if rounds:
        run = replace(run, rounds=rounds)
    if run.monitor:
        run = replace(run, monitor=0)
        notes += ("run.monitor: the bounds need the clients' data, which stay with them; nothing is monitored",)
    if config.eval.personal and not examined:
        notes += ("eval.personal: no client has a balanced test set (balanced.npz), so that its figures are null",)
    engine = replace(config.engine, name="flower", reason="clients on other machines")
    return replace(config, run=run, engine=engine), notes


def _engine(
    nodes: Nodes, enrolment: Enrolment, members: EnrolledMembers, config: Config, settings: ServerSettings
) -> Remote:
    """The engine that reaches the clients."""
    names, described = enrolment.names, [enrolment.descriptions[name] for name in enrolment.names]
    post = Post(nodes, names, Patience(settings.round_seconds, settings.wait_seconds, settings.poll_seconds))
    agreement = Agreement(
        enrolment.run,
        enrolment.config.digest(),
        members.labels,
        tuple(enrolled_sizes(client) for client in described),
        enrolment.held_classes(members.labels),
        _examinable(members, described),
    )
    without_data = replace(members, train=tuple(Examples.empty(**client["input"]) for client in described))
    parts = (post, agreement, without_data, config.method, config.train, config.run.seed)
    if not config.privacy.secure_sum:
        return Remote(*parts)
    engine = SecureRemote(*parts)
    engine.threshold, keys = config.privacy.threshold, enrolment.file.parent / "keys"
    engine.keys = keys if any(keys.glob("*.pub")) else None
    return engine


def _examinable(members: EnrolledMembers, described: list[Description]) -> dict[int, list[int]]:
    """The clients that have the balanced test set, with the number of examples of each class in it."""
    classes, examinable = len(members.labels), {}
    for number, client in enumerate(described):
        parts = with_input_shape(members.balanced, members.train[number].shape)
        if client.get("balanced") and parts:
            examinable[number] = torch.stack([part.class_counts(classes) for part in parts]).sum(0).tolist()
    return examinable
