"""Pre-training, assembled: a token store in, a run folder out.

RUN/settings.toml    the settings in force          RUN/metrics.jsonl, tensorboard/, loss.png
RUN/checkpoints/     whole or absent, newest kept   RUN/model/      the result, a Hugging Face folder
RUN/report.json      what came out, in numbers
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table
from torch.nn.parallel import DistributedDataParallel

from bertwright.files import folder_lock, sweep_parts, write_json
from bertwright.interop import huggingface
from bertwright.models.config import BertConfig
from bertwright.models.heads import BertForPretraining
from bertwright.pretraining.batches import PretrainingBatch, PretrainingData, prefetch
from bertwright.pretraining.evaluation import Standstill, evaluate, scores, unigram_entropy
from bertwright.pretraining.objective import losses
from bertwright.runs.recipe import FREE, PretrainSettings
from bertwright.settings import differences, from_table, read_toml, to_table, write_settings
from bertwright.tokenstore.store import TokenStore
from bertwright.training import checkpoint, schedule
from bertwright.training.device import Place, gemm_ceiling, placed
from bertwright.training.journal import Journal, plot_losses, progress
from bertwright.training.loop import Computed, Objective, Report, steps
from bertwright.training.optimizer import AdamW
from bertwright.vocabulary.tokenizer import Tokenizer

TOKENS_A_PASS = {"cpu": 4_096, "cuda": 65_536}  # what a forward pass takes where the user does not say
EVALUATION_BATCH = 32  # sequences
STANDSTILL_STEPS = 400  # a loss this long without progress near the unigram entropy is worth a word


def pretrain(settings: PretrainSettings, console: Console | None = None) -> Path:
    """Run or resume pre-training; returns the finished model's folder, or the run folder when it was interrupted.

    Raises ValueError for settings, stores and checkpoints that do not fit, DivergedError for a loss that is not
    finite, and OSError for a disk that fails; the newest checkpoint is whole in every case.
    """
    console = console or Console()
    with ExitStack() as stack:
        place = stack.enter_context(placed(settings.device))
        if place.leads:
            stack.enter_context(folder_lock(settings.run))
            _prepare_folder(settings)
        place.wait()
        run = _open_run(settings, place, console)
        if run.optimizer.steps >= settings.steps and (settings.run / "model").is_dir():
            console.print(f"{settings.run}: finished already; the model is {settings.run / 'model'}")
            return settings.run / "model"
        return run.carry_out()


def saved_settings(run: Path) -> PretrainSettings:
    """The settings that a run folder's settings.toml holds, set to resume it."""
    path = run / "settings.toml"
    if not path.is_file():
        raise ValueError(f"{run}: no run to resume there (settings.toml is missing); leave --resume out to start one")
    return from_table(PretrainSettings, read_toml(path) | {"run": str(run), "resume": True}, str(path))


def _prepare_folder(settings: PretrainSettings) -> None:
    """Write the settings of a new run, or hold those of a resumed one to what the folder says."""
    path = settings.run / "settings.toml"
    if settings.resume:
        kept = to_table(saved_settings(settings.run))
        changed = differences(kept, to_table(settings))
        for name, (before, now) in changed.items():
            if name.partition(".")[0] not in FREE:
                raise ValueError(f"{path}: {name} was {before!r}, now {now!r}: a resumed run keeps its settings")
        sweep_parts(settings.run)
        sweep_parts(settings.run / "checkpoints")
    elif path.exists():
        raise ValueError(f"{settings.run}: holds a run already; go on with --resume, or name another --run folder")
    else:
        (settings.run / "checkpoints").mkdir(parents=True, exist_ok=True)
        write_settings(path, settings, "bertwright pretrain: the settings in force")


def _open_run(settings: PretrainSettings, place: Place, console: Console) -> _Run:
    """Store, model and optimizer, from the newest checkpoint where there is one."""
    if settings.store is None:
        raise ValueError("no token store given: --store FOLDER, as `bertwright prepare` wrote it")
    tokenizer = Tokenizer.load(settings.store / "tokenizer")
    train = TokenStore.open(settings.store / "train", tokenizer.digest)
    held_out = _held_out(settings.store / "held_out", tokenizer)
    latest = checkpoint.newest(settings.run / "checkpoints")
    model = _starting_model(settings, tokenizer, latest)
    _check_lengths(settings, model.config)
    model.encoder.compute_dtype = place.dtype
    model.to(place.device).train()
    optimizer = AdamW(dict(model.named_parameters()), settings.optimizer)
    if latest is not None:
        optimizer.load_state(checkpoint.load_optimizer(latest))
    return _Run(settings, place, console, tokenizer, model, optimizer, train, held_out)


