"""Write the tables of docs/tables.md: four hospitals, a fifth one that joins later, and new patients.

    python scripts/hospitals.py [FOLDER]

The rows come from heart_disease.npz if $PROTOFED_DATA has it, otherwise they are generated. The tables have what tables
of real hospitals have: texts, missing values, different columns, different classes, and different formats.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd

COLUMNS = [
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach"),
    *("exang", "oldpeak", "slope", "ca", "thal", "num"),
]
TEXTS = {
    "sex": {0: "female", 1: "male"},
    "cp": {1: "typical angina", 2: "atypical angina", 3: "other pain", 4: "no pain"},
    "thal": {3: "normal", 6: "fixed defect", 7: "reversible defect"},
}
LEFT_OUT = {  # columns that a hospital does not have
    "cleveland": [],
    "hungarian": ["slope", "ca", "thal"],
    "switzerland": ["chol", "fbs", "ca"],
    "va": ["ca", "thal", "slope"],
}
CLASSES = {  # the numbers of `num` that a hospital has, as it calls them
    "cleveland": {0: "none", 1: "disease", 2: "severe", 3: "severe", 4: "severe"},
    "hungarian": {0: "none", 1: "disease"},
    "switzerland": {1: "disease", 2: "severe", 3: "severe", 4: "severe"},
    "va": {0: "none", 1: "disease", 2: "severe", 3: "severe", 4: "severe"},
}


def patients(name: str) -> pd.DataFrame:
    """The rows of a hospital: published ones, or generated ones with the same columns."""
    file = Path(os.environ.get("PROTOFED_DATA", "")) / "heart_disease.npz"
    if file.is_file():
        return pd.DataFrame(np.load(file)[name].astype(float), columns=COLUMNS)
    draw = np.random.RandomState(sorted(CLASSES).index(name))
    num = draw.choice(sorted(CLASSES[name]), 240)
    ill = np.minimum(num, 2) + draw.normal(scale=0.5, size=240)
    table = pd.DataFrame(
        {
            "age": np.round(52 + 4 * ill + draw.normal(scale=7, size=240)),
            "sex": draw.randint(0, 2, 240),
            "cp": np.clip(np.round(2 + ill + draw.normal(scale=0.6, size=240)), 1, 4),
            "trestbps": np.round(128 + 5 * ill + draw.normal(scale=15, size=240)),
            "chol": np.round(230 + 10 * ill + draw.normal(scale=45, size=240)),
            "fbs": draw.randint(0, 2, 240),
            "restecg": draw.randint(0, 3, 240),
            "thalach": np.round(160 - 14 * ill + draw.normal(scale=15, size=240)),
            "exang": (ill + draw.normal(scale=0.7, size=240) > 1).astype(int),
            "oldpeak": np.round(np.clip(ill + draw.normal(scale=0.6, size=240), 0, None), 1),
            "slope": np.clip(np.round(1 + 0.6 * ill), 1, 3),
            "ca": np.clip(np.round(ill + draw.normal(scale=0.5, size=240)), 0, 3),
            "thal": np.array([3, 6, 7])[np.clip(np.round(ill), 0, 2).astype(int)],
            "num": num,
        }
    ).astype(float)
    for column in ("trestbps", "chol", "thal"):
        table.loc[draw.rand(240) < 0.1, column] = np.nan
    return table


def hospital(name: str) -> pd.DataFrame:
    """The table of a hospital."""
    table = patients(name).drop(columns=LEFT_OUT[name])
    for column in set(TEXTS) & set(table.columns):
        table[column] = table[column].map(TEXTS[column])
    table["diagnosis"] = table.pop("num").map(CLASSES[name])
    return table.dropna(subset="diagnosis")


def main(folder: Path) -> None:
    """Write all tables."""
    (folder / "hospitals").mkdir(parents=True, exist_ok=True)
    for name in CLASSES:
        table = hospital(name)
        if name == "cleveland":  # every fifth of its patients belongs to the fifth hospital, with fewer columns
            fifth = table.iloc[::5][["age", "sex", "cp", "thalach", "oldpeak", "diagnosis"]]
            fifth.to_csv(folder / "fifth.csv", index=False)
            table = table.drop(index=fifth.index)
        if name == "hungarian":  # its last patients are new ones
            table.iloc[-8:].drop(columns="diagnosis").to_csv(folder / "new.csv", index=False)
            table = table.iloc[:-8]
        if name == "va":
            table.reset_index(drop=True).to_parquet(folder / "hospitals" / "va.parquet")
        else:
            table.to_csv(folder / "hospitals" / f"{name}.csv", index=False)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
