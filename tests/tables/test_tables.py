"""Rows of tables in all formats: hand-worked files, round trips, published files, messages for bad input."""

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import polars
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertwright.tables.schema import TableSchema
from bertwright.tables.tables import format_label, read_rows
from helpers import ALL_DATA, SAMPLES, write_hub_file

BOTH = TableSchema(("text",), ("label",))


def rows_of(path: Path, content: bytes | str, columns: TableSchema = BOTH) -> list[tuple[Any, ...]]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return [values for _, values in read_rows(str(path), columns)]


# --- hand-worked files


def test_columns_are_in_the_order_of_the_schema(tmp_path: Path) -> None:
    table = "label\tid\ttext\n0\t7\ta b\n1\t8\t\n"
    assert rows_of(tmp_path / "a.tsv", table) == [("a b", "0"), ("", "1")]
    assert rows_of(tmp_path / "a.txt", table, TableSchema((), ("label", "id", "label"))) == [
        ("0", "7", "0"),
        ("1", "8", "1"),
    ]


def test_location_is_the_file_and_the_line_where_a_row_starts(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text,label\n"a\nb",0\nc,1\n\nd,0\n')
    locations = [location for location, _ in read_rows(str(path), BOTH)]
    assert locations == [f"{path}, line 2", f"{path}, line 4", f"{path}, line 6"]


def test_long_field_is_read_and_the_limit_of_the_process_stays_as_it_is(tmp_path: Path) -> None:
    path, limit = tmp_path / "a.csv", csv.field_size_limit()
    path.write_text(f"text,label\n{'x' * 2 * limit},0\nb,1\n")
    limits = [(len(values[0]), csv.field_size_limit()) for _, values in read_rows(str(path), BOTH)]
    assert limits == [(2 * limit, limit), (1, limit)]


def test_table_without_header_has_columns_named_by_number(tmp_path: Path) -> None:
    columns = TableSchema(("4",), ("2",), header=False)
    assert rows_of(tmp_path / "a.tsv", "gj04\t1\t\tGood.\ngj04\t0\t*\tBad.\n", columns) == [
        ("Good.", "1"),
        ("Bad.", "0"),
    ]


def test_quotes_are_plain_in_tsv_and_enclose_in_csv_by_default(tmp_path: Path) -> None:
    tabs, commas = '"a ""b""\n c"\t1\n"x\ty"\t0\n', '"a ""b""\n c",1\n"x,y",0\n'
    enclosed = [('a "b"\n c', "1"), ("x\ty", "0")]
    numbers = TableSchema(("1",), ("2",), header=False, quotes=True)
    assert rows_of(tmp_path / "a.tsv", tabs, numbers) == enclosed
    assert rows_of(tmp_path / "a.csv", commas, TableSchema(("1",), ("2",), header=False)) == [enclosed[0], ("x,y", "0")]
    plain_quotes = 'text\tlabel\n"Open quote\t1\n'
    assert rows_of(tmp_path / "a.tsv", plain_quotes) == [('"Open quote', "1")]
    plain_quotes = plain_quotes.replace("\t", ",")
    assert rows_of(tmp_path / "a.csv", plain_quotes, TableSchema(("text",), ("label",), quotes=False)) == [
        ('"Open quote', "1")
    ]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".txt"])
def test_byte_order_mark_and_windows_line_ends_are_removed(tmp_path: Path, suffix: str) -> None:
    mark = "," if suffix == ".csv" else "\t"
    content = f"text{mark}label\r\na\x0bé\u2028{mark}1\r\n\r\nb{mark}0\r\n".encode("utf-8-sig")
    assert rows_of(tmp_path / f"a{suffix}", content) == [("a\x0bé\u2028", "1"), ("b", "0")]


