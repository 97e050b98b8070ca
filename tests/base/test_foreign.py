"""Paths from elsewhere: names, links out of a folder, and the folders of models, checkpoints and stores with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertwright.base.foreign import check_file_name, check_link, is_name, is_name_below
from bertwright.cli import main as cli
from bertwright.interop.model_files import locate_config, model_folder, read_modules
from bertwright.vocabulary.open_tokenizer import open_tokenizer

OUT = [
    "..",
    "../x",
    "/etc/passwd",
    "a/../../x",
    "a/./x",
    "a//x",
    "",
    ".",
    "C:x",
    "C:/x",
    "a\\b",
    "a\0b",
    "a\nb",
    "\ud800",
]


@pytest.mark.parametrize("name", [*OUT, 5, None, ["x"]])
def test_name_that_leaves_its_folder_is_none(name: object, tmp_path: Path) -> None:
    assert not is_name(name)
    assert not is_name_below(name)
    with pytest.raises(ValueError, match=rf"^{tmp_path / 'list.json'}: "):
        check_file_name(name, tmp_path / "list.json")


def test_names_of_files_are_names() -> None:
    assert all(map(is_name, ["a", "model-00001-of-00002.safetensors", ".lock", "한국어 2", "a..b"]))
    assert is_name_below("1_Pooling/config.json")
    assert not is_name("1_Pooling/config.json")


def test_link_out_of_a_folder_is_refused_and_one_inside_is_followed(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "a.txt").write_text("a")
    (folder / "inside").symlink_to("a.txt")
    (folder / "out").symlink_to("../secret.txt")
    (folder / "gone").symlink_to("/nowhere/at/all")
    (folder / "up").symlink_to("..")
    for name in ("a.txt", "inside", "sub", "absent"):
        check_link(folder / name, folder)
    for name in ("out", "gone", "up", "up/secret.txt"):
        with pytest.raises(ValueError, match=rf"^{folder / name}: .*link"):
            check_link(folder / name, folder)
    with pytest.raises(ValueError, match=rf"^{folder / 'out'}: "):
        check_file_name("out", folder / "list.json")
    (tmp_path / "named").symlink_to(folder)  # the user named this link
    check_link(tmp_path / "named" / "inside", tmp_path / "named")


def test_cache_of_the_hub_consists_of_links_to_its_blobs(tmp_path: Path) -> None:
    cache = tmp_path / "models--org--name"
    folder = cache / "snapshots" / "abc"
    (folder / "1_Pooling").mkdir(parents=True)
    (cache / "blobs").mkdir()
    (cache / "blobs" / "123").write_text("{}")
    (tmp_path / "secret").write_text("secret")
    (folder / "config.json").symlink_to("../../blobs/123")
    (folder / "1_Pooling" / "config.json").symlink_to("../../../blobs/123")
    check_link(folder / "config.json", folder)
    check_link(folder / "1_Pooling" / "config.json", folder / "1_Pooling")
    (folder / "vocab.txt").symlink_to("../../../secret")
    with pytest.raises(ValueError, match=r"vocab\.txt: .*link"):
        check_link(folder / "vocab.txt", folder)


@pytest.mark.parametrize("path", [*OUT[:4], "a\0b", 3, None, ["x"], {"a": 1}])
def test_modules_with_a_path_to_another_model_are_refused(
    path: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = "sentence_transformers.models.Transformer"
    (tmp_path / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": path, "type": kind}]))
    with pytest.raises(ValueError, match=rf"^{tmp_path / 'modules.json'}: "):
        model_folder(tmp_path)
    assert cli.run(["embed", str(tmp_path), "a", "b"]) == 2
    assert "modules.json: expected" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["{}", "[]", "3", "null", "[3]", '[{"path": ""}]', '[{"type": "a"}]'])
def test_modules_of_another_form_are_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(ValueError, match=r"modules\.json: expected a list of modules"):
        read_modules(tmp_path / "modules.json")


def test_modules_of_published_folders_are_read(tmp_path: Path) -> None:
    listed = [{"type": "T", "path": ""}, {"type": "P", "path": "1_Pooling"}, {"type": "D", "path": "2_Dense/"}]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    assert [str(path) for _, path in read_modules(tmp_path / "modules.json")] == [".", "1_Pooling", "2_Dense"]
    (tmp_path / "2_Dense").symlink_to("/etc")
    with pytest.raises(ValueError, match=r"2_Dense: .*link to /etc"):
        read_modules(tmp_path / "modules.json")


@pytest.mark.parametrize("name", ["vocab.txt", "config.json", "other.txt"])
def test_folder_with_a_linked_file_is_no_model_and_no_vocabulary(name: str, tmp_path: Path) -> None:
    secret, folder = tmp_path / "secret.txt", tmp_path / "model"
    folder.mkdir()
    secret.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nsecret\n")
    for file in {"vocab.txt", "config.json"} - {name}:
        (folder / file).write_text("{}")
    (folder / name).symlink_to(secret)
    for read in (locate_config, open_tokenizer):
        with pytest.raises(ValueError, match=rf"^{folder / name}: .*link to {secret}"):
            read(folder)
