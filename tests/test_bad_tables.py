"""Wrong tables: what people get wrong, the exact message, exit code 2, and nothing left behind."""

from __future__ import annotations

import sys
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from protofed.data.table.client_tables import (
    TableOptions,
    client_table,
    client_tables,
    read_client_table,
    read_frames,
)
from protofed.data.table.columns import Column, find_columns
from protofed.data.table.files import read_table
from protofed.data.table.recipe import fit_recipe
from protofed.deploy.new_deployment import client_table_files
from protofed.errors import UserError
from protofed.experiment.config import Config
from test_cli import protofed as command  # noqa: F401

GOOD = "age,sex,outcome\n" + "".join(
    f"{50 + number % 10},{'fm'[number % 2]},{'no' if number < 8 else 'yes'}\n" for number in range(16)
)


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


WRONG = {
    "no target": (changed("outcome", "Outcome "), 'data.target: bad.csv has no column "outcome". Did you mean "Outcome"? Known: Outcome, age, sex.'),
    "text for a number": (changed("\n5", "\nx5"), 'The column "age" has numbers at good.csv (like 50, 51, 52), but text at bad.csv (like x50, x51, x52). Use the same kind at all clients, or name it in data.categories or data.drop.'),
    "empty": ("", "sites/bad.csv is empty. Give a table with a header and rows."),
    "no rows": ("age,sex,outcome\n", "sites/bad.csv has the columns age, sex, outcome, but no rows. Add rows."),
    "one class": (changed("yes", "no"), 'bad.csv: the target "outcome" is no in all 16 rows: a client needs 2 classes. Leave this client out, or set data.min_classes = 1.'),
    "a column without values": (GOOD.replace(",f,", ",,").replace(",m,", ",,"), 'bad.csv: the column "sex" has only missing values. Delete it from this table, or name it in data.drop (as "CLIENT:sex" for one client).'),
    "no label": (changed("54,f,no", "54,f,"), 'bad.csv: the target "outcome" has no value in 1 of 16 rows (row 5). Delete these rows.'),
    "dates": (changed("\n5", "\n2024-01-0"), 'bad.csv: the column "age" has dates, like "2024-01-00". Make numbers of them, such as an age or a year, or name the column in data.drop.'),
    "the same name twice": (changed("age,sex", "sex,sex"), 'sites/bad.csv has the column "sex" 2 times. Rename or delete one.'),
    "no name": (changed("age,sex", "age,"), "sites/bad.csv: column 2 has no name in the header. Name it, or delete it."),
    "decimal commas": (GOOD.replace(",", ";").replace("\n5", "\n5,"), 'bad.csv: the column "age" has numbers with a decimal comma, like "5,0". Write a point instead.'),
    "thousands": (GOOD.replace(",", ";").replace("\n5", "\n1,00"), 'bad.csv: the column "age" has numbers with thousands separators, like "1,000". Write them without, and with a decimal point.'),
    "a mark for missing": (changed("\n50,", "\n?,"), "bad.csv: the column \"age\" has numbers, but also '?'. Leave cells without a value empty, name such texts in data.missing, or name the column in data.categories."),
    "infinite": (changed("\n50,", "\ninf,"), 'bad.csv: the column "age" has 2 infinite values. Replace them, or delete those rows.'),
    "a line that is too long": (changed("54,f,no", "54,f,no,no"), "sites/bad.csv cannot be read as CSV: Error tokenizing data. C error: Expected 3 fields in line 6, saw 4. Correct that line."),
    "Excel": (b"PK\x03\x04 and more", "sites/bad.csv is an Excel or zip file, not text. Save it as CSV, or give it the right ending."),
    "Parquet": (b"PAR1 and more", "sites/bad.csv is a Parquet file, not text. Save it as CSV, or give it the right ending."),
    "Windows": (changed("age", "Größe").encode("cp1252"), "sites/bad.csv is not UTF-8 text: byte 0xf6 at position 2 (files of older Windows programs have Windows-1252). Save it as UTF-8."),
    "UTF-16": (GOOD.encode("utf-16"), "sites/bad.csv is UTF-16 text. Save it as UTF-8."),
    "numbers to predict": (changed("no", "0.5").replace("yes", "1.5"), 'bad.csv: the target "outcome" has numbers like 0.5 and 1.5; must be classes. Make classes of it.'),
    "other labels": (changed("no", "0").replace("yes", "1"), "The target has names in good.csv (like no), but not in bad.csv (like 0). Use the same kind for all."),
    "a row without values": (changed("54,f,no", ",,no"), "bad.csv: 1 of its 16 rows have no value in any column that is used (row 5). Nothing can be learned from them or said about them: delete them."),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(WRONG))
