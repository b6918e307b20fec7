"""A recipe: how the columns of a client's table become the numbers that its net gets.

scikit-learn's transformers learn it from training rows: SimpleImputer the medians, StandardScaler the scales,
OneHotEncoder the categories. What they learned is kept as JSON, so that new rows are treated in exactly the same way
without scikit-learn, and nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from protofed.data.table.columns import NUMBER, ColumnKind, check_cells
from protofed.data.table.files import require_pandas
from protofed.errors import UserError, did_you_mean

Scaling = Literal["client", "federated"] | dict[str, tuple[float, float]]
"""How numbers are scaled: by a client's own training rows, by all clients', or by a mean and deviation per column."""
RARE = 3
"""A category with fewer training rows than this shares the input `other` with unknown categories."""
_LARGEST_INPUT = float(np.finfo(np.float32).max)
"""The largest number that inputs can have."""
_EXACT = 16
"""Numbers of fewer characters are stored exactly as floats if they are whole."""


@dataclass(frozen=True)
class ColumnRecipe:
    """What is done with one column."""

    name: str
    kind: ColumnKind
    indicator: bool = False  # whether a further input is 1 where the value is missing
    fill: float = 0.0  # numbers: replaces a missing value
    mean: float = 0.0
    std: float = 1.0
    values: tuple[str, ...] = ()  # categories: the values that have an input of their own

    def inputs(self) -> list[str]:
        """The names of the inputs that the column becomes."""
        names = [self.name] if self.kind == "number" else [f"{self.name}={value}" for value in (*self.values, "other")]
        return [*names, f"{self.name} missing"] if self.indicator else names


@dataclass(frozen=True)
class Recipe:
    """The steps of all columns of a client. `target` is the name of the column with the labels, which is not used.

    `missing`: further texts that mean a missing value in a CSV file. A model that is used without its experiment needs
    them to read new rows.
    """

    steps: tuple[ColumnRecipe, ...]
    target: str = ""
    missing: tuple[str, ...] = ()

    @property
    def inputs(self) -> list[str]:
        """The names of all inputs of the net, in order."""
        return [name for step in self.steps for name in step.inputs()]

    @property
    def categories(self) -> tuple[str, ...]:
        """The names of the columns that are categories."""
        return tuple(step.name for step in self.steps if step.kind == "category")

    def json(self) -> dict[str, Any]:
        """The recipe for a JSON file; it has the texts that mean a missing value only if there are any."""
        texts = {"missing": list(self.missing)} if self.missing else {}
        return {"target": self.target, **texts, "columns": [asdict(step) for step in self.steps]}

    @classmethod
    def of_json(cls, content: Mapping[str, Any]) -> Recipe:
        """The inverse of `json`."""
        steps = [ColumnRecipe(**{**column, "values": tuple(column["values"])}) for column in content["columns"]]
        return cls(tuple(steps), content["target"], tuple(content.get("missing", ())))

    def transform(self, frame: Any, owner: str) -> np.ndarray:
        """The inputs [n, width] of the rows of a DataFrame. `owner` begins the error messages."""
        self._check_columns(frame, owner)
        columns: list[np.ndarray] = []
        for step in self.steps:
            is_missing = frame[step.name].isna().to_numpy()
            if step.kind == "number":
                raw = numbers_of(frame[step.name], f'{owner}: the column "{step.name}"')
                columns.append((np.where(is_missing, step.fill, raw) - step.mean) / step.std)
            else:
                positions = _positions(texts_of(frame[step.name]), step.values)
                columns += [(positions == number) & ~is_missing for number in range(len(step.values))]
                columns.append((positions < 0) & ~is_missing)
            if step.indicator:
                columns.append(is_missing)
        return np.column_stack(columns).astype(np.float32)

    def _check_columns(self, frame: Any, owner: str) -> None:
        """An error if a column is missing, or if a row has no value at all."""
        names = [step.name for step in self.steps]
        if absent := [name for name in names if name not in frame.columns]:
            raise UserError(
                f'{owner} has no column "{absent[0]}", which this client\'s model needs. '
                f"{did_you_mean(absent[0], map(str, frame.columns))}"
            )
        empty = frame[names].isna().all(axis=1).to_numpy()
        if empty.any():
            rows = ", ".join(map(str, (np.flatnonzero(empty) + 1)[:5]))
            raise UserError(
                f"{owner}: {empty.sum():,} of its {len(frame):,} rows have no value in any column that is used (row "
                f"{rows}). Nothing can be learned from them or said about them: delete them."
            )


def fit_recipe(frame: Any, kinds: Mapping[str, ColumnKind], target: str) -> Recipe:
    """The recipe that scikit-learn's transformers learn from the training rows of one client."""
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    is_missing = {name: frame[name].isna().to_numpy() for name in kinds}
    steps = {name: ColumnRecipe(name, kind, bool(is_missing[name].any())) for name, kind in kinds.items()}
    names = [name for name, kind in kinds.items() if kind == "number"]
    if names:
        x = np.column_stack([numbers_of(frame[name], name) for name in names])
        imputer = SimpleImputer(strategy="median", keep_empty_features=True).fit(x)
        scaler = StandardScaler().fit(x)  # it leaves missing values out
        for name, fill, mean, std in zip(names, imputer.statistics_, scaler.mean_, scaler.scale_, strict=True):
            mean, std = (0.0, 1.0) if np.isnan(mean) else (mean, std)
            steps[name] = replace(steps[name], fill=float(fill), mean=float(mean), std=float(std))
    for name, kind in kinds.items():
        texts = texts_of(frame[name])[~is_missing[name]] if kind == "category" else np.zeros(0)
        if len(texts):
            codes, different = require_pandas().factorize(texts, sort=True)  # whole numbers are encoded faster
            encoder = OneHotEncoder(min_frequency=RARE, handle_unknown="infrequent_if_exist").fit(codes[:, None])
            rare = encoder.infrequent_categories_[0]
            frequent = np.setdiff1d(encoder.categories_[0], [] if rare is None else rare)
            steps[name] = replace(steps[name], values=tuple(different[frequent].tolist()))
    return Recipe(tuple(steps.values()), target)


