"""`bertwright word-vectors`."""

from __future__ import annotations

from bertwright.systems.word_vectors.train_vectors import train_word_vectors
from bertwright.systems.word_vectors.vector_settings import WordVectorSettings

SETTINGS = WordVectorSettings
run = train_word_vectors
ORDER = 3
SUMMARY = "learn word vectors from text: word2vec, fastText or GloVe"
EXAMPLE = "bertwright word-vectors books/ wiki.txt --output vectors"