def test_a_wrong_table_is_said(case, command, tmp_path):  # noqa: F811
    content, message = WRONG[case]
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "good.csv").write_text(GOOD)
    (tmp_path / "sites" / "bad.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    words = ("data.name=table", "data.root=sites", "data.target=outcome")
    code, out, err = command("run", *(part for word in words for part in ("--set", word)), "--out", "run")
    assert err == f"protofed: {message}\n"
    assert (code, out) == (2, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sites"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data.root=sites"], "The experiment has a problem:\n  - data.target: missing. Give the name of the column with the labels"),
        (["data.root=sites", "data.target=outcome", "partition.name=iid"], "The experiment has a problem:\n  - [partition]: tables are divided among clients already. Leave the section out"),
        (["data.root=sites", "data.target=outcome", "data.limit=5"], "The experiment has a problem:\n  - data.limit: does not apply to tables. Leave it out"),
        (["data.target=outcome"], "data.root: it is empty; must be a folder with one table per client, or one table."),
        (["data.root=no", "data.target=outcome"], "data.root: there is no no; must be a folder with one table per client, or one table."),
        (["data.root=nothing", "data.target=outcome"], "nothing has no tables (.csv, .tsv, .parquet, .feather, .arrow). Set data.root to the folder that has them."),
        (["data.root=sites/a.csv", "data.target=outcome"], "data.client: sites/a.csv is one table, so a column must say which client each row belongs to. Give the name of that column, or set data.root to a folder with one table per client."),
        (["data.root=sites/a.csv", "data.target=outcome", "data.client=site"], 'data.client: a.csv has no column "site". Known: age, outcome, sex.'),
        (["data.root=sites", "data.target=outcome", "data.client=sex"], 'data.client: got "sex", but sites is a folder, where each file is a client. Leave data.client out.'),
        (["data.root=sites", "data.target=outcome", 'data.drop=["agee"]'], 'data.drop: no table has a column "agee". Did you mean "age"? Known: age, sex.'),
        (["data.root=sites", "data.target=outcome", "data.clients=3"], "data.clients: got 3, but there are 2 tables. Use 2 or fewer."),
        (["data.root=sites", "data.target=outcome", "data.scaling=mean"], 'The experiment has a problem:\n  - data.scaling: got "mean"; must be "client", "federated", or a table like {age = [50, 10]} with a mean and a deviation'),
        (["data.root=sites", "data.target=outcome", "data.test=sex"], "a.csv: the column \"sex\" has 'f'; must be test or train, true or false, 1 or 0."),
    ],
)  # fmt: skip
def test_a_wrong_experiment_on_tables_is_said(words, message, command, tmp_path):  # noqa: F811
    for name in ("sites", "nothing"):
        (tmp_path / name).mkdir()
    for name in ("a.csv", "b.csv"):
        (tmp_path / "sites" / name).write_text(GOOD)
    sets = [part for word in ("data.name=table", *words) for part in ("--set", word)]
    code, _, err = command("run", *sets, "--out", "run")
    assert err == f"protofed: {message}\n"
    assert code == 2
    assert not (tmp_path / "run").exists()


def test_keys_of_tables_are_refused_elsewhere(command):  # noqa: F811
    code, _, err = command("run", "--set", "data.target=y")
    assert code == 2
    assert 'data.target: applies to tables only. Set data.name = "table", or leave it out' in err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("age\n50\n", 'The input has no column "sex", which this client\'s model needs. Known: age.'),
        ("age,sex\nold,f\n", "The input: the column \"age\" has the text 'old', but this client's rows have numbers there."),
        ("age,sex\n,\n", "The input: 1 of its 1 rows have no value in any column that is used (row 1). Nothing can be learned from them or said about them: delete them."),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_predicted_are_said(content, message, command, tmp_path):  # noqa: F811
    import protofed

    frames = {"a": pd.read_csv(pd.io.common.StringIO(GOOD))}
    protofed.Federation(frames, target="outcome").run({"run": {"rounds": 1}}, tmp_path / "run")
    (tmp_path / "new.csv").write_text(content)
    code, _, err = command("predict", "run", "--client", "a", "--input", "new.csv", "--out", "answers.csv")
    assert (code, err) == (2, f"protofed: {message}\n")
    assert not (tmp_path / "answers.csv").exists()
    with pytest.raises(
        UserError, match=r"This model takes rows of a table. Give a DataFrame \(or a CSV file\) with the"
    ):
        protofed.Result.load(tmp_path / "run").predict([[1.0, 2.0]], "a")


