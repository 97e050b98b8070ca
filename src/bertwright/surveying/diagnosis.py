"""Diagnosis of a survey: what in a corpus will hurt pre-training, and how to fix it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from unicodedata import combining

from bertwright.base.messages import count_of
from bertwright.surveying.corpus_statistics import LONG_LINE, LONG_WORD, Survey
from bertwright.surveying.small_corpus import MAX_EPOCHS_OF_SMALL, SMALL, TOKENS_PER_WORD, min_held_out_share

UNSPACED = frozenset("Han Kana Thai Lao Myanmar Khmer Tibetan".split())  # scripts without spaces between words
CHARACTERS_PER_WORD = 2  # rough number for scripts without spaces
MAX_MARKED = 0.01  # share of letters with marks
MIN_CHARACTERS_PER_DECOMPOSED = 100_000
COMPOSE = (
    'Compose them: python -c \'import sys, unicodedata; sys.stdout.writelines(unicodedata.normalize("NFC", line) for '
    "line in sys.stdin)' < OLD.txt > NEW.txt"
)
MAX_PERCENT = 20  # largest share of a corpus to hold out


def diagnose(survey: Survey) -> list[str]:
    """Return warnings, each with its figure and a fix; empty if nothing will hurt pre-training."""
    return [
        *_file_warnings(survey),
        *_document_warnings(survey),
        *_repetition_warnings(survey),
        *_character_warnings(survey),
        *_loss_warnings(survey),
        *_markup_warnings(survey),
    ]


def estimate_words(survey: Survey) -> int:
    """Return the number of words, at least 1; in scripts without spaces, two characters count as one."""
    unspaced = sum(share for script, share in survey.scripts.items() if script in UNSPACED)
    return max(1, round(survey.words * (1 - unspaced) + survey.characters * unspaced / CHARACTERS_PER_WORD))


def _file_warnings(survey: Survey) -> Iterator[str]:
    damaged = [file for file in survey.unreadable if not file.is_empty]
    if damaged:
        files, them = ("1 file", "it") if len(damaged) == 1 else (f"{len(damaged):,} files", "the first of them")
        yield (
            f"{files} cannot be read, and every later stage stops at {them}. Fix or move what cannot be read, or name "
            "the other files by a glob such as folder/**/*.txt."
        )
    if empty := len(survey.unreadable) - len(damaged):
        files, them = ("1 file is", "it") if empty == 1 else (f"{empty:,} files are", "them")
        yield f"{files} empty; every later stage leaves {them} out."


def _document_warnings(survey: Survey) -> Iterator[str]:
    if survey.documents == 1:
        yield (
            "There is only one document, so no sentence of another document can serve as a next-sentence negative. Put "
            "blank lines between documents, or use one file per document (--document-unit file)."
        )
    elif survey.one_sentence_documents > 0.5:
        yield (
            f"{survey.one_sentence_documents:.0%} of the documents are a single sentence, which has no next one. If "
            "blank lines end paragraphs here, set what a document is (--document-unit file, or file= before an input); "
            "otherwise train with the masked-LM objective alone."
        )
    elif survey.sentences_per_document.mean < 4:
        yield (
            f"Documents have {survey.sentences_per_document.mean:.1f} sentences on average, fewer than two segments of "
            "128 tokens need; most sequences will be short. Use whole files or articles as documents."
        )
    if (words := estimate_words(survey)) < SMALL:
        yield (
            f"{words:,} words are little text: BERT saw 3,300 million (section 3.1). Under {SMALL:,}, expect a model "
            "that learns frequent words and repeats them; add text, or start from a released model. A model memorizes "
            f"what it reads more than about {MAX_EPOCHS_OF_SMALL} times. {_advise_held_out(words)}"
        )
    if survey.sentence_lengths.p99 > 2_000:
        yield (
            f"One sentence in a hundred is longer than {survey.sentence_lengths.p99:,} characters: text without "
            "punctuation, tables or code. Sentences of more than 10,000 characters are cut."
        )


def _advise_held_out(words: int) -> str:
    """Return the advice on the share of a small corpus to hold out, in round percent."""
    percent = math.ceil(100 * min_held_out_share(words * TOKENS_PER_WORD))
    if percent > MAX_PERCENT:
        return "It is too little to hold out text that measures the loss; name other text (prepare --held-out-inputs)."
    return f"To measure its loss, hold out at least {percent} % (prepare --held-out {percent / 100:g})."


def _repetition_warnings(survey: Survey) -> Iterator[str]:
    if survey.duplicate_documents > 0.01:
        yield (
            f"{survey.duplicate_documents:.1%} of the documents are copies of an earlier one; the model memorizes "
            "them. Remove them."
        )
    if survey.duplicate_lines > 0.1:
        yield f"{survey.duplicate_lines:.1%} of the lines repeat an earlier one: headers, footers, menus? Remove them."
    line, count = max(survey.frequent_lines, key=lambda item: item[1], default=("", 0))
    if len(line) >= 20 and count > max(20, survey.documents // 10):
        yield f"Boilerplate: {line[:70]!r} occurs {count:,} times. Remove such lines before training."


def _character_warnings(survey: Survey) -> Iterator[str]:
    if survey.bad_bytes:
        yield (
            f"{survey.bad_bytes:,} byte sequences are invalid (first: {survey.first_bad_bytes}), and every later stage "
            "stops there. Name the right --encoding, or read them as U+FFFD with --encoding-errors replace."
        )
    if survey.replacement_characters > survey.bad_bytes:
        number = survey.replacement_characters - survey.bad_bytes
        yield f"{number:,} U+FFFD are in the text itself: characters lost in an earlier conversion. Convert it again."
    if survey.control_characters:
        yield (
            f"{survey.control_characters:,} control characters, or invisible ones such as U+200B (zero-width space) "
            "and U+00AD (soft hyphen); the tokenizer drops them and joins the text on both sides."
        )
    if survey.marked_letters > MAX_MARKED:
        letters = ", ".join(f"◌{letter}" if combining(letter) else letter for letter in survey.frequent_marked)
        yield (
            f"{survey.marked_letters:.1%} of the letters have marks ({letters}), which uncased vocabularies strip by "
            "default (má, mà → ma; 한 becomes jamo). Keep them by vocabulary --strip-accents False or --no-lowercase."
        )
    if survey.dotless_letters > MAX_MARKED / 10:
        yield (
            f"{survey.dotless_letters:.1%} of the letters are ı or İ, as in Turkish; uncased vocabularies read I as i. "
            "Lower-case the text by the rules of its language, or use vocabulary --no-lowercase."
        )
    if survey.decomposed * MIN_CHARACTERS_PER_DECOMPOSED > survey.characters:
        yield (
            f"{survey.decomposed:,} characters are decomposed (not in Unicode's form NFC): accents and jamo that stand "
            f"alone. A cased vocabulary splits them off, and copies in both forms are not recognized. {COMPOSE}"
        )


def _loss_warnings(survey: Survey) -> Iterator[str]:
    if survey.null_values:
        yield f"{count_of(survey.null_values, 'row has', 'rows have')} no text (null): skipped."
    if survey.empty_documents:
        yield f"{count_of(survey.empty_documents, 'row is', 'rows are')} empty or white space: skipped."
    if survey.dropped_sentences:
        share = survey.dropped_sentences / (survey.sentences + survey.dropped_sentences)
        names = ", ".join(f"{name} ({count:,})" for name, count in survey.unknown_words)
        yield (
            f"{survey.dropped_sentences:,} sentences of Wikipedia ({share:.1%}) are dropped, because a template or a "
            f"formula hides some of their words: {names}. If that is much, read the text of another extractor."
        )


def _markup_warnings(survey: Survey) -> Iterator[str]:
    second = sorted(survey.scripts.values(), reverse=True)[1:2]
    if second and second[0] > 0.05 and not {"Kana", "Hangul"} & set(list(survey.scripts)[:2]):
        shares = ", ".join(f"{script} {share:.0%}" for script, share in list(survey.scripts.items())[:3])
        yield f"Mixed scripts ({shares}) share one vocabulary; make it larger, or train a model for each."
    if survey.tags > survey.words / 200:
        interval = survey.words // survey.tags
        yield f"{survey.tags:,} HTML tags and entities, one per {interval} words. Extract the text from the markup."
    if survey.blobs > survey.documents / 10 and survey.blobs > 10:
        yield (
            f"{survey.blobs:,} strings of {LONG_WORD} or more letters and digits without a space (base64, code). "
            "Remove them."
        )
    if survey.long_lines:
        yield f"{survey.long_lines:,} lines are longer than {LONG_LINE:,} characters. Is this the right format?"
