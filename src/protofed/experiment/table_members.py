"""The clients of an experiment on tables: their training, test and validation rows, recipes and nets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from protofed.data.labels import ClassNames, class_numbers
from protofed.data.partitions.base import Holding, stratified_share
from protofed.data.table.client_tables import ClientTable, TableOptions, all_classes, client_tables, read_frames
from protofed.data.table.recipe import ColumnRecipe, Recipe, common_recipes, fit_recipe, scaled_by_constants
from protofed.draws import random_state
from protofed.errors import UserError, did_you_mean
from protofed.examples import Examples
from protofed.experiment.member_nets import client_nets
from protofed.experiment.members import Members

if TYPE_CHECKING:
    from protofed.experiment.config import Config


def members_of_files(config: Config) -> Members:
    """The clients of the tables in `data.root`."""
    data, options = config.data, config.data.table_options()
    frames = read_frames(data.root, options)
    if unknown := [name for name in data.domains if name not in frames]:
        raise UserError(f"data.domains: there is no client {unknown[0]!r}. {did_you_mean(unknown[0], frames)}")
    names = [name for name in frames if not data.domains or name in data.domains]
    if data.clients > len(names):
        raise UserError(
            f"data.clients: got {data.clients}, but there are {len(names)} tables. Use {len(names)} or fewer."
        )
    names = names[: data.clients or len(names)]
    tables = client_tables({name: frames[name] for name in names}, options)
    return members_of_tables(config, tables, options, Path(data.root).expanduser().resolve().stem, all_classes(tables))


def members_of_tables(
    config: Config,
    tables: Sequence[ClientTable],
    options: TableOptions,
    name: str,
    labels: ClassNames,
    given_nets: Sequence[Any] | None = None,
) -> Members:
    """The clients with these tables. Recipes are learned from training rows alone.

    `given_nets`: the nets that were given in Python; None: they are the nets of the experiment.
    """
    numbers = [class_numbers(labels, table.labels, table.origin) for table in tables]
    parts = tuple(
        divide_rows(client, table, y, config.eval.validation, config.run.seed)
        for client, (table, y) in enumerate(zip(tables, numbers, strict=True))
    )
    recipes = learn_recipes(tables, parts, options)
    examples = [
        Examples.of(recipe.transform(table.frame, table.origin), y)
        for recipe, table, y in zip(recipes, tables, numbers, strict=True)
    ]
    pairs = list(zip(examples, parts, strict=True))
    train = tuple(rows.subset(part.train) for rows, part in pairs)
    test = tuple(rows.subset(part.test) for rows, part in pairs)
    validation = tuple(rows.subset(part.validation) for rows, part in pairs) if config.eval.validation else ()
    nets, notes = client_nets(config, train, len(labels), given_nets)
    return Members(
        name,
        labels,
        nets,
        train,
        test,
        test,
        parts,
        validation,
        notes=(*notes, *_notes(tables, recipes, options)),
        names=tuple(table.name for table in tables),
        recipes=tuple(recipes),
    )


def learn_recipes(tables: Sequence[ClientTable], parts: Sequence[Holding], options: TableOptions) -> list[Recipe]:
    """Each client's recipe, learned from its training rows, and scaled as the experiment says."""
    frames = [table.frame.iloc[part.train] for table, part in zip(tables, parts, strict=True)]
    recipes = [fit_recipe(frame, table.kinds, options.target) for table, frame in zip(tables, frames, strict=True)]
    if options.scaling == "federated":
        return common_recipes(recipes, frames)
    if options.scaling != "client":
        return [scaled_by_constants(recipe, options.scaling) for recipe in recipes]
    return recipes


class ClientExamples(NamedTuple):
    """The examples of one client that is not part of `Members`: one that joins a run, or that is deployed."""

    labels: ClassNames  # of the class numbers
    train: Examples
    test: Examples
    validation: Examples
    recipe: Recipe


