"""Training speed of the BiLSTM-CNN-CRF tagger: packed sequences beside the same net on padded batches in plain PyTorch.

    python bench/tagger.py DATA/conll2003 [--batch-sizes 10 32] [--steps 25] [--rounds 5]

The padded net is written as flair and AllenNLP batch it: words and characters padded to the longest of the batch, the
character CNN over every word, `pack_padded_sequence` around `nn.LSTM`, a CRF that steps over all padded positions with
a mask, torch.optim.Adam. Both have the sizes of Ma & Hovy (2016) and train on the same random batches of sentences, in
one process, in turn, one thread. The time is the CPU time of the process, since other programs may run on the machine;
the ratio is the median over rounds, printed with its smallest and largest value.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bilstm.bilstm import BiLSTMConfig, BiLSTMEncoder
from bertwright.tasks.collation import micro_batches, step_items
from bertwright.tasks.encoded import Encoded
from bertwright.tasks.tagging import Tagging
from bertwright.training.optimizer import Optimizer
from bertwright.training.optimizer_settings import OptimizerSettings
from bertwright.vocabulary.word_tokenizer import WordRules, WordTokenizer
from environment import describe_machine, format_ratio, keep_printed, make_parser, take_turns, use_threads

RATE, DROPOUT, CLIP = 1e-3, 0.5, 5.0
Step = Callable[[int], float]  # trains on the batch of a step and returns its loss per word


class PaddedTagger(nn.Module):
    """The same net on padded batches: B sentences of at most L words, at most W characters each."""

    def __init__(self, words: int, characters: int, tags: int) -> None:
        super().__init__()
        self.word = nn.Embedding(words, 100)
        self.character = nn.Embedding(characters, 30, padding_idx=0)
        self.filters = nn.Conv1d(30, 30, 3, padding=2)
        self.lstm = nn.LSTM(130, 200, bidirectional=True, batch_first=True)
        self.output = nn.Linear(400, tags)
        self.transitions = nn.Parameter(torch.zeros(tags, tags))
        self.start, self.end = nn.Parameter(torch.zeros(tags)), nn.Parameter(torch.zeros(tags))

    def forward(self, words: Tensor, characters: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """Compute the sum of -log p(tags) of words B × L and characters B × L × W."""
        letters = F.dropout(self.character(characters.flatten(0, 1)), DROPOUT, self.training)
        features = self.filters(letters.transpose(1, 2)).amax(2).tanh().unflatten(0, words.shape)
        embedded = F.dropout(torch.cat([self.word(words), features], 2), DROPOUT, self.training)
        lengths = mask.sum(1)
        packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        emissions = self.output(F.dropout(states, DROPOUT, self.training))
        return self.log_partition(emissions, mask) - self.path_score(emissions, tags, mask, lengths)

    def log_partition(self, emissions: Tensor, mask: Tensor) -> Tensor:
        alpha = self.start + emissions[:, 0]
        for step in range(1, emissions.shape[1]):
            after = (alpha[:, :, None] + self.transitions).logsumexp(1) + emissions[:, step]
            alpha = torch.where(mask[:, step, None], after, alpha)
        return (alpha + self.end).logsumexp(1).sum()

    def path_score(self, emissions: Tensor, tags: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
        emitted = (emissions.gather(2, tags[:, :, None])[:, :, 0] * mask).sum()
        moved = (self.transitions[tags[:, :-1], tags[:, 1:]] * mask[:, 1:]).sum()
        last = tags.gather(1, lengths[:, None] - 1)[:, 0]
        return emitted + moved + self.start[tags[:, 0]].sum() + self.end[last].sum()


def make_packed(task: Tagging, encoded: Encoded, tokenizer: WordTokenizer, batch_size: int) -> Step:
    """Return a step of bertwright's training."""
    encoder = BiLSTMEncoder(BiLSTMConfig(tokenizer.vocab_size, tokenizer.num_characters))
    encoder.sparse_gradients = True
    assert task.head_builder is not None
    model = EncoderForTask(encoder, task.head_builder(encoder)).train()
    settings = OptimizerSettings(RATE, weight_decay=0.0, max_grad_norm=CLIP, bias_correction=True)
    optimizer = Optimizer(dict(model.named_parameters()), settings)

    def step(number: int) -> float:
        (batch,) = micro_batches(encoded, number, batch_size, seed=0, max_tokens=1 << 30)
        loss = task.loss(model(batch), batch) / batch.num_labels
        torch.autograd.backward(loss)
        optimizer.step(RATE, optimizer.gradient_norm())
        return float(loss.detach())

    return step


def make_padded(task: Tagging, encoded: Encoded, tokenizer: WordTokenizer, batch_size: int) -> Step:
    """Return a step of the padded net on the same sentences, without the tokens around them."""
    model = PaddedTagger(tokenizer.vocab_size, tokenizer.num_characters, len(task.labels)).train()
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    rows = torch.from_numpy(encoded.input_ids.astype(np.int64))
    labels = torch.from_numpy(encoded.labels)

    def step(number: int) -> float:
        items = step_items(encoded.num_items, batch_size, number, seed=0)
        sentences = [rows[encoded.starts[item] + 1 : encoded.starts[item + 1] - 1] for item in items]
        tags = [labels[encoded.label_starts[item] : encoded.label_starts[item + 1]] for item in items]
        padded = pad_sequence(sentences, batch_first=True)
        widest = int((padded[:, :, 1:] > 0).sum(2).max())
        mask = pad_sequence([torch.ones(len(sentence), dtype=torch.bool) for sentence in sentences], batch_first=True)
        optimizer.zero_grad()
        given = (padded[:, :, 0], padded[:, :, 1 : 1 + widest], pad_sequence(tags, batch_first=True), mask)
        loss = model(*given) / mask.sum()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        return float(loss.detach())

    return step


class Steps:
    """The next steps of a contender at each call; three are made before."""

    def __init__(self, step: Step, count: int) -> None:
        self.step, self.count, self.numbers = step, count, itertools.count()
        for number in itertools.islice(self.numbers, 3):
            step(number)

    def __call__(self) -> None:
        for number in itertools.islice(self.numbers, self.count):
            self.step(number)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[10, 32])
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    use_threads(1)
    task = Tagging(tag_head="crf")
    examples = list(task.read(str(arguments.data / "train.txt")))
    task = task.with_labels_of(examples)
    tokenizer = WordTokenizer.learn(task.texts(examples), WordRules())
    encoded = task.encode(examples, tokenizer)
    words = len(encoded.labels)
    keep_printed(__file__, 1)
    print(f"{describe_machine(1)}\n{len(examples):,} sentences, {words:,} words, {len(task.labels)} tags")
    print(f"{'sentences a step':>16}  {'':8}{'ms a step':>10}{'words/s':>10}{'s an epoch':>12}{'ratio':>7}")
    for size in arguments.batch_sizes:
        contenders = {"padded": make_padded, "packed": make_packed}
        steps = {name: make(task, encoded, tokenizer, size) for name, make in contenders.items()}
        runs = {name: Steps(step, arguments.steps) for name, step in steps.items()}
        times = take_turns(runs, arguments.rounds, time.process_time)
        ratio = format_ratio(times["padded"], times["packed"])
        for name, seconds in times.items():
            typical = statistics.median(seconds) / arguments.steps
            epoch = typical * len(examples) / size
            last = ratio if name == "packed" else ""
            print(f"{size:>16}  {name:8}{1e3 * typical:10.1f}{words / epoch:10,.0f}{epoch:12.1f}{last}", flush=True)


if __name__ == "__main__":
    main()
