"""`bertwright vocabulary`: learn a vocabulary from text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bertwright.base.files import atomic_folder, check_absent
from bertwright.base.object_storage import display
from bertwright.base.reporter import SILENT, Fields, Heading, ProgressCallback, Reporter
from bertwright.base.settings import write_settings
from bertwright.corpus.documents import CorpusSettings, list_corpus_files, read, text_size
from bertwright.executors.executor import ExecutorSettings, SerialExecutor
from bertwright.executors.open_executor import open_executor
from bertwright.vocabulary.learn.general_trainer import learn_general
from bertwright.vocabulary.learn.shard_counts import count_in_shards, count_whole_words
from bertwright.vocabulary.learn.word_counts import WordCounts
from bertwright.vocabulary.learn.wordpiece_trainer import (
    MAX_DIACRITIC_SHARE,
    VocabularySettings,
    VocabularySummary,
    count_corpus_words,
    learn_byte_pairs,
    learn_wordpiece,
    vocabulary_stats,
)
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from bertwright.vocabulary.tokenizer import TextTokenizer
from bertwright.vocabulary.word_tokenizer import ELMO_RULES, LOWERCASE_RULES, SPECIAL_TOKENS, WordTokenizer

GENERAL = ("bpe-bytes", "unigram")  # algorithms of `tokenizers`
LONGEST = 10  # tokens that a report names


@dataclass(frozen=True)
class LearnSettings:
    """Learn a vocabulary from text; writes the files that `transformers` reads."""

    corpus: CorpusSettings
    output: Path
    """New folder for the vocabulary; also on object storage, such as s3://BUCKET/vocabulary."""
    vocabulary: VocabularySettings = field(default_factory=VocabularySettings)
    execution: ExecutorSettings = field(default_factory=ExecutorSettings)

    @classmethod
    def defaults(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        """Return the rule of byte pairs, and that letters keep their case, if a TOML table chooses such algorithms."""
        chosen = dict(table.get("vocabulary") or {}).get("algorithm")
        if chosen in GENERAL:
            return {"vocabulary": {"lowercase": False}}
        return {"vocabulary": {"criterion": "bpe"}} if chosen == "byte-pair" else {}


class _Learned(NamedTuple):
    """A learned tokenizer, and what the report says about it."""

    tokenizer: TextTokenizer
    fields: dict[str, str]
    """Figures for people."""
    notes: Sequence[str] = ()


def learn_vocabulary(settings: LearnSettings, reporter: Reporter = SILENT) -> TextTokenizer:
    """Learn a vocabulary and write its folder atomically.

    Raises ValueError if the folder exists, and for text that cannot be read or learned from.
    """
    check_absent(settings.output)
    if settings.vocabulary.algorithm in ("words", "lowercase-words"):
        learn = _learn_words
    else:
        learn = _learn_general if settings.vocabulary.algorithm in GENERAL else _learn_merges
    with atomic_folder(settings.output) as folder:  # created first: a full or read-only disk shows before the work
        learned = learn(settings, reporter)
        learned.tokenizer.save(folder)
        tokenizer = open_tokenizer(folder)  # scores of pieces are rounded in the file
        write_settings(folder / "settings.toml", settings, "bertwright vocabulary: all settings, defaults included")
    reporter.record(Heading(f"Vocabulary {display(settings.output)}"))
    reporter.record(Fields(learned.fields))
    for note in learned.notes:
        reporter.note(note)
    return tokenizer


def _learn_merges(settings: LearnSettings, reporter: Reporter) -> _Learned:
    """Learn a WordPiece or byte-pair tokenizer from the counts of words."""
    counts, rules = _count(settings, reporter), settings.vocabulary
    with reporter.progress("learning tokens", rules.size) as advance:
        learn = learn_wordpiece if rules.algorithm == "wordpiece" else learn_byte_pairs
        tokenizer: TextTokenizer = learn(counts, rules, advance)
    notes = []
    if rules.strip_accents is None and counts.stripped.changed > MAX_DIACRITIC_SHARE:
        notes.append(
            f"{counts.stripped.changed:.1%} of the words lose marks, {counts.stripped.merged:.1%} become equal to a "
            f"more frequent word ({counts.stripped.examples}). --strip-accents False keeps them."
        )
    if rules.lowercase and counts.dotless > MAX_DIACRITIC_SHARE:
        notes.append(
            f"{counts.dotless:.1%} of the words have ı, as in Turkish, where I is ı in lower case. This "
            "vocabulary reads I as i. Lower-case the text by the rules of its language, or use --no-lowercase."
        )
    if (found := len(tokenizer.tokens)) < rules.size:
        notes.append(
            f"{found:,} tokens instead of {rules.size:,}: no other pair of tokens occurs "
            f"{rules.min_frequency} times. More text gives more tokens."
        )
    return _Learned(tokenizer, _report_fields(vocabulary_stats(tokenizer, counts)) | _merge_fields(counts), notes)


def _count(settings: LearnSettings, reporter: Reporter) -> WordCounts:
    size, rules = text_size(list_corpus_files(settings.corpus)), settings.vocabulary
    if settings.execution.is_alone:
        with reporter.progress("counting words", size, "bytes") as advance:
            return count_corpus_words((document.text for document in read(settings.corpus)), rules, advance)
    with open_executor(settings.execution) as executor, reporter.progress("counting words", size, "bytes") as advance:
        return count_in_shards(settings.corpus, rules, executor, advance)


def _learn_words(settings: LearnSettings, reporter: Reporter) -> _Learned:
    """Make a vocabulary of the most frequent words."""
    rules = ELMO_RULES if settings.vocabulary.algorithm == "words" else LOWERCASE_RULES
    with (
        open_executor(settings.execution, SerialExecutor()) as executor,
        reporter.progress("counting words", text_size(list_corpus_files(settings.corpus)), "bytes") as advance,
    ):
        counts = count_whole_words(settings.corpus, rules, executor, advance)
    limit, least = settings.vocabulary.size - len(SPECIAL_TOKENS), settings.vocabulary.min_frequency
    frequent = sorted((-count, word) for word, count in counts.items() if count >= least)
    if not frequent:
        raise ValueError(f"min_frequency = {least}: no word of the text is so frequent; use more text, or lower it")
    words = [word for _, word in frequent[:limit]]
    # A model that reads bytes also reads the words that it does not predict (released code of ELMo).
    rare = sorted(counts.keys() - {*words, *SPECIAL_TOKENS}) if rules.bytes else []
    tokenizer = WordTokenizer(words, "", rules, rare)
    covered = sum(counts[token] for token in tokenizer.tokens)
    fields = {
        "words": f"{tokenizer.vocab_size:,}, of {len(counts):,} distinct ones",
        "words of the text in the vocabulary": f"{covered / counts.total():.2%}",
        "least frequent": " ".join(tokenizer.tokens[-10:]),
    }
    return _Learned(tokenizer, fields)


def _learn_general(settings: LearnSettings, reporter: Reporter) -> _Learned:
    """Learn byte pairs on bytes or unigram pieces."""
    if not settings.execution.is_alone:
        raise ValueError(f"--algorithm {settings.vocabulary.algorithm} learns in one process; omit the executor")
    with reporter.progress("reading text", text_size(list_corpus_files(settings.corpus)), "bytes") as advance:
        tokenizer = learn_general(_report_texts(settings.corpus, advance), settings.vocabulary)
    longest = sorted((tokenizer.token_text(number).text for number in range(tokenizer.vocab_size)), key=len)
    fields = {"tokens": f"{tokenizer.vocab_size:,}", "longest": " ".join(longest[: -LONGEST - 1 : -1])}
    return _Learned(tokenizer, fields)


def _report_texts(corpus: CorpusSettings, advance: ProgressCallback) -> Iterator[str]:
    for document in read(corpus):
        yield document.text
        advance(len(document.text.encode()))


def _merge_fields(counts: WordCounts) -> dict[str, str]:
    merges = {"words that lose marks": counts.stripped, "words that lose capitals": counts.lowered}
    return {
        name: f"{merge.changed:.1%}, {merge.merged:.1%} become equal to another ({merge.examples})"
        for name, merge in merges.items()
        if merge.changed >= 0.0005  # else 0.0 %
    }


def _report_fields(report: VocabularySummary) -> dict[str, str]:
    fields = {
        "tokens": f"{report.tokens:,}",
        "characters with a token": f"{report.characters:,}, {report.character_coverage:.3%} of the text",
        "tokens per word (fertility)": f"{report.fertility:.3f}",
        "words that are one token": f"{report.whole_words:.1%}",
        "words that are [UNK]": f"{report.unknown:.3%}",
        "tokens that the text never uses": f"{report.unused:,}",
    }
    if report.pruned:
        fields["words dropped to bound memory"] = f"{report.pruned:.2%}"
    return fields | {"longest": " ".join(report.longest), "learned last": " ".join(report.last)}