def test_without_pandas_the_extra_is_named(monkeypatch, tmp_path):
    (tmp_path / "a.csv").write_text(GOOD)
    for package in ("pyarrow", "pandas"):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(UserError) as caught:
            read_table(tmp_path / "a.csv")
        assert str(caught.value) == f"Tables need the package {package}. Run pip install 'protofed[tables]'."


def test_damaged_and_misnamed_files_are_said(tmp_path):
    pd.DataFrame({"a": [1, 2]}).to_parquet(tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "half.parquet").write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"half.parquet is a damaged Parquet file: .*Get the file again"):
        read_table(tmp_path / "half.parquet")
    (tmp_path / "b.feather").write_bytes(content)
    with pytest.raises(
        UserError, match=r"b.feather is not a Feather file: it begins like a Parquet file. Give it the ri"
    ):
        read_table(tmp_path / "b.feather")
    (tmp_path / "c.parquet").write_text(GOOD)
    with pytest.raises(
        UserError, match=r"c.parquet is not a Parquet file: it begins like other data. Give it the right "
    ):
        read_table(tmp_path / "c.parquet")


def test_marks_for_missing_values_and_separators_are_understood(tmp_path):
    (tmp_path / "a.csv").write_text("\ufeffage; name \n?;x\n5;y\n", encoding="utf-8")
    frame = read_table(tmp_path / "a.csv", ["?"])
    assert list(frame) == ["age", "name"]
    assert frame["age"].isna().tolist() == [True, False]


def test_decimals_are_numbers_as_columns_and_as_targets(tmp_path):
    amounts = [None if number == 3 else Decimal(number) / 4 for number in range(12)]
    frame = pd.DataFrame({"amount": amounts, "y": [Decimal(number % 2) for number in range(12)]})
    frame.to_parquet(tmp_path / "a.parquet")
    table = read_client_table(tmp_path / "a.parquet", TableOptions("y"))
    assert table.columns["amount"] == Column("number", "0.0, 0.25, 0.5", 1, 0)
    assert table.labels.tolist() == [0, 1] * 6
    step = fit_recipe(table.frame, table.kinds, "y").steps[0]
    assert step.mean == pytest.approx((66 - 3) / 11 / 4)
    with pytest.raises(UserError, match=r't: the column "a" has 1 infinite values'):
        find_columns(pd.DataFrame({"a": [Decimal("inf"), Decimal(1)]}), "t")


def test_texts_that_are_all_numbers_are_not_silently_categories(tmp_path):
    (tmp_path / "a.csv").write_text("long,y\n" + "".join(f"12345678901234567890{n},{n % 2}\n" for n in range(8)))
    message = (
        'a.csv: the column "long" has numbers that are stored as text or have more than 64 bits, like '
        '"123456789012345678900". Store them as numbers of at most 64 bits, or name the column in data.categories or '
        "data.drop."
    )
    with pytest.raises(UserError) as caught:
        read_client_table(tmp_path / "a.csv", TableOptions("y"))
    assert str(caught.value) == message
    assert read_client_table(tmp_path / "a.csv", TableOptions("y", categories=("long",))).kinds == {"long": "category"}
    codes = pd.DataFrame({"code": pd.Categorical(["01", "02"])})  # its type says that these are categories
    assert find_columns(codes, "t")["code"].kind == "category"


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0.0, np.inf], "has the class inf"),
        ([0.0, 1e30], "has the class 1e+30"),
        ([-(2.0**53), 1.0], "has the class -9.0072e+15"),
        (np.array([0, 2**63], np.uint64), "has the class 9.22337e+18"),
    ],
)
def test_targets_that_are_no_exact_whole_numbers_are_refused(labels, message):
    frame = pd.DataFrame({"x": [1.0, 2.0], "y": labels})
    with pytest.raises(UserError) as caught:
        client_table("a", "a.csv", frame, TableOptions("y"))
    assert str(caught.value) == (
        f'a.csv: the target "y" {message}; a class must be a name, or a whole number that is stored exactly. Write '
        "names, or smaller whole numbers."
    )