def common_recipes(recipes: Sequence[Recipe], frames: Sequence[Any]) -> list[Recipe]:
    """Federated scaling: recipes in which each column is scaled by the training rows of all clients that have it.

    A client sends, once, three numbers per column of numbers: how many values it has, their mean and the sum of their
    squared deviations from it; and the names of its categories. It gets back means, deviations, and all categories.
    Medians stay its own.
    """
    moments: dict[str, list[ColumnMoments]] = {}
    values: dict[str, set[str]] = {}
    indicators: set[str] = set()
    for recipe, frame in zip(recipes, frames, strict=True):
        for step in recipe.steps:
            if step.kind == "number":
                moments.setdefault(step.name, []).append(ColumnMoments.of(numbers_of(frame[step.name], step.name)))
            values[step.name] = values.get(step.name, set()) | set(step.values)
            indicators |= {step.name} if step.indicator else set()

    def common(step: ColumnRecipe) -> ColumnRecipe:
        step = replace(step, indicator=step.name in indicators, values=tuple(sorted(values[step.name])))
        if step.kind == "category":
            return step
        mean, std = mean_and_deviation(moments[step.name])
        return replace(step, mean=mean, std=std)

    return [replace(recipe, steps=tuple(map(common, recipe.steps))) for recipe in recipes]


def shared_recipe(recipes: Sequence[Recipe]) -> Recipe | None:
    """The recipe for rows that belong to no particular client; None if clients scale or encode columns differently.

    A missing number is replaced by the mean of the clients' medians.
    """
    without_fill = {replace(one, steps=tuple(replace(step, fill=0.0) for step in one.steps)) for one in recipes}
    if len(without_fill) != 1:
        return None
    columns = zip(*(recipe.steps for recipe in recipes), strict=True)
    steps = tuple(replace(same[0], fill=float(np.mean([step.fill for step in same]))) for same in columns)
    return replace(recipes[0], steps=steps)


class ColumnMoments(NamedTuple):
    """What a client sends of a column for federated scaling.

    Sums of squares around 0 would lose the deviation of a column whose mean is large, such as one of dates.
    """

    number: int  # of values
    mean: float
    squares: float  # the sum of the squared deviations from the mean

    @classmethod
    def of(cls, values: np.ndarray) -> ColumnMoments:
        """The moments of a client's values; missing values are left out.

        >>> ColumnMoments.of(np.array([1.0, np.nan, 3.0]))
        ColumnMoments(number=2, mean=2.0, squares=2.0)
        """
        present = values[~np.isnan(values)]
        mean = float(present.mean()) if len(present) else 0.0
        return cls(len(present), mean, float(np.square(present - mean).sum()))