def _held_out(folder: Path, tokenizer: Tokenizer) -> TokenStore | None:
    """The held-out part of the store; a corpus prepared without one is trained on without evaluations."""
    return TokenStore.open(folder, tokenizer.digest) if folder.is_dir() else None


def _starting_model(settings: PretrainSettings, tokenizer: Tokenizer, latest: Path | None) -> BertForPretraining:
    """The model at the run's newest checkpoint; else the one to start from; else one with random weights."""
    if latest is not None:
        return huggingface.load_model(latest).model
    if settings.model.init is None:
        config = settings.model.config(tokenizer.vocab_size, causal=settings.data.objective == "ltr")
        return BertForPretraining(config, settings.data.seed)
    folder = huggingface.find_folder(settings.model.init)
    if Tokenizer.load(folder).digest != tokenizer.digest:
        raise ValueError(
            f"{settings.model.init}: its vocabulary is not the one that {settings.store} was prepared with; "
            f"prepare the corpus again with --vocabulary {settings.model.init}"
        )
    return huggingface.load_model(folder, heads="optional").model


def _check_lengths(settings: PretrainSettings, config: BertConfig) -> None:
    for phase in settings.phases:
        if phase.data.max_length > config.max_positions:
            raise ValueError(
                f"sequences of {phase.data.max_length} tokens are asked for, but the model has {config.max_positions} "
                "positions; raise --max-positions, lower --max-length or --long-length, or leave the long phase out "
                "(--long-share 0)"
            )


