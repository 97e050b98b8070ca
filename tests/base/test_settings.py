"""Settings: conversion from and to TOML, and its errors."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest

import bertwright
from bertwright.base.settings import (
    check_choice,
    check_distinct,
    check_limit,
    check_minimum,
    check_not_str,
    convert,
    field_docs,
    from_table,
    read_toml,
    to_arguments,
    write_settings,
)
from bertwright.cli.options import RECIPE_NAMES, find_config
from bertwright.corpus.documents import CorpusSettings
from bertwright.finetuning.settings import FinetuneSettings, paper_optimizer
from bertwright.pretraining.settings import PretrainSettings
from bertwright.vocabulary.learn.learn_vocabulary import LearnSettings
from bertwright.vocabulary.learn.wordpiece_trainer import VocabularySettings

RECIPES = sorted((Path(bertwright.__file__).parent / "recipes").glob("*.toml"))


@dataclass(frozen=True)
class Nested:
    share: float = 0.5
    mix: tuple[float, float] = (0.25, 0.75)


@dataclass(frozen=True)
class Outer:
    folder: Path
    kind: Literal["a", "b"] = "a"
    number: int | None = None
    names: tuple[str, ...] = ()
    nested: Nested = field(default_factory=Nested)


def test_settings_survive_a_round_trip_through_toml(tmp_path: Path) -> None:
    settings = Outer(Path("x/y"), "b", 3, ("one", "two"), Nested(0.1, (1.0, 0.0)))
    path = tmp_path / "settings.toml"
    write_settings(path, settings, "a title")
    assert path.read_text().startswith("# a title\n")
    assert from_table(Outer, read_toml(path), str(path)) == settings


def test_arguments_give_what_differs_from_the_defaults() -> None:
    settings = Outer(Path("x y"), "b", 3, ("one", "two"), Nested(0.1))
    expected = "--folder|x y|--kind|b|--number|3|--names|one|two|--share|0.1"
    assert to_arguments(settings) == expected.split("|")
    assert to_arguments(Outer(Path("x"))) == ["--folder", "x"]


def test_arguments_start_with_positional_ones_and_switch_flags() -> None:
    corpus = CorpusSettings(("file=books", "wiki.txt"), column="body")
    settings = LearnSettings(corpus, Path("v"), VocabularySettings(lowercase=False, strip_accents=False))
    expected = "file=books wiki.txt --column body --output v --no-lowercase --strip-accents False"
    assert to_arguments(settings) == expected.split()


def test_integer_is_converted_to_float() -> None:
    assert from_table(Outer, {"folder": "x", "nested": {"share": 1}}, "t").nested.share == 1.0


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"folder": "x", "knid": "a"}, 't: unknown setting "knid"; did you mean "kind"?'),
        ({"folder": "x", "nested": {"shard": 1.0}}, 't: nested: unknown setting "shard"; did you mean "share"?'),
        ({"folder": "x", "share": 1.0}, 't: unknown setting "share"; move it to the [nested] table'),
        ({"folder": "x", "kind": "c"}, "t: kind: expected one of 'a', 'b', got 'c'"),
        ({"folder": "x", "number": "3"}, "t: number: expected int, got '3'"),
        ({"folder": ""}, "t: folder: expected a text of one or more characters, without NUL, got ''"),
        ({"folder": "a\0b"}, r"t: folder: expected a text of one or more characters, without NUL, got 'a\x00b'"),
        ({"folder": "x", "number": ""}, "t: number: expected int, got ''"),
        ({"folder": 3}, "t: folder: expected Path, got 3"),
        ({"folder": "x", "names": [""]}, "t: names[0]: expected a text of one"),
        ({"folder": "x", "number": True}, "t: number: expected int, got True"),
        ({"folder": "x", "names": "one"}, "t: names: expected a list, got 'one'"),
        ({"folder": "x", "nested": {"mix": [1.0]}}, "t: nested: mix: expected 2 values, got 1"),
        ({"folder": "x", "nested": 3}, "t: nested: expected a table, got 3"),
        ({"kind": "a"}, "t: missing: folder"),
    ],
)
def test_misuse_names_key_value_and_fix(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        from_table(Outer, table, "t")


def test_number_above_64_bits_names_the_file_and_not_a_flag(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(f"steps = {10**23}\n")
    with pytest.raises(ValueError, match=r"settings\.toml: steps: expected at most 9,223,\S+, got 1000000"):
        from_table(PretrainSettings, read_toml(path), str(path))


def test_value_that_the_record_rejects_names_the_file() -> None:
    @dataclass(frozen=True)
    class Checked:
        number: int = 1

        def __post_init__(self) -> None:
            check_minimum(self, 1, "number")

    with pytest.raises(ValueError, match=r"^settings\.toml: number: .*got 0"):
        from_table(Checked, {"number": 0}, "settings.toml")


def test_broken_toml_names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("steps = 1\nsize = = 2\n")
    with pytest.raises(ValueError, match=r"a\.toml: not valid TOML: .*line 2"):
        read_toml(tmp_path / "a.toml")


def test_deeply_nested_toml_is_an_error_with_the_file_name(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("steps = " + "[" * 5000)
    with pytest.raises(ValueError, match=r"a\.toml: not readable as TOML"):
        read_toml(tmp_path / "a.toml")


def test_byte_order_mark_of_toml_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("steps = 1\n", encoding="utf-8-sig")
    assert read_toml(tmp_path / "a.toml") == {"steps": 1}


def test_check_minimum_names_field_and_value() -> None:
    check_minimum(Outer(Path("x"), number=None), 1, "number")
    with pytest.raises(ValueError, match=r"^number: expected at least 1, got 0$"):
        check_minimum(Outer(Path("x"), number=0), 1, "number")


def test_check_not_str_names_field_and_value() -> None:
    with pytest.raises(ValueError, match=r"^names: .*\('one',\)"):
        check_not_str(Outer(Path("x"), names="one"), "names")  # type: ignore[arg-type]


def test_limits_accept_values_inside_and_name_what_is_outside() -> None:
    for limit, inside, outside in (
        ("from 0", (0.0, 5.0), (-1.0, math.inf, math.nan)),
        ("above 0", (0.1, 5.0), (0.0, math.inf, math.nan)),
        ("from 0 to 1", (0.0, 1.0), (-0.1, 1.1, math.nan)),
        ("from 0 to below 1", (0.0, 0.9), (-0.1, 1.0)),
        ("above 0 and up to 1", (0.1, 1.0), (0.0, 1.1)),
    ):
        check_limit(Nested(mix=inside[:2]), limit, "mix")  # every item of a tuple
        for value in outside:
            with pytest.raises(ValueError, match=rf"^share: .*{limit}, got {value}$"):
                check_limit(Nested(share=value), limit, "share")


def test_choices_and_distinct_values_are_checked() -> None:
    with pytest.raises(ValueError, match=r"^kind: .*a, b, got 'c'$"):
        check_choice(Outer(Path("x"), kind="c"), "kind")  # type: ignore[arg-type]
    check_distinct(Nested(), "mix")
    for values in ((), (0.1, 0.1 + 1e-15)):
        with pytest.raises(ValueError, match=r"^mix: .*each only once"):
            check_distinct(Nested(mix=values), "mix")  # type: ignore[arg-type]


def test_value_of_a_union_may_have_any_of_its_types() -> None:
    assert convert(3, str | int, "t") == 3
    assert convert("a", str | int, "t") == "a"
    with pytest.raises(ValueError, match=r"^t: expected str, got 1\.5"):
        convert(1.5, str | int, "t")


def test_required_table_that_is_missing_names_its_keys() -> None:
    with pytest.raises(ValueError, match=r"^t: task: missing: task$"):
        from_table(FinetuneSettings, {"run": "r", "model": "m"}, "t")


def test_texts_of_fields_are_empty_without_source() -> None:
    assert field_docs(make_dataclass("Made", ["x"])) == {}
    assert field_docs(CorpusSettings)["inputs"].startswith("Files")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_every_recipe_is_a_valid_pretraining_setting(path: Path) -> None:
    settings = from_table(PretrainSettings, {"run": "r", "store": "s"} | read_toml(path), str(path))
    assert sum(phase.end - phase.first for phase in settings.phases) == settings.steps
    settings.model.config(30_522, causal=False)


def test_nested_settings_take_the_defaults_of_the_enclosing_ones() -> None:
    table = {"run": "r", "model": "m", "task": {"task": "mrpc"}, "optimizer": {"beta2": 0.98}}
    assert from_table(FinetuneSettings, table, "t").optimizer == replace(paper_optimizer(), beta2=0.98)


def test_default_schedule_is_the_papers() -> None:
    settings = PretrainSettings(run=Path("r"), store=Path("s"))
    first, second = settings.phases
    assert (first.end, first.data.max_length, second.end, second.data.max_length) == (900_000, 128, 1_000_000, 512)
    assert settings.optimizer.count_warmup_steps(settings.steps) == 10_000
    assert (settings.data.batch_size, settings.optimizer.learning_rate, settings.optimizer.eps) == (256, 1e-4, 1e-6)


def test_a_recipe_is_found_by_its_name_and_a_file_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert set(RECIPE_NAMES) >= {"demo", "base"}
    assert find_config("demo", "pretrain") == find_config("demo.toml", "pretrain") in RECIPES
    (tmp_path / "demo").mkdir()  # as in this project's root
    assert find_config("demo", "pretrain") in RECIPES
    with pytest.raises(ValueError, match="demo: a recipe of pretrain"):
        find_config("demo", "finetune")
    (tmp_path / "demo.toml").write_text("steps = 3\n")
    assert find_config("demo.toml", "pretrain") == find_config("demo.toml", "finetune") == Path("demo.toml")
    with pytest.raises(FileNotFoundError, match=r"adapt, base, demo.*'other'"):
        find_config("other", "pretrain")