@pytest.mark.parametrize("dtype", ["int64", "Int64"])
def test_large_whole_numbers_stay_different_classes(dtype):
    classes = [2**53, 2**53 + 1]
    frame = pd.DataFrame({"x": [1.0, 2.0], "y": pd.Series(classes, dtype=dtype)})
    assert client_table("a", "a", frame, TableOptions("y")).labels.tolist() == classes


def test_two_tables_with_the_same_name_are_refused_wherever_they_are_in_the_order(tmp_path):
    for name in ("a.csv", "a.d.csv", "a.parquet"):
        (tmp_path / name).write_text(GOOD)
    config = Config.of({"data": {"name": "table", "root": str(tmp_path), "target": "outcome"}})
    message = f"{tmp_path} has several tables with the name a: a.csv, a.parquet. Rename or delete all but one."
    for read in (
        lambda: read_frames(str(tmp_path), TableOptions("outcome")),
        lambda: client_table_files(config, ["a", "a.d"]),
    ):
        with pytest.raises(UserError) as caught:
            read()
        assert str(caught.value) == message


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}])
def test_lists_and_dictionaries_in_cells_are_said(value, tmp_path):
    frame = pd.DataFrame({"x": [1.0, 2.0], "y": [0, 1], "z": [value, value]})
    frame.to_parquet(tmp_path / "a.parquet")
    advice = "must be one number or text per cell. Change it, or name the column in data.drop."
    with pytest.raises(UserError) as caught:
        read_client_table(tmp_path / "a.parquet", TableOptions("y"))
    assert str(caught.value).startswith('a.parquet: the column "z" has cells like ')
    assert str(caught.value).endswith(advice)
    for options in (TableOptions("z"), TableOptions("y", test="z")):
        with pytest.raises(UserError, match=r'^The column "z" has cells like .*one number or text per cell'):
            read_client_table(tmp_path / "a.parquet", options)
    assert read_client_table(tmp_path / "a.parquet", TableOptions("y", drop=("z",))).kinds == {"x": "number"}


def test_rows_with_more_cells_than_names_are_refused_also_if_they_begin_with_row_numbers(tmp_path):
    (tmp_path / "a.csv").write_text("age,dose,y\n1,50,7,0\n2,60,8,1\n3,70,9,1\n")
    with pytest.raises(
        UserError, match=r"a.csv: its rows have more cells than its header has names. Name every column"
    ):
        read_table(tmp_path / "a.csv")


def test_a_separator_at_the_end_of_every_row_moves_no_column(tmp_path):
    (tmp_path / "a.csv").write_text("age,dose\n1,50,\n2,60,\n")
    assert read_table(tmp_path / "a.csv").to_dict("list") == {"age": [1, 2], "dose": [50, 60]}


def test_separators_within_quotes_of_the_header_are_not_counted(tmp_path):
    (tmp_path / "a.csv").write_text('"pressure, sitting, mmHg";"age\nin years"\n120;50\n')
    assert read_table(tmp_path / "a.csv").to_dict("list") == {"pressure, sitting, mmHg": [120], "age\nin years": [50]}


def test_a_column_of_a_large_file_has_one_kind_of_values(tmp_path):
    codes = [*["01", "02"] * 140_000, "A1", "A2"]
    (tmp_path / "a.csv").write_text("code,y\n" + "".join(f"{code},1\n" for code in codes))
    assert set(read_table(tmp_path / "a.csv")["code"]) == {"01", "02", "A1", "A2"}


def test_a_client_of_one_table_without_labels_is_told_so(tmp_path):
    lines = [f"{site},{number},{'' if site == 'b' else number % 2}" for site in "ab" for number in range(4)]
    (tmp_path / "all.csv").write_text("\n".join(["site,age,y", *lines]))
    options = TableOptions("y", client="site")
    with pytest.raises(UserError, match=r'all.csv, client b: the target "y" has no value in 4 of 4 rows'):
        client_tables(read_frames(str(tmp_path / "all.csv"), options), options)
