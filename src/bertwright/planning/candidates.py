"""Candidates of a plan: for each model size the run that fits the hours, its cost, and the loss to expect of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertwright.base.files import read_json
from bertwright.base.reporter import MUTE, ProgressCallback
from bertwright.objectives.data import unigram_entropy
from bertwright.objectives.objective import Examples
from bertwright.planning.gpus import GPUS, Gpu, estimate_memory, estimate_seconds
from bertwright.planning.plan_settings import SIZES, PlanSettings
from bertwright.planning.recipe_choice import choose_settings
from bertwright.planning.scaling_law import (
    ExpectedLoss,
    ScalingLaw,
    ShortRun,
    count_effective_tokens,
    has_left_plateau,
)
from bertwright.pretraining.run import measure_cost, pretrain
from bertwright.pretraining.settings import PretrainSettings
from bertwright.surveying.small_corpus import max_epochs
from bertwright.tokenstore.store import TokenStore, open_held_out
from bertwright.training.context import select_device
from bertwright.training.cost import CostEstimate
from bertwright.training.device_settings import DeviceSettings
from bertwright.training.throughput import memory_of
from bertwright.vocabulary.open_tokenizer import open_tokenizer

if TYPE_CHECKING:
    from bertwright.systems.bert.bert_config import BertConfig

SHORT_RUNS = (1, 2, 4)  # numbers of steps, relative to the shortest run
TIMED_TOKENS = 7e6  # tokens of the run whose cost decides the length of the short runs
GUESSED_TOKENS = 30e6  # tokens of the run that is measured first
BYTES_PER_PARAMETER = 16  # weight, gradient and two moments


@dataclass(frozen=True)
class Candidate:
    """A run that takes the hours of the plan, or as long as its text is of use."""

    settings: PretrainSettings
    config: BertConfig
    tokens: float
    epochs: float
    cost: CostEstimate
    loss: ExpectedLoss

    @property
    def size(self) -> str:
        return str(self.settings.model.size)


class Planner:
    """Maker of candidate runs on a token store, with their cost and their expected loss."""

    def __init__(self, settings: PlanSettings, store: Path) -> None:
        """Open the store. Raises ValueError if it has too few held-out documents."""
        self.settings = settings
        self.sizes = [size for size in SIZES if size in settings.model_sizes]
        self.store = store
        self.tokenizer = open_tokenizer(store / "tokenizer")
        self.train = TokenStore.open(store / "train", self.tokenizer.digest)
        open_held_out(store, self.tokenizer.digest)
        self.entropy = unigram_entropy(self.train)
        self.max_epochs = max_epochs(self.train.num_tokens)

    def choose_settings(self, size: str, tokens: float) -> PretrainSettings:
        """Return the settings of a run over a number of tokens of the store; a GPU has its own dtype."""
        chosen = choose_settings(size, tokens, tokens / self.train.num_tokens)
        device = self.settings.device if self.settings.gpu is None else DeviceSettings()
        return replace(chosen, store=self.store, device=device)

    def run_short(self, folder: Path, advance: ProgressCallback) -> Iterator[ShortRun]:
        """Pre-train the smallest size for a few minutes in all; yield each run when it is finished."""
        chosen = self.choose_settings(self.sizes[0], TIMED_TOKENS)
        timed = replace(chosen, device=self.settings.device, long=replace(chosen.long, long_ratio=0.0))
        seconds_per_step = measure_cost(timed).seconds / timed.steps
        unit = max(1, int(60 * self.settings.measure_minutes / sum(SHORT_RUNS) / seconds_per_step))
        for steps in (proportion * unit for proportion in SHORT_RUNS):
            run = replace(timed, run=folder / str(steps), steps=steps, eval_every=steps, save_every=steps)
            pretrain(run, MUTE)
            held_out = read_json(run.run / "report.json")["held_out_after"]
            tokens = count_effective_tokens(*self.read_data(run))
            yield ShortRun(self.config(run).num_layer_parameters, tokens, held_out[run.objective.loss_metric])
            advance(1)

    def list_candidates(self, short_runs: Sequence[ShortRun]) -> list[Candidate]:
        """Return a candidate per size, smallest first, up to the first size with a higher loss than the one before.

        On this machine, larger sizes whose training does not fit the memory are left out.
        """
        law = ScalingLaw.fit([run for run in short_runs if has_left_plateau(run.loss, self.entropy)])
        first, *larger = self.sizes
        candidates = [self.fit_to_hours(first, law)]
        for size in larger:
            if self.settings.gpu is None and not self.fits_memory(self.choose_settings(size, GUESSED_TOKENS)):
                break
            candidates.append(self.fit_to_hours(size, law))
            if candidates[-1].loss.mean > candidates[-2].loss.mean:
                break
        return candidates

    def fit_to_hours(self, size: str, law: ScalingLaw) -> Candidate:
        """Return the run of a size that takes the hours, or reads the text `max_epochs` times if that is shorter."""
        tokens, cost = GUESSED_TOKENS, CostEstimate(0, 0.0)
        for _ in range(2):  # tokens decide the batch size, on which the speed depends
            run = self.choose_settings(size, tokens)
            gpu = self.settings.gpu
            cost = measure_cost(run) if gpu is None else self.estimate_cost(run, GPUS[gpu])
            longest = self.max_epochs * self.train.num_tokens
            factor = min(3600 * self.settings.hours / cost.seconds, longest / tokens)
            tokens, cost = factor * tokens, cost._replace(seconds=factor * cost.seconds)
        run = self.choose_settings(size, tokens)
        tokens, epochs = self.read_data(run)
        config = self.config(run)
        loss = law.predict(config.num_layer_parameters, count_effective_tokens(tokens, epochs))
        return Candidate(run, config, tokens, epochs, cost._replace(steps=run.steps), loss)

    def estimate_cost(self, run: PretrainSettings, gpu: Gpu) -> CostEstimate:
        """Estimate the cost of a run from its operations and a GPU's data sheet."""
        config, flops = self.config(run), 0.0
        for phase, examples in zip(run.phases, self.open_examples(run), strict=True):
            data = examples.describe(1)
            lengths = [round(data.tokens_per_step / phase.data.batch_size)] * phase.data.batch_size
            per_step = config.count_training_flops(lengths, round(data.predictions_per_step), pooled=True)
            flops += (phase.end - phase.first) * per_step
        step_tokens = max(phase.data.batch_size * phase.data.max_length for phase in run.phases)
        memory = estimate_memory(gpu, config, step_tokens)
        return CostEstimate(run.steps, estimate_seconds(gpu, config, flops), memory=memory)

    def read_data(self, run: PretrainSettings) -> tuple[float, float]:
        """Return the numbers of tokens and of epochs that a run reads."""
        tokens = epochs = 0.0
        for phase, examples in zip(run.phases, self.open_examples(run), strict=True):
            steps = phase.end - phase.first
            data = examples.describe(steps)
            tokens += steps * data.tokens_per_step
            epochs += data.epochs
        return tokens, epochs

    def open_examples(self, run: PretrainSettings) -> Sequence[Examples[Any]]:
        return run.objective.open_examples(self.store / "train", self.tokenizer, [phase.data for phase in run.phases])

    def config(self, run: PretrainSettings) -> BertConfig:
        return run.model.config(self.tokenizer.vocab_size, causal=False)

    def fits_memory(self, run: PretrainSettings) -> bool:
        """Return whether weights, gradients and moments fit the memory of the device."""
        available = memory_of(select_device(run.device))
        return available is None or BYTES_PER_PARAMETER * self.config(run).num_parameters < available
