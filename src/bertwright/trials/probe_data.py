"""Data of a probe: the task, the frozen states of each split, and the training of one head on them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product, starmap
from pathlib import Path

from bertwright.base.files import digest_bytes, ensure_folder
from bertwright.base.reporter import Fields, Reporter
from bertwright.finetuning.pooling_choice import PoolingChoice, choose_pooling
from bertwright.finetuning.settings import TuningSettings
from bertwright.inference.feature_cache import (
    Features,
    LayerStates,
    check_cache_key,
    encoder_digest,
    input_digest,
    load_or_compute_features,
)
from bertwright.interop.huggingface import build_model, check_vocabulary, read_config, read_source
from bertwright.interop.model_files import model_folder
from bertwright.models.encoder import TextEncoder
from bertwright.models.feature_head import FeatureHead, FeatureHeadConfig
from bertwright.models.representations import Representation, expand_representations, select_layers
from bertwright.tables.tag_schemes import split_tag
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_data import SplitData, data_warnings, read_splits, within_positions
from bertwright.training.context import ExecutionContext
from bertwright.training.cost import time_steps
from bertwright.training.fit import FitSettings, TrainingSpec, fit
from bertwright.training.run_folder import read_run_settings
from bertwright.trials.probe_settings import ProbeSettings, ProbeTrial
from bertwright.trials.probe_training import HeadBatch, HeadData, make_spec, predict, score
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from bertwright.vocabulary.tokenizer import TextTokenizer

EXAMPLES = "examples"  # folder
CONLL_2003 = {"LOC", "MISC", "ORG", "PER"}  # the entity types of table 7


def open_probe(settings: ProbeSettings, context: ExecutionContext, reporter: Reporter) -> ProbeData:
    """Read and check model, examples and cached features; nothing has been written at that point.

    A resumed probe also has the heads of its folder.
    """
    if settings.resume:
        settings = settings.extend(read_run_settings(ProbeSettings, settings.run))
    folder = model_folder(settings.model)
    source, tokenizer = read_source(folder, read_config(folder)), open_tokenizer(folder)
    encoder = build_model(source).model.encoder
    check_vocabulary(tokenizer, encoder.config, folder)
    encoder.compute_dtype = context.dtype
    representations = expand_representations(settings.representations, encoder.config.num_layers)
    task, examples = read_splits(settings.task, settings.validation_fraction, settings.limit)
    if "dev" not in examples:
        raise ValueError("no dev examples: name files with --dev, or a published task's folder with --data")
    if task.head.kind == "span":
        raise ValueError(f"{task.kind}: reads the states of all tokens, too many to cache; fine-tune the model instead")
    task = within_positions(task, settings.task.overrides, encoder.config.max_positions)
    splits = [SplitData(name, split, task.encode(split, tokenizer)) for name, split in examples.items()]
    pooling = choose_pooling(TuningSettings(pooling=settings.pooling), task, folder, source)
    encoder.to(context.device)
    data = ProbeData(settings, context, reporter, task, encoder, tokenizer, splits, representations, pooling)
    if cached := [split for split in splits if data.features_folder(split).exists()]:
        model = encoder_digest(data.encoder, data.pooling.modes)
        for split in cached:
            check_cache_key(data.features_folder(split), model, input_digest(split.encoded))
    return data


@dataclass
class ProbeData:
    """Encoder, task and data of a probe."""

    settings: ProbeSettings
    context: ExecutionContext
    reporter: Reporter
    task: AnyTask
    encoder: TextEncoder
    tokenizer: TextTokenizer
    splits: list[SplitData]
    representations: Mapping[str, Representation]
    pooling: PoolingChoice
    """What the vector of a text is, for tasks that read one; no modes: the state of [CLS] or of the last token."""

    @property
    def trials(self) -> list[ProbeTrial]:
        """All heads, the finished ones included."""
        of_head = product(self.representations, self.settings.learning_rates, self.settings.seeds)
        return [*starmap(ProbeTrial, of_head)]

    @property
    def is_conll_2003(self) -> bool:
        """Whether the data set has the tags of CoNLL-2003, so that the paper's scores are comparable."""
        types = {split_tag(name)[1] for name in self.task.label_names} - {""}
        return self.task.head.kind == "token" and self.task.metric == "f1" and types == CONLL_2003

    def count_numbers(self) -> int:
        states = sum(len(split.encoded.positions) for split in self.splits)
        layers = {layer for name in self.representations for layer in self.layers(name)}
        return states * len(layers) * max(1, len(self.pooling.modes)) * self.encoder.config.hidden_size

    def print_summary(self) -> None:
        """Print the task, the encoder, the data and the heads, then warnings about the data."""
        config, settings, head = self.encoder.config, self.settings, self.head_config(next(iter(self.representations)))
        lstm = f"{head.lstm_layers}-layer BiLSTM of {head.lstm_size}, " if head.lstm_layers else ""
        name, kind = settings.task.task, self.task.kind
        fields = {
            "task": f"{name if name == kind else f'{name} ({kind})'}, best by {self.task.metric}",
            "frozen": f"{config}, from {settings.model}",
        }
        if self.pooling.modes:
            fields["text vector"] = self.pooling.describe()
        for split in self.splits:
            fields[split.name] = f"{len(split.examples):,} examples, {len(split.encoded.positions):,} states"
        epochs = f"{settings.epochs} epochs in batches of {settings.batch_size}"
        fields["head"] = f"{lstm}linear, {head.outputs} outputs; {epochs}"
        fields["heads"] = f"{len(self.trials)}, of {len(self.representations)} representations"
        fields["device"] = str(self.context)
        self.reporter.record(Fields(fields))
        for warning in data_warnings(self.task, settings.task, self.splits, self.tokenizer, config.max_positions):
            self.reporter.note(warning)

    def compute_features(self, split: SplitData) -> Features:
        """Return the states of one split; compute them if they are not cached."""
        layers = {layer for name in self.representations for layer in self.layers(name)}
        with self.reporter.progress(f"features of {split.name}", split.encoded.num_items) as advance:
            states = LayerStates(self.encoder, sorted(layers), self.task.head.reads_sequence_state, self.pooling.modes)
            return load_or_compute_features(states, split.encoded, self.features_folder(split), advance)

    def features_folder(self, split: SplitData) -> Path:
        return (self.settings.features or self.settings.run / "features") / split.name

    @cached_property
    def features(self) -> dict[str, Features]:
        """The states of each split; they are computed now if they are not cached."""
        return {split.name: self.compute_features(split) for split in self.splits}

    def digest_source(self) -> str:
        """Return the digest of the data that heads are trained and scored on."""
        digests = []
        for split in self.splits:
            header = self.features[split.name].header
            digests += [header.model, header.data, digest_bytes(split.encoded.labels.tobytes())]
        return digest_bytes(*(digest.encode() for digest in digests))

    def layers(self, name: str) -> tuple[int, ...]:
        return select_layers(self.representations[name], self.encoder.config.num_layers)

    def head_config(self, name: str) -> FeatureHeadConfig:
        head, settings = self.task.head, self.settings
        return FeatureHeadConfig(
            num_layers=len(self.layers(name)),
            weighted=self.representations[name].weighted,
            hidden_size=max(1, len(self.pooling.modes)) * self.encoder.config.hidden_size,
            outputs=head.outputs,
            lstm_size=settings.lstm_size,
            lstm_layers=settings.lstm_layers if head.kind == "token" else 0,
        )

    def start_head(self, trial: ProbeTrial) -> tuple[FeatureHead, dict[str, HeadData], TrainingSpec[HeadBatch]]:
        """Return a head with its initial weights, its data by split, and its training."""
        layers, device = self.layers(trial.representation), self.context.device
        data = {split.name: HeadData(split, self.features[split.name], layers, device) for split in self.splits}
        head = FeatureHead(self.head_config(trial.representation), trial.seed).to(device)
        return head, data, make_spec(head, self.task, data, self.settings, trial)

    def train(self, trial: ProbeTrial, reporter: Reporter) -> dict[str, float]:
        """Train one head from its seed; return the scores of its best epoch. Raises KeyboardInterrupt as `fit` does."""
        settings, metric = self.settings, self.task.metric
        head, data, spec = self.start_head(trial)
        spec = replace(spec, format_metrics=lambda metrics: f"{trial}: loss {metrics['loss']:.3f}", format_scores=None)
        per_epoch = data["train"].count_steps(settings.batch_size)
        steps = settings.epochs * per_epoch
        fit_settings = FitSettings(None, steps, eval_steps=range(per_epoch, steps, per_epoch), metric=metric)
        best = fit(fit_settings, spec, self.context, reporter)
        if numbers := self.task.example_scores(data["dev"].split.examples, predict(head, self.task, data["dev"])):
            ensure_folder(settings.run / EXAMPLES)
            numbers.save(settings.run / EXAMPLES / f"{trial.name}.npz")
        scores = {**best.scores, "dev": best.scores[metric], "epoch": best.step // per_epoch}
        if "test" in data:
            test = score(head, self.task, data["test"])
            scores |= {f"test_{name}": value for name, value in test.items()} | {"test": test[metric]}
        return scores

    def time_head(self, representation: str) -> float:
        """Measure a few steps of a head and a prediction of dev; return the estimated seconds of its training."""
        settings = self.settings
        head, data, spec = self.start_head(ProbeTrial(representation, settings.learning_rates[0], settings.seeds[0]))
        step = time_steps(spec, self.context)
        started = time.perf_counter()
        score(head, self.task, data["dev"])
        evaluation = time.perf_counter() - started
        return settings.epochs * (data["train"].count_steps(settings.batch_size) * step + evaluation)