def test_values_of_json_lines_preserve_their_types(tmp_path: Path) -> None:
    content = '{"label": 1, "text": "a"}\r\n\r\n{"text": "b", "label": [0.5, true], "more": {}}\r\n'
    assert rows_of(tmp_path / "a.jsonl", content) == [("a", 1), ("b", [0.5, True])]


def test_values_of_parquet_preserve_their_types_and_locations_are_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    polars.DataFrame({"label": [1, 0], "n": [1.5, 2.5], "words": [["x", "y"], []], "text": ["a", "b"]}).write_parquet(
        path
    )
    columns = TableSchema(("text",), ("label", "words", "n"))
    kinds = polars.DataFrame({"a": ["x", "y"], "b": ["u", "v"]})
    kinds = kinds.with_columns(polars.col("a").cast(polars.Categorical), polars.col("b").cast(polars.Enum(["v", "u"])))
    kinds.write_parquet(tmp_path / "kinds.parquet")
    assert [row for _, row in read_rows(str(tmp_path / "kinds.parquet"), TableSchema(("a", "b")))] == [
        ("x", "u"),
        ("y", "v"),
    ]
    assert list(read_rows(str(path), columns)) == [
        (f"{path}, row 1", ("a", 1, ["x", "y"], 1.5)),
        (f"{path}, row 2", ("b", 0, [], 2.5)),
    ]


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        ('id;text;label\n7;"a; ""b""\n c, d";1\n8;;0,5\n', [('a; "b"\n c, d', "1"), ("", "0,5")]),
        ('"Name, Vorname";"text";"label"\r\n"x, y";a;1\r\n', [("a", "1")]),  # commas in names, quotes around them
        ("text\tlabel\na, b;c\t1\n", [("a, b;c", "1")]),
        ("text,label,a;b;c\na;b,1,x\n", [("a;b", "1")]),  # commas, since they give the columns
    ],
)
def test_separator_of_csv_follows_the_header(tmp_path: Path, table: str, rows: list[Any]) -> None:
    assert rows_of(tmp_path / "a.csv", table) == rows


def test_row_with_another_separator_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.csv, line 3: expected 2 columns \(text, label\), got 1"):
        rows_of(tmp_path / "a.csv", "text;label\na;1\nb,1\n")


def test_misspelled_column_of_a_file_with_semicolons_gets_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no column 'inhal'; did you mean \"inhalt\"\?$"):
        rows_of(tmp_path / "a.csv", "id;inhalt\n1;a\n", TableSchema(("inhal",)))


def test_blank_line_in_a_table_of_one_column_is_an_empty_value(tmp_path: Path) -> None:
    assert rows_of(tmp_path / "a.tsv", "text\na\n\nb\n", TableSchema(("text",))) == [("a",), ("",), ("b",)]


def test_glob_reads_compressed_files_and_files_without_rows(tmp_path: Path) -> None:
    (tmp_path / "1.tsv.gz").write_bytes(gzip.compress(b"text\tlabel\na\t0\n"))
    (tmp_path / "2.tsv").write_text("label\ttext\n1\tb\n")
    (tmp_path / "3.tsv").write_text("label\ttext\n")  # without rows, as files of some exports are
    assert [values for _, values in read_rows(f"{tmp_path}/*", BOTH)] == [("a", "0"), ("b", "1")]


@pytest.mark.parametrize(
    ("value", "text"),
    [("1", "1"), (" a", " a"), (1, "1"), (0.5, "0.5"), (2.0, "2"), (True, "true"), (False, "false")],
)
def test_label_text_does_not_depend_on_the_type(value: Any, text: str) -> None:
    assert format_label(value, "label", "a.jsonl, line 1") == text


# --- the same rows from every format

