"""Atomic writes, digests and locks."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from bertwright.base import files
from bertwright.base.files import (
    atomic_file,
    atomic_folder,
    digest_bytes,
    digest_file,
    lock_folder,
    lock_if_free,
    new_file,
    open_to_append,
    read_json,
    remove_folder,
    remove_stale_parts,
    write_json,
)
from bertwright.cli import main as cli


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_atomic_file_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError), atomic_file(path) as temporary:
        temporary.write_text("new")
        raise RuntimeError
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]
    with atomic_file(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names(tmp_path) == ["a.txt"]


def test_atomic_folder_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), atomic_folder(tmp_path / "a") as temporary:
        (temporary / "half").write_text("")
        raise RuntimeError
    assert names(tmp_path) == []
    with atomic_folder(tmp_path / "a") as temporary:
        (temporary / "file").write_text("x")
        assert not (tmp_path / "a").exists()
    assert (tmp_path / "a" / "file").read_text() == "x"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no umask")
@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077, 0o002])
def test_files_have_the_permissions_of_the_umask(tmp_path: Path, umask: int) -> None:
    """Writers such as safetensors rename a file of their own, which its owner alone can read."""

    def write(path: Path) -> None:
        path.with_suffix(".own").write_text("x")
        path.with_suffix(".own").chmod(0o600)
        path.with_suffix(".own").replace(path)

    before = os.umask(umask)
    try:
        with atomic_file(tmp_path / "a.txt") as temporary:
            write(temporary)
        with atomic_folder(tmp_path / "b") as temporary:
            (temporary / "c").mkdir()
            write(temporary / "c" / "d.txt")
    finally:
        os.umask(before)
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "a.txt", tmp_path / "b" / "c" / "d.txt")]
    assert modes == [0o666 & ~umask] * 2


def test_interrupted_removal_leaves_a_temporary_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("x")

    def raise_as_if_killed(_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(files.shutil, "rmtree", raise_as_if_killed)
        remove_folder(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    remove_stale_parts(tmp_path)
    assert names(tmp_path) == []


def test_folder_lock_excludes_other_processes_and_ends_with_its_own(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from bertwright.base.files import lock_folder\n"
        "with lock_folder(Path(sys.argv[1])): print('locked', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(ValueError, match="another process is writing there"), lock_folder(tmp_path):
            pass
        other.kill()
        other.wait()
    with lock_folder(tmp_path):
        pass


def test_json_survives_a_round_trip_and_a_broken_file_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"word": "낱말", "number": 0.1})
    assert read_json(path) == {"word": "낱말", "number": 0.1}
    path.write_text('{\n"a": 1,,\n}')
    with pytest.raises(ValueError, match=r"a\.json, line 2: not valid JSON"):
        read_json(path)
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ValueError, match="not UTF-8 at byte 7"):
        read_json(path)


def test_digest_depends_on_boundaries_and_on_every_byte(tmp_path: Path) -> None:
    assert digest_bytes(b"ab", b"c") != digest_bytes(b"a", b"bc")
    path = tmp_path / "a"
    path.write_bytes(b"x" * 3_000_000)
    whole = digest_file(path)
    path.write_bytes(b"x" * 2_999_999 + b"y")
    assert digest_file(path) != whole


def test_new_locked_folder_is_deleted_if_it_stays_empty(tmp_path: Path) -> None:
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


def test_a_refused_lock_deletes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "new"
    with lock_folder(folder):
        with monkeypatch.context() as patched, pytest.raises(ValueError, match="another process"):
            patched.setattr(Path, "exists", lambda _: False)  # as before the other process has created the folder
            with lock_folder(folder):
                pass
        assert folder.is_dir()


def test_temporaries_of_killed_processes_are_deleted_by_the_next_write(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from bertwright.base.files import atomic_file, atomic_folder\n"
        "with atomic_file(Path('a')) as file, atomic_folder(Path('b')) as folder:\n"
        "    file.write_text('half'); (folder / 'half').touch(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=False)
    other_host = f".a.part-1-{int(names(tmp_path)[0].rpartition('-')[2]) ^ 1}"
    assert len(names(tmp_path)) == 2
    (tmp_path / other_host).touch()
    (tmp_path / "ab").touch()
    with atomic_file(tmp_path / "a") as path:
        path.touch()
    with atomic_folder(tmp_path / "b"):
        pass
    assert names(tmp_path) == sorted([other_host, "a", "ab", "b"])


def test_temporary_of_a_live_process_is_not_deleted(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "a") as path:
        path.touch()
        host = path.name.rpartition("-")[2]
    live = tmp_path / f".a.part-{os.getppid()}-{host}"
    live.touch()
    with atomic_file(tmp_path / "a") as path:
        path.touch()
    assert live.exists()


def test_temporary_of_another_container_is_not_deleted(tmp_path: Path) -> None:
    """Process ids are those of a namespace: this process does not exist in that of the other writer."""
    isolated = ["unshare", "--pid", "--fork"]
    if shutil.which("unshare") is None or subprocess.run([*isolated, "true"], check=False).returncode:
        pytest.skip("no right to start a process with process ids of its own")
    program = "from pathlib import Path; from bertwright.base.files import write_text; write_text(Path('a'), 'theirs')"
    with atomic_file(tmp_path / "a") as path:
        path.write_text("ours")
        subprocess.run([*isolated, sys.executable, "-c", program], cwd=tmp_path, check=True)
        assert path.exists()
    assert (tmp_path / "a").read_text() == "ours"


def test_result_that_loses_a_race_replaces_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a: already exists; choose another path"):  # noqa: SIM117
        with atomic_folder(tmp_path / "a") as temporary:
            (temporary / "file").write_text("mine")
            (tmp_path / "a").mkdir()
            (tmp_path / "a" / "file").write_text("other")
    with pytest.raises(ValueError, match="b: already exists; choose another path"):  # noqa: SIM117
        with new_file(tmp_path / "b") as temporary:
            temporary.write_text("mine")
            (tmp_path / "b").write_text("other")
    assert (tmp_path / "a" / "file").read_text() == (tmp_path / "b").read_text() == "other"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files, "_lock", fail)
    with pytest.raises(OSError, match=r"no file locks .*another disk") as caught, lock_folder(tmp_path):
        pass
    assert caught.value.filename == str(tmp_path)


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file of the user, to which links of a foreign folder lead."""
    (tmp_path / "precious.txt").write_text("precious data")
    return tmp_path / "precious.txt"


