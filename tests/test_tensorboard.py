"""TensorBoard gets the numbers of rounds.jsonl, each round once, also after a resume; without it a run says so."""

from __future__ import annotations

import builtins
import math

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from protofed import run
from protofed.errors import UserError
from protofed.experiment.tensorboard import TensorBoard, scalars

TABLE = {"data": {"clients": 3}}


def rounds(number: int, **more: object) -> dict:
    return {**TABLE, "run": {"rounds": number, "tensorboard": True, **more}}


def shown(folder) -> dict[str, list[tuple[int, float]]]:
    seen = EventAccumulator(str(folder / "tensorboard"))
    seen.Reload()
    return {name: [(one.step, one.value) for one in seen.Scalars(name)] for name in seen.Tags()["scalars"]}


def test_tensorboard_has_the_numbers_of_the_rounds(tmp_path):
    result = run(rounds(3, eval_every=2), tmp_path / "run")
    expected: dict[str, list[tuple[int, float]]] = {}
    for row in result.rounds:
        for name, value in scalars(row):
            expected.setdefault(name, []).append((row["round"], pytest.approx(value, rel=1e-6)))
    found = shown(tmp_path / "run")
    assert found == expected
    assert [step for step, _ in found["accuracy_head"]] == [2, 3]
    assert {"loss/supervised", "loss/pull", "accuracy_prototype", "up_params", "seconds"} <= found.keys()


def test_what_is_not_finite_is_no_point_as_in_the_rounds(tmp_path):
    board = TensorBoard(tmp_path)
    board.started(None, None, (), ())
    board.round({"round": 1, "loss": {"pull": math.nan}, "up_params": 3})
    board.closed()
    assert shown(tmp_path) == {"up_params": [(1, 3.0)]}


def test_a_resume_that_is_refused_leaves_the_files_alone(tmp_path):
    run(rounds(2), tmp_path / "run")
    before = shown(tmp_path / "run")
    with pytest.raises(UserError, match=r"run\.rounds: got 1"):
        run(rounds(1), tmp_path / "run", resume=True)
    assert shown(tmp_path / "run") == before


def test_a_resumed_run_has_every_round_once_and_may_begin_or_leave_off(tmp_path):
    run(rounds(2), tmp_path / "run")
    run(rounds(4), tmp_path / "run", resume=True)
    assert [step for step, _ in shown(tmp_path / "run")["loss/supervised"]] == [1, 2, 3, 4]
    run(rounds(5, tensorboard=False), tmp_path / "run", resume=True)
    assert [step for step, _ in shown(tmp_path / "run")["loss/supervised"]] == [1, 2, 3, 4]
    plain = run({**TABLE, "run": {"rounds": 5}}, tmp_path / "plain")
    assert not (tmp_path / "plain" / "tensorboard").exists()
    assert plain.summary["loss"] == run(rounds(5), tmp_path / "run", resume=True).summary["loss"]
    assert [step for step, _ in shown(tmp_path / "run")["loss/supervised"]] == [1, 2, 3, 4, 5]


def test_without_tensorboard_a_run_says_so_before_it_begins(tmp_path, monkeypatch):
    def missing(name: str, *args: object, **more: object) -> object:
        if name == "tensorboard":
            raise ImportError(name)
        return imported(name, *args, **more)

    imported = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UserError, match=r"pip install 'protofed\[tensorboard\]'"):
        run(rounds(1), tmp_path / "run")
    assert not (tmp_path / "run").exists()
