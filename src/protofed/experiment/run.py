"""`protofed.run`: runs an experiment and returns its result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofed.contract import explaining_errors
from protofed.devices import choose_device
from protofed.engines.choice import check_workers, choose_engine
from protofed.engines.memory import keep_freed_memory
from protofed.engines.threads import one_thread
from protofed.errors import UserError
from protofed.examples import check_augmentation
from protofed.experiment.config import Config, changed_keys
from protofed.experiment.folder import LOCK, Folder, uninterrupted
from protofed.experiment.links import refuse_links
from protofed.experiment.member_copies import placed_members
from protofed.experiment.members import Members
from protofed.experiment.own_code import with_relative_paths, write_code
from protofed.experiment.pixels import check_pixel_labels
from protofed.experiment.progress import ProgressBar, wants_progress
from protofed.experiment.roster import clients_per_round, clients_to_test
from protofed.experiment.runner import Runner
from protofed.experiment.sections import GivenInPython, NetChoice
from protofed.experiment.stop_request import was_asked_to_stop
from protofed.experiment.stored import GIVEN, MAY_CHANGE
from protofed.experiment.trackers import WATCHERS
from protofed.experiment.watchers import Watcher
from protofed.plugins import label
from protofed.trust.known_code import trusting

if TYPE_CHECKING:
    from protofed.experiment.federation import Federation
    from protofed.experiment.results import Result


def run(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    watchers: Sequence[Watcher] = (),
    federation: Federation | None = None,
    progress: bool | None = None,
    nets: Sequence[Any] | None = None,
    trust_code: bool = False,
) -> Result:
    """Run an experiment: a `Config`, a table of sections, or an experiment file. With `out`, write a run folder.

    `resume` continues the run in the folder `out`. `watchers` observe the run. A `federation` of your own arrays
    replaces [data] and [partition], and [net] if it has nets. `progress`: whether to show a progress bar; None: on a
    terminal and in a notebook, if there are no watchers. `nets` replace [net] on named data: one for all clients, or
    one per client, in any of the forms that `protofed.nets.own` lists. `trust_code`: run the code that the folder `out`
    names, although you have not run it before, or it has changed. Training asks the memory allocator of this process to
    keep freed memory: see `engines.memory`.
    """
    if resume and out is None:
        raise UserError("resume=True continues the run in the folder `out`, but got out=None. Give the folder.")
    for watcher in watchers:
        if not isinstance(watcher, Watcher):
            raise UserError(f"watchers: got a {type(watcher).__name__}; must be of a subclass of protofed.Watcher.")
    if federation is not None and not hasattr(federation, "members"):
        raise UserError(f"federation: got a {type(federation).__name__}; must be a protofed.Federation.")
    if not isinstance(config, Config):
        with trusting(trust_code):
            config = Config.of(config) if isinstance(config, Mapping) else Config.load(config)
    if federation and nets is not None:
        raise UserError("nets: give them to the federation instead: protofed.Federation(data, nets=[...]).")
    config = federation.config(config) if federation else config
    if nets is not None:
        given: Any = GivenInPython()
        config = replace(config, nets=(NetChoice(GIVEN, given),))
    bars = [ProgressBar()] if progress or (progress is None and not watchers and wants_progress(None)) else []
    watchers = [*watchers, *bars]

    def say(text: str) -> None:
        for watcher in watchers:
            watcher.preparing(text)

    if resume and out is not None and config.stored(Folder.existing(Path(out)).path).data.name != config.data.name:
        raise _another_experiment(Path(out), ["data.name"])  # before data are read that may not be there
    device = choose_device(config.engine.device)
    check_workers(config.engine.workers, device)
    members = federation.members(config) if federation else Members.of(config, say, nets)
    members.check_nets(label(config.method_name), config.method)
    check_pixel_labels(members, label(config.method_name), config.method)
    for train in members.train:
        check_augmentation(config.train.augment, train.x)
    automatic = not config.run.eval_every
    config = resolve_engine(config.with_clients(len(members)), members)
    if automatic and config.run.eval_every > 1:
        members = replace(members, notes=(*members.notes, note_on_tests(config)))
    for name in config.run.all_watchers() if out is not None else ():
        WATCHERS.find(name)[1].require()
    keep_freed_memory()
    with (
        one_thread(),
        explaining_errors(config.method),
        trusting(trust_code),
        open_run_folder(out, resume, config, members) as folder,
    ):
        result = run_to_end(Runner(config, placed_members(members, device), folder, watchers), resume)
        return replace(result, state=result.state._replace(members=members))  # frees the copies on a GPU


def run_to_end(runner: Runner, resume: bool) -> Result:
    """Start or resume a run, and run its rounds."""
    try:
        with uninterrupted():
            runner.resume() if resume else runner.start()
        return runner.go()
    finally:
        runner.close()


def resolve_engine(config: Config, members: Members) -> Config:
    """The experiment with a chosen engine and device instead of `auto`. Those that are named stay."""
    config = replace(config, engine=replace(config.engine, device=str(choose_device(config.engine.device))))
    if config.engine.name != "auto":
        return config
    per_round = clients_per_round(config, len(members))
    if config.privacy.is_on:
        chosen = replace(config.engine, name="loop", reason="auto: [privacy] trains one client after the other")
        return replace(config, engine=chosen)
    name, reason = choose_engine(members.nets, members.train, config.train.batch, per_round)
    return replace(config, engine=replace(config.engine, name=name, reason=f"auto: {reason}"))


def note_on_tests(config: Config) -> str:
    """What the screen says if a federation is so large that not every round is tested."""
    tested = len(clients_to_test(config, config.data.clients))
    return (
        f"run.eval_every: {tested:,} clients are tested every {config.run.eval_every} rounds; "
        "set eval.clients_sampled to test fewer clients more often"
    )


@contextmanager
def open_run_folder(out: str | Path | None, resume: bool, config: Config, members: Members) -> Iterator[Folder | None]:
    """A locked run folder: a new one, or with `resume` that of an earlier run of the experiment; None without `out`."""
    if out is None:
        yield None
    elif not resume:
        with Folder.create(Path(out)) as folder:
            write_code(folder.path, config)
            folder.write_config(with_relative_paths(config.table(), folder.path))
            folder.write_partition(members.describe())
            yield folder
    else:
        refuse_links(Path(out), "checkpoint", "trace", LOCK)
        with Folder.existing(Path(out)).locked() as folder:
            _check_same_experiment(folder, config, members.describe())
            write_code(folder.path, config)
            was_asked_to_stop(folder.path)  # a request that came too late for the run before is not for this one
            yield folder


def _another_experiment(path: Path, keys: Sequence[str]) -> UserError:
    return UserError(
        f"Resuming {path} can change only {', '.join(MAY_CHANGE[:-1])}, not {', '.join(keys)}. "
        "Start a new run for that."
    )


def _check_same_experiment(folder: Folder, config: Config, partition: dict[str, Any]) -> None:
    """Raise an error if the folder is of another experiment."""
    if keys := changed_keys(config.stored(folder.path).table(), config.table()):
        raise _another_experiment(folder.path, keys)
    before = folder.partition()
    if before is None:
        folder.write_partition(partition)
    elif any(before.get(key) != partition[key] for key in ("sha256", "nets")):
        raise UserError(
            f"{folder.path} was made with other data or nets: its partition.json does not match. Start a new run."
        )
    elif before.get("start") != partition["start"]:
        raise UserError(
            f"{folder.path} was started with other weights than its nets have now. Call torch.manual_seed before you "
            "make the nets, or give functions that make them. protofed.Result.load opens the run without resuming it."
        )