FIELD = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(table=st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=6), block=st.sampled_from([1, 5, 1 << 20]))
def test_all_formats_give_the_same_rows(tmp_path: Path, table: list[tuple[str, str]], block: int) -> None:
    columns = TableSchema(("a", "b"), quotes=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertwright.text.decoding.BLOCK", block)
        for suffix, mark in ((".csv", ","), (".tsv", "\t")):
            stream = io.StringIO()
            csv.writer(stream, delimiter=mark, quoting=csv.QUOTE_ALL).writerows(
                [("b", "a"), *((b, a) for a, b in table)]
            )
            assert rows_of(tmp_path / f"x{suffix}", stream.getvalue(), columns) == table
        lines = "".join(json.dumps({"b": b, "c": 1, "a": a}, ensure_ascii=len(a) > 3) + "\n" for a, b in table)
        assert rows_of(tmp_path / "x.jsonl", lines, columns) == table
        stream_of_bytes = io.BytesIO()
        polars.DataFrame({"b": [b for _, b in table], "a": [a for a, _ in table]}).write_parquet(stream_of_bytes)
        assert rows_of(tmp_path / "x.parquet", stream_of_bytes.getvalue(), columns) == table


# --- label names in files of the hub

NO_YES = {"names": ["no", "yes"], "_type": "ClassLabel"}


@pytest.mark.parametrize(
    ("feature", "value", "named"),
    [
        (NO_YES, 1, "yes"),
        (NO_YES | {"num_classes": 2, "names_file": None, "id": None}, 0, "no"),  # datasets 1
        ({"feature": NO_YES, "length": -1, "id": None, "_type": "Sequence"}, [1, 0, 1], ["yes", "no", "yes"]),
        ({"feature": NO_YES, "_type": "List"}, [], []),  # datasets 4
        ({"feature": NO_YES, "_type": "LargeList"}, [1], ["yes"]),
        ([NO_YES], [0, 1], ["no", "yes"]),  # features given as a Python list, before datasets 4
        ({"feature": {"feature": NO_YES, "_type": "List"}, "_type": "List"}, [[1], [0, 1]], [["yes"], ["no", "yes"]]),
        ({"names": [1, 2], "_type": "ClassLabel"}, 1, "2"),
        ({"dtype": "int64", "_type": "Value"}, 1, 1),
        (NO_YES, "yes", "yes"),  # the column holds names already
        (NO_YES, 0.0, 0.0),
        ({"names": ["no", "yes"], "_type": "Value"}, 1, 1),
        ({"names": {"0": "no"}, "_type": "ClassLabel"}, 0, 0),
        ({"names": [], "_type": "ClassLabel"}, 0, 0),
        ({"feature": {"a": NO_YES}, "_type": "Sequence"}, [0], [0]),
        ([], [0], [0]),
        (None, 0, 0),
    ],
)
def test_label_names_in_parquet_metadata_replace_numbers(tmp_path: Path, feature: Any, value: Any, named: Any) -> None:
    column = polars.Series([value], dtype=polars.List(polars.Int8) if value == [] else None)
    features = {"text": {"dtype": "string", "_type": "Value"}, "label": feature}
    path = write_hub_file(tmp_path / "a.parquet", {"text": ["a"], "label": column}, features)
    assert list(read_rows(path, BOTH)) == [(f"{path}, row 1", ("a", named))]
    assert [values for _, values in read_rows(path, TableSchema(("text",), ("label",), keep_label_ids=True))] == [
        ("a", value)
    ]


@pytest.mark.parametrize(
    "metadata", ["", "{", "[]", "null", '{"info": 3}', '{"info": {"features": null}}', '{"info": {}}']
)
def test_other_parquet_metadata_is_ignored(tmp_path: Path, metadata: str) -> None:
    path = tmp_path / "a.parquet"
    polars.DataFrame({"text": ["a"], "label": [1]}).write_parquet(path, metadata={"huggingface": metadata})
    assert [values for _, values in read_rows(str(path), BOTH)] == [("a", 1)]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-1, r"no label \(-1\) in 'label'; use files that have labels, or delete the row"),
        (2, r"2 in 'label', but the file has names for 0 to 1 only; fix the file"),
        (-2, r"-2 in 'label', but the file has names for 0 to 1 only"),
        (None, r"no value \(null\) in 'label'"),
        ([0, -1], r"no label \(-1\) in 'label'"),
        ([0, 7], r"7 in 'label', but the file has names for 0 to 1 only"),
    ],
)
def test_label_without_a_name_raises_an_error(tmp_path: Path, value: Any, message: str) -> None:
    whole, feature = ([0], [NO_YES]) if isinstance(value, list) else (0, NO_YES)
    path = write_hub_file(tmp_path / "a.parquet", {"text": ["a", "b"], "label": [whole, value]}, {"label": feature})
    with pytest.raises(ValueError, match=rf"a\.parquet, row 2: {message}"):
        list(read_rows(path, BOTH))
    assert len(list(read_rows(path, TableSchema(("text",))))) == 2  # labels are not read