def client_examples(
    table: ClientTable,
    options: TableOptions,
    labels: ClassNames | None = None,
    common: Sequence[ColumnRecipe] = (),
    number: int = 0,
    validation: float = 0.0,
    seed: int = 0,
) -> ClientExamples:
    """The examples of one client's table, divided as `members_of_tables` divides those of client `number`.

    `labels`: the classes of the federation; None: the client's own. `common`: columns that are scaled as other clients
    scale them; the client learns the scales of its other columns from its training rows.
    """
    labels = all_classes([table]) if labels is None else labels
    y = class_numbers(labels, table.labels, table.origin)
    part = divide_rows(number, table, y, validation, seed)
    recipe = fit_recipe(table.frame.iloc[part.train], table.kinds, options.target)
    scales = {step.name: step for step in common}
    steps = (replace(scales[step.name], fill=step.fill) if step.name in scales else step for step in recipe.steps)
    recipe = replace(recipe, steps=tuple(steps))
    if isinstance(options.scaling, dict):
        recipe = scaled_by_constants(recipe, options.scaling)
    rows = Examples.of(recipe.transform(table.frame, table.origin), y)
    train, test, held_out = (rows.subset(positions) for positions in (part.train, part.test, part.validation))
    return ClientExamples(labels, train, test, held_out, recipe)


def divide_rows(client: int, table: ClientTable, y: np.ndarray, validation: float, seed: int) -> Holding:
    """A client's training, test and validation rows. Without a column that says so, a fifth of each class is tested."""
    is_test = table.is_test
    if is_test is None:
        is_test = stratified_share(y, 0.2, random_state("held out", client))
    train, test = np.flatnonzero(~is_test), np.flatnonzero(is_test)
    if not len(train):
        raise UserError(f"{table.origin}: all its rows are test rows. Mark some as train.")
    part = Holding(train, test, own=True)
    if not validation:
        return part
    held_out = stratified_share(y[train], validation, random_state(seed, "validation", client))
    return part._replace(train=train[~held_out], validation=train[held_out])


def _alike(what: str, by_client: Mapping[str, Iterable[str]]) -> list[str]:
    """A line for all names of clients that differ only in capital letters or blanks."""
    alike: dict[str, dict[str, str]] = {}  # by the name without case and blanks, the spellings and who has them
    for client, names in by_client.items():
        for name in names:
            alike.setdefault(" ".join(name.casefold().split()), {}).setdefault(name, client)
    return [
        f"careful: the {what} {' and '.join(f'{name!r} ({client})' for name, client in clients.items())} differ only "
        f"in capital letters or blanks, and are taken for different {what}"
        for clients in alike.values()
        if len(clients) > 1
    ]


def _notes(tables: Sequence[ClientTable], recipes: Sequence[Recipe], options: TableOptions) -> list[str]:
    """What a user should know of the tables when a run starts."""
    sets = [set(table.frame.columns) for table in tables]
    common, widths = set.intersection(*sets), sorted({len(columns) for columns in sets})
    span = f"{widths[0]} to {widths[-1]}" if len(widths) > 1 else f"{widths[0]}"
    notes = [
        f"tables of {', '.join(table.name for table in tables)}: {span} columns, {len(common)} of them common to all"
    ]
    notes += _alike("classes", {table.name: dict.fromkeys(map(str, table.labels)) for table in tables})
    notes += _alike("columns", {table.name: dict.fromkeys(map(str, table.frame.columns)) for table in tables})
    if options.scaling == "federated":
        numbers = [sum(step.kind == "number" for step in recipe.steps) for recipe in recipes]
        categories = [sum(len(step.values) for step in recipe.steps) for recipe in recipes]
        notes.append(
            f"federated scaling: before the first round the clients sent {3 * sum(numbers):,} numbers (a count, a mean "
            f"and a sum of squared deviations per column), and each received up to {2 * max(numbers):,} numbers and "
            f"the names of {max(categories):,} categories"
        )
    for table in tables:
        for name, column in table.columns.items():
            if column.kind == "category" and column.different > max(50, len(table.frame) // 2):
                notes.append(
                    f'{table.origin}: the column "{name}" has {column.different:,} different texts in '
                    f"{len(table.frame):,} rows; an identifier belongs in data.drop"
                )
    return notes