@contextmanager
def _interruptible() -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM fill the list that this gives, so that the step in hand is finished and saved.

    A second Ctrl-C ends the program at once.
    """
    received: list[int] = []

    def note(number: int, _frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Window:
    """Sums since the last line of the journal."""

    def __init__(self) -> None:
        self.reports: list[Report] = []

    def add(self, report: Report) -> None:
        self.reports.append(report)

    def figures(self, ceiling: float) -> dict[str, float]:
        """The window in numbers, and the next one begins."""
        total = {name: sum(report.sums[name] for report in self.reports) for name in self.reports[0].sums}
        seconds = sum(report.seconds for report in self.reports)
        last = self.reports[-1]
        self.reports = []
        return scores(total)._asdict() | {
            "learning_rate": last.learning_rate,
            "gradient_norm": last.gradient_norm,
            "tokens_per_second": total["tokens"] / seconds,
            "utilisation": total["flops"] / seconds / ceiling,
        }


@dataclass
class _Run:
    """Everything that a run's steps touch."""

    settings: PretrainSettings
    place: Place
    console: Console
    tokenizer: Tokenizer
    model: BertForPretraining
    optimizer: AdamW
    train: TokenStore
    held_out: TokenStore | None

    def carry_out(self) -> Path:
        """The remaining steps, with everything around them."""
        settings, place = self.settings, self.place
        started = time.perf_counter()
        ceiling = gemm_ceiling(place, self.model.config.hidden_size) * place.ranks
        if not place.leads:
            for _ in self.reports([]):
                pass
            return settings.run
        self.announce(ceiling)
        journal = Journal(settings.run, self.optimizer.steps)
        with closing(journal), progress(self.console) as live, _interruptible() as received:
            if self.optimizer.steps == 0:
                self.evaluate(journal)
            self.follow(journal, live, ceiling, received)
            self.save(journal)
            if received:
                self.console.print(
                    f"Interrupted at step {self.optimizer.steps:,}, which is saved. Go on with:\n"
                    f"  bertwright pretrain --run {settings.run} --resume",
                    soft_wrap=True,  # a terminal may fold it; a command must not be broken in two
                )
                return settings.run
        return self.finish(journal, time.perf_counter() - started)

    def follow(self, journal: Journal, live: Progress, ceiling: float, received: list[int]) -> None:
        """Step by step: log, warn, evaluate, save."""
        settings = self.settings
        watch = Standstill(unigram_entropy(self.train), max(1, STANDSTILL_STEPS // settings.log_every))
        line = live.add_task("pre-training", total=settings.steps, completed=self.optimizer.steps, figures="")
        window, spoken = _Window(), time.perf_counter()
        for report in self.reports(received):
            step = report.step
            window.add(report)
            if step % settings.log_every == 0 or step == settings.steps:
                figures = window.figures(ceiling)
                journal.write("train", step, figures)
                self.show(live, line, step, figures)
                if step > settings.warmup_steps and watch.stands_still(figures["mlm_loss"]):
                    self.warn_standstill(watch.entropy)
                if not self.console.is_terminal and time.perf_counter() - spoken > 30:
                    self.console.print(f"step {step:,}/{settings.steps:,}  {_brief(figures)}")
                    spoken = time.perf_counter()
            live.update(line, completed=step)
            if step % settings.evaluate_every == 0 or step == settings.steps:
                self.evaluate(journal)
            if step % settings.save_every == 0:
                self.save(journal)

    def reports(self, received: list[int]) -> Iterator[Report]:
        """The steps still to be done, on every rank; ends early, on all ranks alike, once a signal was received."""
        objective: Any = Objective(self.model, partial(compute, self.model))
        if self.place.ranks > 1:
            objective = DistributedDataParallel(
                objective, find_unused_parameters=self.settings.data.objective != "mlm+nsp"
            )
        rate = partial(
            schedule.linear,
            peak=self.settings.optimizer.learning_rate,
            warmup=self.settings.warmup_steps,
            total=self.settings.steps,
        )
        with closing(prefetch(self.batches(self.optimizer.steps))) as batches:
            for report in steps(objective, batches, self.optimizer, rate):
                yield report
                if _on_any_rank(bool(received), self.place):
                    return

    def batches(self, first: int) -> Iterator[list[PretrainingBatch]]:
        """This rank's micro-batches of step `first` and all after it, on the device."""
        for phase in self.settings.phases:
            data = PretrainingData(self.train, self.tokenizer, phase.data)
            size = self.settings.micro_batch or max(1, TOKENS_A_PASS[self.place.device.type] // phase.data.max_length)
            for step in range(max(phase.first, first), phase.end):
                parts = data.step(step, self.place.rank, self.place.ranks, size)
                yield [part.to(self.place.device) for part in parts]

    def announce(self, ceiling: float) -> None:
        """What is about to happen, before it takes its time."""
        settings, config = self.settings, self.model.config
        self.console.print(
            f"[bold]Model[/bold]  L{config.num_layers} H{config.hidden_size} A{config.num_heads}, "
            f"{config.num_parameters:,} parameters, vocabulary {config.vocab_size:,}\n"
            f"[bold]Place[/bold]  {self.place}; matrix products reach {ceiling / 1e9:,.0f} GFLOP/s here"
        )
        for phase in settings.phases:
            data = PretrainingData(self.train, self.tokenizer, phase.data)
            self.console.print(f"[bold]Steps[/bold]  {phase.first:,} to {phase.end:,}, length {phase.data.max_length}")
            self.console.print(f"{data.describe(phase.end - phase.first)}", style="dim")
        if self.optimizer.steps:
            self.console.print(f"Resuming after step {self.optimizer.steps:,}")

    def evaluate(self, journal: Journal) -> None:
        """Score the model as it is on the held-out part, unless the journal has the scores of this step already."""
        if self.held_out is None or self.optimizer.steps in journal.evaluations:
            return
        # One batch size for every run, because the fixed draws belong to it.
        data = replace(self.settings.phases[0].data, batch_size=EVALUATION_BATCH)
        sequences = PretrainingData(self.held_out, self.tokenizer, data).held_out(self.settings.evaluate_sequences)
        found = evaluate(self.model, (batch.to(self.place.device) for batch in sequences))._asdict()
        journal.write("held_out", self.optimizer.steps, found)
        self.console.print(f"held out after step {self.optimizer.steps:,}: {_brief(found)}")

    def save(self, journal: Journal) -> None:
        """A whole checkpoint of this step; the journal reaches the disk first."""
        journal.flush()
        write_model = partial(huggingface.write_model, model=self.model, tokenizer=self.tokenizer)
        folder = self.settings.run / "checkpoints"
        checkpoint.save(folder, self.optimizer.steps, write_model, self.optimizer.state(), self.settings.keep)

    def finish(self, journal: Journal, seconds: float) -> Path:
        """Write the model, the plot and the report of a run that has done all its steps, and show what came out."""
        run, folder = self.settings.run, self.settings.run / "model"
        if not folder.is_dir():
            huggingface.save_model(folder, self.model, self.tokenizer)
        plot_losses(run, run / "loss.png")
        evaluations = [journal.evaluations[step] for step in sorted(journal.evaluations)]
        outcome = {
            "steps": self.optimizer.steps,
            "seconds_of_this_process": seconds,
            "held_out_before": evaluations[0] if evaluations else None,
            "held_out_after": evaluations[-1] if evaluations else None,
        }
        write_json(run / "report.json", outcome)
        if evaluations:
            self.console.print(_before_and_after(evaluations[0], evaluations[-1]))
        self.console.print(
            f"Model        {folder}\nLoss plot    {run / 'loss.png'}\nAll figures  {run / 'metrics.jsonl'}\n"
            f'Try it       bertwright fill-mask {folder} "Some text with a \\[MASK] in it."',
            soft_wrap=True,
        )
        return folder

    def show(self, live: Progress, line: TaskID, step: int, figures: dict[str, float]) -> None:
        live.update(line, completed=step, figures=_brief(figures))

    def warn_standstill(self, entropy: float) -> None:
        self.console.print(
            f"[yellow]The loss stands still near {entropy:.2f}, what token frequencies alone give: nothing is learned "
            "from context.[/yellow] Usual causes: a rate too high (try a third of --learning-rate) or too low, the "
            "warm-up too short (--warmup-share), too few sequences a step (--batch-size), or text without sentences "
            "(`bertwright survey`). A small model may also just need more steps: this is said once."
        )


def compute(model: BertForPretraining, batch: PretrainingBatch) -> Computed:
    """One micro-batch's share of the loss, and what the journal sums up."""
    found = losses(model, batch)
    lengths = batch.batch.cu_seqlens.diff().cpu().numpy()
    flops = model.config.training_flops(lengths, len(batch.mlm_labels), pooled=len(batch.nsp_labels) > 0)
    counts = {
        "mlm_count": len(batch.mlm_labels),
        "nsp_count": len(batch.nsp_labels),
        "tokens": batch.batch.num_tokens,
        "flops": flops,
    }
    sums = {name: getattr(found, name) for name in ("mlm_sum", "mlm_correct", "nsp_sum", "nsp_correct")}
    device = found.loss.device
    return Computed(
        found.loss, sums | {name: torch.tensor(float(value), device=device) for name, value in counts.items()}
    )


def _before_and_after(before: dict[str, Any], after: dict[str, Any]) -> Table:
    """Held-out scores of the first and the last evaluation, side by side."""
    table = Table(title="Held out", title_justify="left")
    for heading in ("", f"step {before['step']:,}", f"step {after['step']:,}"):
        table.add_column(heading, justify="right" if heading else "left")
    rows = {
        "mlm_loss": "masked-LM loss (nats)",
        "perplexity": "masked-LM perplexity",
        "mlm_accuracy": "masked-LM accuracy",
    }
    if after["nsp_loss"]:
        rows["nsp_accuracy"] = "next-sentence accuracy"
    for name, label in rows.items():
        form = "{:.1%}" if "accuracy" in name else "{:,.3f}"
        table.add_row(label, form.format(before[name]).replace("%", " %"), form.format(after[name]).replace("%", " %"))
    return table


def _on_any_rank(flag: bool, place: Place) -> bool:
    """Whether the flag is up on some rank: ranks must stop at the same step."""
    if place.ranks == 1:
        return flag
    raised = torch.tensor(float(flag), device=place.device)
    dist.all_reduce(raised)
    return bool(raised > 0)


def _brief(figures: dict[str, float]) -> str:
    """The figures that fit on a line.

    >>> _brief({"mlm_loss": 6.5, "mlm_accuracy": 0.1, "nsp_accuracy": 0.5, "nsp_loss": 0.7})
    'masked-LM loss 6.500, accuracy 10.0 %, next sentence 50.0 %'
    """
    text = f"masked-LM loss {figures['mlm_loss']:.3f}, accuracy {figures['mlm_accuracy']:.1%}".replace("%", " %")
    if figures["nsp_loss"]:
        text += f", next sentence {figures['nsp_accuracy']:.1%}".replace("%", " %")
    if "tokens_per_second" in figures:
        text += f", {figures['tokens_per_second']:,.0f} tokens/s"
    return text