@pytest.mark.parametrize("lock", [lock_folder, lock_if_free])
@pytest.mark.parametrize("target", ["precious.txt", "absent.txt"])
def test_lock_that_is_a_link_is_refused_and_its_target_is_untouched(
    tmp_path: Path, precious: Path, lock: Callable[[Path], AbstractContextManager[object]], target: str
) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    (folder / ".lock").symlink_to(Path("..") / target)
    with pytest.raises(ValueError, match=r"store/\.lock: .*link to \.\./"), lock(folder):
        pass
    assert precious.read_text() == "precious data"
    assert not (tmp_path / "absent.txt").exists()


def test_prepare_into_a_foreign_folder_with_a_linked_lock_changes_nothing(
    tmp_path: Path, precious: Path, vocabulary_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text("the bear sees the wolf .\n\nthe wolf .\n")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / ".lock").symlink_to("../precious.txt")
    given = f"prepare {tmp_path / 'text.txt'} --vocabulary {vocabulary_folder} --store {tmp_path / 'store'} --workers 1"
    assert cli.run(given.split()) == 2
    assert f"{tmp_path / 'store' / '.lock'}:" in capsys.readouterr().err.replace("\n", "")
    assert precious.read_text() == "precious data"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes in folders")
def test_pipe_as_lock_or_log_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(ValueError, match=r"\.lock: .*pipe"), lock_folder(tmp_path):
        pass
    (tmp_path / "a").mkdir()
    with pytest.raises(ValueError, match=r"a: .*folder"):
        open_to_append(tmp_path / "a")


def test_link_that_appears_after_the_check_is_not_followed(
    tmp_path: Path, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log.txt").symlink_to(precious)
    monkeypatch.setattr(files, "check_no_link", lambda _: None)
    with pytest.raises(OSError, match="symbolic link"):
        open_to_append(tmp_path / "log.txt")
    assert precious.read_text() == "precious data"


def test_stale_part_that_is_a_link_is_deleted_and_its_target_is_untouched(tmp_path: Path, precious: Path) -> None:
    """Under the name of a dead process, and under the one that this process will use."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "kept.txt").touch()
    folder = tmp_path / "run"
    folder.mkdir()
    with atomic_file(folder / "a") as own:
        pass
    for number, target in enumerate([precious, other, tmp_path / "absent"]):
        own.symlink_to(target)
        (folder / f".a.part-{2**22 + number}-{own.name.rpartition('-')[2]}").symlink_to(target)
        (folder / ".b.part-1-1").symlink_to(target)
        remove_stale_parts(folder)
        assert names(folder) == ["a"]
        own.symlink_to(target)
        with atomic_file(folder / "a") as temporary:
            temporary.write_text("new")
        assert (folder / "a").read_text() == "new"
        linked = own.with_name(own.name.replace(".a.", ".c."))
        linked.symlink_to(target)
        with atomic_folder(folder / "c") as temporary:
            (temporary / "new").touch()
        assert names(folder / "c") == ["new"]
        linked.symlink_to(target)
        remove_folder(folder / "c")
        (folder / "c").symlink_to(target)
        remove_folder(folder / "c")  # the link alone
        assert names(folder) == ["a"]
    assert precious.read_text() == "precious data"
    assert names(other) == ["kept.txt"]
    assert not (tmp_path / "absent").exists()


def test_failed_flush_of_a_folder_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error") as caught, atomic_folder(tmp_path / "a"):
        pass
    assert caught.value.filename == str(tmp_path / "a")
    assert names(tmp_path) == []