# --- published tables


@pytest.mark.parametrize(
    ("name", "columns", "rows", "sample_rows"),
    [
        ("glue/SST-2/train.tsv", TableSchema(("sentence",), ("label",)), 67_349, 20),
        ("glue/MRPC/train.tsv", TableSchema(("#1 String", "#2 String"), ("Quality",)), 3_668, 20),
        ("glue/CoLA/dev.tsv", TableSchema(("4",), ("2",), header=False), 1_043, 20),
        ("glue/STS-B/dev.tsv", TableSchema(("sentence1", "sentence2"), ("score",)), 1_500, 20),
        ("nsmc/ratings_test.txt", TableSchema(("document",), ("label",)), 50_000, 20),
        ("codah/dev.tsv", TableSchema(("2", "3", "4", "5", "6"), ("7",), header=False), 556, 5),
    ],
)
@pytest.mark.parametrize("data", ALL_DATA)
def test_published_table_has_the_published_number_of_rows(
    data: Path, name: str, columns: TableSchema, rows: int, sample_rows: int
) -> None:
    assert sum(1 for _ in read_rows(str(data / name), columns)) == (sample_rows if data == SAMPLES else rows)


# --- bad input

TABLE = "text\tlabel\na\t0\n"


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        ("a.tsv", f"{TABLE}b\n", BOTH, r"a\.tsv, line 3: expected 2 columns \(text, label\), got 1"),
        ("a.tsv", f"{TABLE}b\t1\t2\n", BOTH, r"a\.tsv, line 3: expected 2 columns \(text, label\), got 3$"),
        ("a.tsv", f'{TABLE}"b\tc"\t1\n', BOTH, r"got 3; are fields in quotes\? Use --quotes True"),
        (
            "a.tsv",
            "a\t0\nb\n",
            TableSchema(("1",), header=False),
            r"line 2: expected 2 columns \(as in line 1\), got 1",
        ),
        ("a.tsv", TABLE, TableSchema(("texts",)), r"a\.tsv, line 1: no column 'texts'; did you mean \"text\"\?"),
        ("a.tsv", TABLE, TableSchema(("body",)), r"line 1: no column 'body'; the columns are text, label$"),
        ("a.tsv", TABLE, TableSchema(("2",)), r"no column '2'; .*to give columns by number, use --header False"),
        (
            "a.tsv",
            "a\t0\n",
            TableSchema(("3",), header=False),
            r"no column '3'; the columns are 1, 2; without a header",
        ),
        (
            "a.tsv",
            "a\t0\n",
            TableSchema(("0",), header=False),
            r"no column '0'; the columns are 1, 2; without a header",
        ),
        (
            "a.txt",
            "Oh, bear\nb\n",
            TableSchema(("1",)),
            r"no column '1'; the columns are Oh, bear; to give columns by number",
        ),
        (
            "a.txt",
            "Oh, bear\nb\n",
            TableSchema(("text",), header=False),
            r"the columns are 1; without a header, columns are named by number",
        ),
        (
            "a.txt",
            "text,label\nb\n",
            TableSchema(("text",)),
            r"the columns are text,label; fields are separated by commas in \.csv",
        ),
        (
            "a.csv",
            "a;0\tb\n",
            TableSchema(("2",), header=False),
            r"no column '2'; .*fields are separated by commas in \.csv",
        ),
        ("a.tsv", '"text"\n"a"\n', TableSchema(("text",)), r"are fields in quotes\? Use --quotes True"),
        ("a.tsv", f"{'long ' * 30}\tb\na\tb\n", BOTH, r"no column 'text'; the columns are long .{30,60}…, b$"),
        ("a.tsv", f"\n{TABLE}", BOTH, r"line 1: no column 'text'; expected the names of the columns, got nothing"),
        ("a.tsv", TABLE.replace("label", "text"), TableSchema(("text",)), r"line 1: 'text' names several columns"),
        ("a.csv", 'text,label\n"a,0\n', BOTH, r"a\.csv, line 2: .*is a quote left open"),
        ("a.csv", 'text,label\nb,1\n"a,0\nc,1\nd,0\n', BOTH, r"a\.csv, line 3: .*is a quote left open"),
        ("a.csv", "text,label\ra,0\n", BOTH, r"a\.csv, line 1: .*carriage return"),
        ("a.jsonl", '{"text": "a", "text": "b", "label": 0}', BOTH, r"line 1: not valid JSON \('text' occurs twice\)"),
        ("a.jsonl", '{"text": "a"}', BOTH, r"a\.jsonl, line 1: no column 'label'; the columns are text"),
        ("a.jsonl", '{"text": 3, "label": 0}', BOTH, r"line 1: expected a string in 'text', got int"),
        ("a.jsonl", '{"text": null, "label": 0}', BOTH, r"line 1: no value \(null\) in 'text'"),
        ("a.jsonl", '{"text": "a", "label": null}', BOTH, r"line 1: no value \(null\) in 'label'"),
        ("a.jsonl", '{"text": "\\ud800", "label": 0}', BOTH, r"line 1: \\ud800 is half a surrogate .*; fix the file"),
        ("a.jsonl", '{"text": "a", "label": ["\\udc00"]}', BOTH, r"line 1: \\udc00 is half a surrogate pair"),
        ("a.jsonl", '{"text": "a", "label": {"b": "\\udc00"}}', BOTH, r"line 1: \\udc00 is half a surrogate pair"),
        (
            "a.tsv",
            b"text\tlabel\na\t0\nb\xe9\t1\n",
            BOTH,
            r"a\.tsv, byte 16: e9 is not UTF-8 text; fix the file, or .*--encoding",
        ),
        ("a.tsv", "text\tlabel\n", BOTH, r"a\.tsv: no rows; is it the right file\?"),
        ("a.tsv", "", BOTH, r"a\.tsv: empty file"),
        ("a.parquet", b"PAR1", BOTH, r"a\.parquet: not a readable Parquet file"),
    ],
)
def test_invalid_table_raises_an_error(
    tmp_path: Path, name: str, content: bytes | str, columns: TableSchema, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        rows_of(tmp_path / name, content, columns)
    assert "\n" not in str(raised.value)
    assert "encoding-errors" not in str(raised.value)  # a setting of corpora only


def test_parquet_of_which_polars_leaves_rows_out_raises_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged row group may end the iteration early, without an error."""
    path = tmp_path / "a.parquet"
    polars.DataFrame({"text": ["a", "b", "c"], "label": [0, 1, 0]}).write_parquet(path)
    monkeypatch.setattr(polars.LazyFrame, "collect_batches", lambda table, **_: iter([table.collect().head(2)]))
    with pytest.raises(ValueError, match=r"a\.parquet: damaged, 2 of its 3 rows"):
        list(read_rows(str(path), BOTH))

    def panic(*_: object, **__: object) -> None:
        raise polars.exceptions.PanicException("decoder")

    monkeypatch.setattr(polars.LazyFrame, "collect_batches", panic)
    with pytest.raises(ValueError, match=r"a\.parquet: not a readable Parquet file \(decoder\)"):
        list(read_rows(str(path), BOTH))


def test_null_in_parquet_raises_an_error_with_its_row(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    polars.DataFrame({"text": ["a", None], "label": [0, 1]}).write_parquet(path)
    with pytest.raises(ValueError, match=r"a\.parquet, row 2: no value \(null\) in 'text'"):
        list(read_rows(str(path), BOTH))
    with pytest.raises(ValueError, match=r"a\.parquet: expected strings in 'label', got Int64"):
        list(read_rows(str(path), TableSchema(("label",))))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "no value in 'label'"),
        (" \t", "no value in 'label'"),
        (float("nan"), "no value in 'label'"),
        ([1], "expected a string or a number in 'label', got list"),
        ({}, "expected a string or a number in 'label', got dict"),
    ],
)
def test_label_text_of_an_invalid_value_raises_an_error(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"a.jsonl, line 7: {message}"):
        format_label(value, "label", "a.jsonl, line 7")


def table_values(path: Path, content: str, *names: str) -> list[tuple[str, tuple[Any, ...]]]:
    path.write_text(content, encoding="utf-8")
    return [
        (location.removeprefix(f"{path}, "), values)
        for location, values in read_rows(str(path), TableSchema((), names))
    ]


def test_json_array_is_read_as_rows_with_their_lines(tmp_path: Path) -> None:
    content = '[\n  {"text": "a",\n   "label": 1},\n  {"text": "b", "label": 2}, {"text": "\\u00e9", "label": 3}\n]\n'
    assert table_values(tmp_path / "a.json", content, "text", "label") == [
        ("line 2", ("a", 1)),
        ("line 4", ("b", 2)),
        ("line 4", ("é", 3)),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"data": []}', r"a\.json: expected an array of objects.*data"),
        ('[\n{"label": 1}\n{"label": 2}]', r"a\.json, line 3: .*'{'"),
        ('[\n{"label": 1},\n]', r"a\.json, line 3: not valid JSON"),
        ('[{"label": 1}', r"a\.json, line 1: .*the end"),
        ('[{"label": 1}]\n[]', r"a\.json, line 2: .*one array"),
        ("[1]", r"a\.json, line 1: expected a JSON object, got int"),
        ('[{"label": 1, "label": 2}]', r"a\.json, line 1: .*'label' occurs twice"),
        ("[ ]", r"a\.json: no rows"),
    ],
)
def test_json_array_with_an_error_names_its_line(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        table_values(tmp_path / "a.json", content, "label")


def test_nested_fields_are_columns_by_their_path(tmp_path: Path) -> None:
    nested = '{"labels": {"label": 3.7, "binary": 1}, "labels.binary": 9}\n'
    assert table_values(tmp_path / "a.jsonl", nested, "labels.label") == [("line 1", (3.7,))]
    assert table_values(tmp_path / "a.jsonl", nested, "labels.binary") == [("line 1", (9,))]  # a field's own name wins
    with pytest.raises(ValueError, match=r'line 1: no column .labels.lable.; did you mean "labels.label"'):
        table_values(tmp_path / "a.jsonl", nested, "labels.lable")
    with pytest.raises(
        ValueError, match=r"line 1: .*'labels', got an object \(its columns are labels.label, labels.binary\)"
    ):
        format_label({"label": 3.7, "binary": 1}, "labels", "line 1")
    polars.DataFrame({"labels": [{"label": 3.7, "binary": 1}]}).write_parquet(tmp_path / "a.parquet")
    schema = TableSchema((), ("labels.label", "labels.binary"))
    assert [values for _, values in read_rows(str(tmp_path / "a.parquet"), schema)] == [(3.7, 1)]
