"""Settings of a plan."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path

from bertwright.base.settings import check_limit, check_not_str, did_you_mean, written_docs
from bertwright.corpus.documents import CorpusFormat, CorpusSettings
from bertwright.planning.gpus import GPUS
from bertwright.systems.registry import DEFAULT, find_system
from bertwright.tokenstore.build import BuildSettings
from bertwright.training.device_settings import DeviceSettings
from bertwright.vocabulary.learn.wordpiece_trainer import VocabularySettings

SIZES = tuple(find_system(DEFAULT).sizes)


@dataclass(frozen=True)
class PlanSettings:
    """Plan a pre-training: model size, batch size and steps for your text and hours, with the loss to expect.

    Takes --measure-minutes and as long as `bertwright vocabulary` and `prepare` on the same text.
    """

    hours: float
    """Hours that the training may take."""
    text: tuple[str, ...] = ()
    """Text as for `bertwright survey`: files, folders, globs or hf://datasets/NAME/... paths."""
    store: Path | None = None
    """Token store that `bertwright prepare` wrote, instead of --text."""
    gpu: str | None = None
    """GPU to plan for, of {gpus}: time and memory are estimated from its data sheet, not measured. Unset: this machine,
    on which steps of each size are timed."""
    model_sizes: tuple[str, ...] = SIZES
    """Model sizes to choose from."""
    measure_minutes: float = 5.0
    """Minutes of short pre-trainings on the text, from which the loss is extrapolated; more of them narrow its
    interval."""
    output: Path | None = None
    """New .toml file for the settings of the planned run, as `bertwright pretrain --config` reads it."""
    format: CorpusFormat = field(default_factory=CorpusFormat)
    vocabulary: VocabularySettings = field(default_factory=VocabularySettings)
    build: BuildSettings = field(default_factory=BuildSettings)
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        check_not_str(self, "text", "model_sizes")
        if bool(self.text) == (self.store is not None):
            raise ValueError("give either --text FILE ..., or --store FOLDER as `bertwright prepare` wrote it")
        made = (self.format, self.vocabulary, self.build)
        if self.store is not None and made != (CorpusFormat(), VocabularySettings(), BuildSettings()):
            raise ValueError("--store has its documents and its vocabulary; omit the options of --text")
        check_limit(self, "above 0", "hours", "measure_minutes")
        if self.gpu is not None and self.gpu not in GPUS:
            raise ValueError(f'--gpu: no data of "{self.gpu}"; {did_you_mean(self.gpu, GPUS)}')
        if not self.model_sizes:
            raise ValueError("--model-sizes: expected at least one size")
        for size in self.model_sizes:
            if size not in SIZES:
                raise ValueError(f'--model-sizes: no size "{size}"; {did_you_mean(size, SIZES)}')
        if self.build.held_out == 0 and not self.build.held_out_inputs:
            raise ValueError("--held-out 0: expected a share above 0; the loss is measured on held-out documents")

    @classmethod
    def field_docs(cls) -> dict[str, str]:
        """Return the help of each option, with the GPUs by name."""
        return written_docs(cls, gpus=", ".join(GPUS))

    @property
    def corpus(self) -> CorpusSettings:
        """The text as settings of `vocabulary` and `prepare`."""
        return CorpusSettings(
            self.text, **{option.name: getattr(self.format, option.name) for option in fields(self.format)}
        )
