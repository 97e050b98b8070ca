"""`bertwright vocabulary`."""

from __future__ import annotations

from bertwright.vocabulary.learn.learn_vocabulary import LearnSettings, learn_vocabulary

SETTINGS = LearnSettings
run = learn_vocabulary
ORDER = 2
SUMMARY = "learn a vocabulary from text: word pieces or byte pairs"
EXAMPLE = "bertwright vocabulary books/ wiki.txt --size 30000 --output vocabulary"