def mean_and_deviation(clients: Sequence[ColumnMoments]) -> tuple[float, float]:
    """The mean and standard deviation of a column of all clients; (0, 1) without values.

    The deviation of a column with equal values is 1, up to the rounding of their sum.

    >>> mean_and_deviation([ColumnMoments(1, 1.0, 0.0), ColumnMoments(3, 5.0, 8.0)])
    (4.0, 2.23606797749979)
    """
    counts, means, squares = (np.array(part, float) for part in zip(*clients, strict=True))
    count = counts.sum()
    if not count:
        return 0.0, 1.0
    mean = float(means[0] + (counts * (means - means[0])).sum() / count)
    variance = float((squares.sum() + (counts * np.square(means - mean)).sum()) / count)
    rounding = count * (np.finfo(float).eps * np.abs(means).max()) ** 2  # of the mean of equal values
    return mean, variance**0.5 if variance > rounding else 1.0


def scaled_by_constants(recipe: Recipe, constants: Mapping[str, tuple[float, float]]) -> Recipe:
    """The recipe with a given mean and deviation for each column of numbers."""
    columns = [step.name for step in recipe.steps if step.kind == "number"]
    if absent := [name for name in columns if name not in constants]:
        raise UserError(
            f'data.scaling: it has no mean and deviation for the column "{absent[0]}". Give {absent[0]} = [mean, '
            "deviation], or name the column in data.drop."
        )
    if wrong := [name for name in constants if constants[name][1] <= 0]:
        raise UserError(f"data.scaling: the deviation of {wrong[0]} is {constants[wrong[0]][1]:g}; must be above 0.")
    steps = [
        replace(step, mean=float(constants[step.name][0]), std=float(constants[step.name][1]))
        if step.kind == "number"
        else step
        for step in recipe.steps
    ]
    return replace(recipe, steps=tuple(steps))


def numbers_of(values: Any, where: str) -> np.ndarray:
    """A column as numbers [n], NaN where a value is missing. `where` begins the error message."""
    pandas = require_pandas()
    try:
        numbers = pandas.to_numeric(values.astype(object) if values.dtype == bool else values)
        raw = numbers.to_numpy(np.float64, na_value=np.nan)
    except (ValueError, TypeError) as problem:
        text = next((value for value in values.dropna() if _is_no_number(value)), "?")
        raise UserError(f"{where} has the text {text!r}, but this client's rows have numbers there.") from problem
    if np.isinf(raw).any():
        raise UserError(f"{where} has {np.isinf(raw).sum():,} infinite values. Replace them, or delete those rows.")
    if len(too_large := raw[np.abs(raw) > _LARGEST_INPUT]):
        raise UserError(
            f"{where} has values larger than {_LARGEST_INPUT:.2g}, such as {too_large[0]:g}. Give it in another unit, "
            "or delete those rows."
        )
    return np.asarray(raw)


def _is_no_number(value: Any) -> bool:
    try:
        float(value)
    except (ValueError, TypeError):
        return True
    return False


def texts_of(values: Any) -> np.ndarray:
    """A column as texts [n]; a whole number is written without a point. Missing values are texts, too."""
    check_cells(values, f'The column "{getattr(values, "name", "")}"')
    codes, different = require_pandas().factorize(np.asarray(values))
    texts = [*map(_text, different.tolist()), "missing"]  # the code of a missing value is -1
    return np.asarray(np.array(texts, dtype=object)[codes])


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _positions(texts: np.ndarray, values: Sequence[str]) -> np.ndarray:
    """The position of each text [n] in the values; -1 for another one.

    A text that is not among them is compared as a number or as true or false, because a file whose column has nothing
    else was read as such: 1 is 1.0 and 01, and TRUE is True.

    >>> _positions(np.array(["01", "1.0", "TRUE", "x"], dtype=object), ["1", "01", "True"]).tolist()
    [1, 0, 2, -1]
    """
    codes, different = require_pandas().factorize(texts)
    exact = {value: number for number, value in enumerate(values)}
    alike = {_in_one_writing(value): number for number, value in reversed(list(enumerate(values)))}
    found = [exact.get(text, alike.get(_in_one_writing(text), -1)) for text in different]
    return np.asarray(np.array(found, dtype=np.int64)[codes])


def _in_one_writing(text: str) -> str:
    """A number in one way of writing it, and the same for true and false; other texts as they are."""
    if text.lower() in ("true", "false"):
        return text.lower()
    return _text(float(text)) if NUMBER.fullmatch(text.strip()) and len(text) < _EXACT else text
