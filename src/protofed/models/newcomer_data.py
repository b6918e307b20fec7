"""The data of a newcomer: read from a file or given as arrays, in the form that the run's clients have theirs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from protofed.data.labels import ClassNames
from protofed.data.npz_files import own_arrays, read_npz
from protofed.data.table.client_tables import TableOptions, client_table
from protofed.data.table.files import is_table, read_table
from protofed.data.table.recipe import Recipe
from protofed.errors import UserError
from protofed.examples import Examples
from protofed.experiment.federation import Federation
from protofed.experiment.table_members import client_examples
from protofed.models.input_scale import scale_caution

if TYPE_CHECKING:
    from pathlib import Path

    from protofed.models.invitation import Invitation


class NewcomerData(NamedTuple):
    """A newcomer's examples."""

    train: Examples
    test: Examples
    labels: ClassNames  # of the run, and then the newcomer's new ones
    like: int | None  # the first client with inputs of the same shape; None if there is none, or none is at hand
    recipe: Recipe | None = None  # of tables

    def scale_caution(self, invitation: Invitation) -> str:
        """A caution if its inputs are normalised as the run's and have another scale; "" if they do not."""
        if self.like is None or invitation.inputs[self.like].input != self.train.input:
            return ""
        return scale_caution(invitation.inputs[self.like], self.train.x[self.train.index])


def read_newcomer(path: Path, invitation: Invitation | None = None) -> tuple[Any, tuple[Any, Any] | None]:
    """The newcomer's data, (x, y) from an .npz file or a DataFrame from a table, and its test set if there is one.

    `invitation` says which texts of a table mean a missing value, and which columns are categories.
    """
    if not path.exists():
        raise UserError(f"There is no file {path}. --data must be an .npz file with x and y, or a table.")
    if is_table(path):
        options = _table_options(invitation) if invitation else None
        return read_table(path, *((options.missing, options.categories) if options else ())), None
    return own_arrays(path, read_npz(path))


def newcomer_data(
    invitation: Invitation, data: Any, test: tuple[Any, Any] | None, new_classes: bool, name: str
) -> NewcomerData:
    """The newcomer's examples, normalised as the run says. `data`: a pair (x, y), or a DataFrame."""
    try:
        if hasattr(data, "columns"):
            return _from_table(invitation, data, new_classes, name)
        if not np.size(data[1]) and test is None:
            raise UserError("The newcomer has no examples. Give it some.")
        labels = _extended(invitation.labels, np.asarray(data[1]), new_classes)
        newcomer = Federation([data], None if test is None else [test], labels, name=name)
    except UserError as problem:
        hint = " To add new classes for this client, use --new-classes." if "there is no class" in str(problem) else ""
        raise UserError(f"{str(problem).replace('data[0]', 'The newcomer', 1)}{hint}") from problem
    train, held_out = newcomer.train[0], newcomer.test[0]
    like = _client_with_same_inputs(invitation.inputs, train)
    if invitation.inputs:
        train, held_out = _normalised(invitation.inputs, like or 0, train, held_out)
    elif invitation.own_statistics:
        train = train.by_own_statistics()
        held_out = held_out.normalised_like(train)
    return NewcomerData(train, held_out, labels, like)


def _extended(labels: ClassNames, y: np.ndarray, new_classes: bool) -> ClassNames:
    """The classes of the run, and after them the newcomer's new ones if it may have any."""
    if not new_classes or (y.dtype.kind != "U" and all(isinstance(label, str) for label in labels)):
        return labels
    return (*labels, *(value for value in np.unique(y).tolist() if value not in labels))


def _table_options(invitation: Invitation) -> TableOptions | None:
    """What the run says about a newcomer's table: columns that are categories at all its clients are so here, too."""
    if invitation.table is None:
        return None
    common = [step.name for step in invitation.steps if step.kind == "category"]
    categories = (*invitation.table.categories, *common)
    return replace(invitation.table, client="", min_classes=1, categories=categories)


def _from_table(invitation: Invitation, frame: Any, new_classes: bool, name: str) -> NewcomerData:
    """A newcomer's rows, with a recipe that is learned from its training rows."""
    options = _table_options(invitation)
    if options is None:
        raise UserError("The run has arrays, not tables. Give the newcomer's data as an .npz file with x and y.")
    if options.test not in frame.columns:
        options = replace(options, test="")
    table = client_table(name, name, frame, options)
    labels = _extended(invitation.labels, table.labels, new_classes)
    found = client_examples(table, options, labels, invitation.steps)
    like = _client_with_same_inputs(invitation.inputs, found.train)
    return NewcomerData(found.train, found.test, labels, like, replace(found.recipe, missing=options.missing))


def _client_with_same_inputs(others: tuple[Examples, ...], newcomer: Examples) -> int | None:
    """The first client with inputs of the newcomer's shape, ignoring dimensions of size 1; None if there is none."""

    def sides(examples: Examples) -> tuple[int, ...]:
        return tuple(side for side in examples.shape if side != 1)

    return next((client for client, other in enumerate(others) if sides(other) == sides(newcomer)), None)


def _normalised(
    others: tuple[Examples, ...], client: int, train: Examples, test: Examples
) -> tuple[Examples, Examples]:
    """The newcomer's examples, normalised as those of `client`, or by their own statistics if every client does so."""
    train, test = _shaped_like(others[client], train), _shaped_like(others[client], test)
    if any(other.shape == train.shape and other.input != others[client].input for other in others):
        train = train.by_own_statistics()
        test = test.normalised_like(train)
    return train, test


def _shaped_like(other: Examples, newcomer: Examples) -> Examples:
    """The newcomer's examples with the shape and the normalisation of another client's examples.

    If the other client does not normalise its inputs, another shape is accepted and kept.
    """
    if other.shape != newcomer.shape and (other.scale, other.mean, other.std) == (1.0, 0.0, 1.0):
        return newcomer
    try:
        x = other.checked_inputs(newcomer.x)
        return replace(other, x=x, y=newcomer.y, index=newcomer.index, mask=newcomer.mask)
    except UserError as problem:
        raise UserError(f"The newcomer's data do not fit the data of the run: {problem}") from problem
