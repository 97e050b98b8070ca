"""BERT, whole: raw text to vocabulary, to pre-training, to fine-tuned tasks.

A trained model is two calls:

    model = bertwright.load("run/model")
    model.fill_mask("Paris is the [MASK] of France.")

A pre-trained model has `fill_mask` and `next_sentence`, a fine-tuned one `classify`, `choose`, `tag`, `answer` or
`rank`. Every model has `embed` for text vectors, `features` for word vectors, and `attention`.

The functions that train one take a settings object each. They do the same as the commands of the command line, but
print nothing: what the user should know becomes a Python warning. With `terminal_reporter()` as second argument they
print as the commands do; any other object with the methods of `Reporter` gets the same notes, progress and records.
Only the commands choose the learning rate by the model's width, the schedule of text vectors, and the paper's learning
rate, batch size and epochs for a published task. A settings object has the same defaults for all tasks and models:
learning rate 3e-5, which suits BASE, batch size 32, 3 epochs. `finetune` reports the paper's next to them:

    from pathlib import Path

    import bertwright
    from bertwright import CorpusSettings, FinetuneSettings, LearnSettings, PretrainSettings
    from bertwright import PrepareSettings, SurveySettings, TaskSettings

    text = CorpusSettings(inputs=("books/", "wiki.txt"))
    bertwright.survey(SurveySettings(text))
    bertwright.learn_vocabulary(LearnSettings(text, output=Path("vocabulary")))
    bertwright.prepare(PrepareSettings(text, vocabulary="vocabulary", store=Path("store")))
    bertwright.pretrain(PretrainSettings(run=Path("run"), store=Path("store")))

    task = TaskSettings("classification", train=("train.tsv",), dev=("dev.tsv",))
    bertwright.finetune(FinetuneSettings(run=Path("tuned"), task=task, model="run"))

`experiment(ExperimentSettings("table5", ...))` repeats an experiment of the paper.

`bertwright COMMAND --help` and the docstrings of the fields explain every setting.
"""

from __future__ import annotations

import os
import sys

import lazy_loader

SPIN_COUNT = 20_000  # iterations of a loop after which an OpenMP thread that waits for others sleeps

# By default, waiting OpenMP threads spin for milliseconds. If another process is busy, they take the CPU from the
# thread that they wait for. This must be set before torch loads OpenMP.
if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & set(os.environ) and "torch" not in sys.modules:
    os.environ["GOMP_SPINCOUNT"] = str(SPIN_COUNT)  # libgomp: torch on Linux
    os.environ["KMP_BLOCKTIME"] = "1"  # libomp: torch on macOS; milliseconds

# Torch takes seconds to import, and `bertwright --help` does not need it.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
