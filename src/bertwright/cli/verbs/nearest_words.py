"""`bertwright nearest-words`."""

from __future__ import annotations

from bertwright.systems.word_vectors.vector_evaluation import NearestSettings, print_nearest

SETTINGS = NearestSettings
run = print_nearest
ORDER = 14
SUMMARY = "print nearest words of word vectors, and answer analogies"
EXAMPLE = "bertwright nearest-words vectors man king woman --analogy"
