"""What is on disk is whole or absent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bertwright import files
from bertwright.files import (
    atomic_file,
    atomic_folder,
    digest_bytes,
    digest_file,
    lock_folder,
    read_json,
    remove_folder,
    remove_stale_parts,
    write_json,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError), atomic_file(path) as part:
        part.write_text("new")
        raise RuntimeError
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]
    with atomic_file(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names(tmp_path) == ["a.txt"]


def test_a_folder_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), atomic_folder(tmp_path / "a") as part:
        (part / "half").write_text("")
        raise RuntimeError
    assert names(tmp_path) == []
    with atomic_folder(tmp_path / "a") as part:
        (part / "file").write_text("x")
        assert not (tmp_path / "a").exists()
    assert (tmp_path / "a" / "file").read_text() == "x"


def test_a_folder_is_gone_before_its_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("x")

    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(files.shutil, "rmtree", killed)
        remove_folder(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    remove_stale_parts(tmp_path)
    assert names(tmp_path) == []


def test_a_folder_is_held_by_one_process_and_freed_by_its_death(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from bertwright.files import lock_folder\n"
        "with lock_folder(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match="another process is writing there"), lock_folder(tmp_path):
            pass
        other.kill()
        other.wait()
    with lock_folder(tmp_path):
        pass


def test_json_comes_back_and_a_broken_one_names_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"word": "낱말", "number": 0.1})
    assert read_json(path) == {"word": "낱말", "number": 0.1}
    path.write_text('{\n"a": 1,,\n}')
    with pytest.raises(ValueError, match=r"a\.json, line 2: not valid JSON"):
        read_json(path)
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ValueError, match="not UTF-8 at byte 7"):
        read_json(path)


def test_a_digest_tells_where_parts_end(tmp_path: Path) -> None:
    assert digest_bytes(b"ab", b"c") != digest_bytes(b"a", b"bc")
    path = tmp_path / "a"
    path.write_bytes(b"x" * 3_000_000)
    whole = digest_file(path)
    path.write_bytes(b"x" * 2_999_999 + b"y")
    assert digest_file(path) != whole


def test_a_folder_made_for_nothing_goes_again(tmp_path: Path) -> None:
    with pytest.raises(KeyError), lock_folder(tmp_path / "new"):
        raise KeyError
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    with lock_folder(tmp_path / "old"):
        pass
    assert (tmp_path / "old").is_dir()
    with lock_folder(tmp_path / "used"):
        (tmp_path / "used" / "file").touch()
    assert (tmp_path / "used" / "file").exists()
