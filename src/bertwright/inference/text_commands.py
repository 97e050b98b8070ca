"""The commands that answer about single texts: fill-mask, next-sentence, generate and score."""

from __future__ import annotations

from bertwright.base.reporter import SILENT, Line, Reporter, Rows
from bertwright.inference.bert import load_in
from bertwright.inference.fill_mask import MaskPrediction
from bertwright.inference.generation import Generation
from bertwright.inference.text_scores import TextScore
from bertwright.inference.text_settings import (
    FillMaskSettings,
    GenerateSettings,
    NextSentenceSettings,
    ScoreSettings,
    check_number_of_texts,
)
from bertwright.text.decoding import FIX_INPUT, TextCodec
from bertwright.text.stdin_texts import expand_stdin
from bertwright.training.context import execution_context


def fill_masks(settings: FillMaskSettings, reporter: Reporter = SILENT) -> list[MaskPrediction]:
    """Return the candidates for each [MASK] of each text. Raises ValueError for a text without a [MASK]."""
    texts = expand_stdin(settings.texts, TextCodec(hint=FIX_INPUT))
    with execution_context(settings.device) as context:
        predictions = load_in(context, settings.model).fill_mask(texts, settings.top_k)
    for prediction in predictions:
        reporter.record(prediction)
    return predictions


def score_next_sentences(settings: NextSentenceSettings, reporter: Reporter = SILENT) -> list[float]:
    """Return the probability that each text but the first follows the one before it.

    Raises ValueError for fewer than two texts, and for a model that was pre-trained without this task.
    """
    texts = expand_stdin(settings.texts, TextCodec(hint=FIX_INPUT))
    check_number_of_texts(texts)
    with execution_context(settings.device) as context:
        probabilities = load_in(context, settings.model).next_sentence(texts[:-1], texts[1:])
    shown = ["", *(f"{probability:.1%}" for probability in probabilities)]
    reporter.record(Rows(("text", "follows the one before"), list(zip(texts, shown, strict=True)), texts=(0,)))
    return probabilities


def continue_texts(settings: GenerateSettings, reporter: Reporter = SILENT) -> list[Generation]:
    """Return a continuation of each prompt.

    Raises ValueError for an empty prompt, and for a model that is not a left-to-right language model.
    """
    prompts = expand_stdin(settings.texts, TextCodec(hint=FIX_INPUT))
    with execution_context(settings.device) as context:
        generations = load_in(context, settings.model).generate(prompts, settings.generation)
    rows = [
        (prompt, generation.text, f"{generation.log_probability:.2f}")
        for prompt, generation in zip(prompts, generations, strict=True)
    ]
    reporter.record(Rows(("text", "continuation", "log-probability"), rows, texts=(0,)))
    reporter.record(Line(f"tokens: {settings.generation}", "minor"))
    return generations


def score_texts(settings: ScoreSettings, reporter: Reporter = SILENT) -> list[TextScore]:
    """Return the score of each text.

    Raises ValueError for a text without a token to predict, and for a model that is no left-to-right language model.
    """
    texts = expand_stdin(settings.texts, TextCodec(hint=FIX_INPUT))
    with execution_context(settings.device) as context:
        scores = load_in(context, settings.model).score(texts)
    total = TextScore(sum(score.log_probability for score in scores), sum(score.tokens for score in scores))
    named = [*zip(texts, scores, strict=True), *([("all together", total)] if len(texts) > 1 else [])]
    rows = [
        (text, f"{score.tokens:,}", f"{score.log_probability:,.2f}", f"{score.perplexity:,.1f}")
        for text, score in named
    ]
    reporter.record(Rows(("text", "tokens", "log-probability", "perplexity"), rows, texts=(0,)))
    return scores
