"""Translate with a trained model: `load_translator(folder).translate(texts)`, and `bertwright translate`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bertwright.base.files import new_file
from bertwright.base.reporter import SILENT, Line, ProgressCallback, Reporter
from bertwright.interop.model_files import model_folder
from bertwright.metrics.bleu import corpus_bleu
from bertwright.models.beam_search import beam_search
from bertwright.systems.translation_models import TranslationSystem, load_translation_system
from bertwright.text.decoding import TextCodec, read_stdin
from bertwright.text.lines import split_lines
from bertwright.text.sources import STDIN
from bertwright.training.context import execution_context
from bertwright.training.loop import evaluation_mode
from bertwright.translation.parallel_text import encode_sources, pack_texts, read_lines
from bertwright.translation.settings import TranslateSettings


@dataclass(frozen=True)
class Translator:
    """A model with its tokenizers and the settings of decoding (section 6.1)."""

    system: TranslationSystem
    beam_size: int = 4
    length_penalty: float = 0.6
    extra_length: int = 50
    batch_size: int = 32

    def translate(self, texts: Sequence[str], advance: ProgressCallback = lambda done: None) -> list[str]:
        """Translate texts, in the same order; a text without words has the translation "".

        Texts of similar length are translated together. `advance` receives the number of finished ones.
        """
        model, _, target = self.system
        sources, specials = encode_sources(texts, self.system)
        lengths = np.diff(sources.offsets)
        order = np.argsort(-lengths, kind="stable")
        translations = [""] * len(texts)
        order = order[lengths[order] > specials]
        advance(len(texts) - len(order))
        device, first, last = next(model.parameters()).device, target.layout.first, target.layout.last
        with evaluation_mode(model), torch.inference_mode():
            for begin in range(0, len(order), self.batch_size):
                chosen = order[begin : begin + self.batch_size]
                decoder = model.start_decoding(pack_texts(sources, chosen).to(device))
                longest = lengths[chosen] + self.extra_length
                best = beam_search(decoder, longest, self.beam_size, self.length_penalty, first, last)
                for number, hypothesis in zip(chosen.tolist(), best, strict=True):
                    translations[number] = target.decode(hypothesis.tokens)
                advance(len(chosen))
        return translations


def load_translator(
    folder: Path | str, beam_size: int = 4, length_penalty: float = 0.6, extra_length: int = 50, batch_size: int = 32
) -> Translator:
    """Open the folder of a translation model, or its run. Raises ValueError for another kind of folder."""
    system = load_translation_system(model_folder(folder))
    return Translator(system, beam_size, length_penalty, extra_length, batch_size)


def translate(settings: TranslateSettings, reporter: Reporter = SILENT) -> None:
    """Translate texts or files; print or write the translations, and score them if there are references.

    Raises ValueError for a folder without a translation model, for text that cannot be decoded, and for references
    that are not one per line of the inputs.
    """
    texts = settings.texts or _read_inputs(settings)
    references = _read_references(settings, len(texts))
    with execution_context(settings.device) as context:
        decoding = (settings.beam_size, settings.length_penalty, settings.extra_length, settings.batch_size)
        translator = load_translator(settings.model, *decoding)
        translator.system.model.compute_dtype = context.dtype
        translator.system.model.to(context.device)
        started = time.perf_counter()
        with reporter.progress("translating", len(texts)) as advance:
            translations = translator.translate(texts, advance)
        rate = len(texts) / (time.perf_counter() - started)
    if settings.output is not None:
        with new_file(settings.output) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in translations), encoding="utf-8", newline="\n")
        reporter.record(Line(f"{settings.output}: {len(texts):,} translations, {rate:,.0f} per second"))
    elif not references:
        for line in translations:
            reporter.record(Line(line))
    if references:
        bleu = corpus_bleu(translations, *references, tokenize=settings.bleu_tokenize)
        reporter.record(
            Line(f"BLEU {bleu.score:.2f} on {len(texts):,} sentences, beam {settings.beam_size}, {bleu.signature}")
        )
    if empty := sum(not line and bool(text.strip()) for text, line in zip(texts, translations, strict=True)):
        reporter.note(f"{empty:,} of {len(texts):,} translations are empty: the model ended them before the first word")


def _read_references(settings: TranslateSettings, count: int) -> list[list[str]]:
    """Read the references of `count` texts: files of as many lines each, or one reference in as many files as inputs.

    Raises ValueError for other numbers of lines.
    """
    files = [read_lines(path, settings.encoding) for path in settings.references]
    lines = [line for file in files for line in file]
    if all(len(file) == count for file in files):
        return files
    if len(lines) == count:
        return [lines]
    raise ValueError(
        f"{settings.references[0]}: expected {count:,} lines, one reference for each line of --inputs, got "
        f"{len(lines):,}; several references of a text are files of {count:,} lines each"
    )


def _read_inputs(settings: TranslateSettings) -> list[str]:
    if settings.inputs == (STDIN,):
        blocks = read_stdin(TextCodec(settings.encoding))
        return [line.strip() for _, line in split_lines(STDIN, blocks)]
    return [line for path in settings.inputs for line in read_lines(path, settings.encoding)]
