"""`bertwright score-vectors`."""

from __future__ import annotations

from bertwright.systems.word_vectors.vector_evaluation import ScoreVectorsSettings, score_vectors

SETTINGS = ScoreVectorsSettings
run = score_vectors
ORDER = 8
SUMMARY = "score word vectors on word similarity and analogies"
EXAMPLE = "bertwright score-vectors vectors EN-MEN-TR-3k.txt questions-words.txt"
