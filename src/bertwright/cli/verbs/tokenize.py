"""`bertwright tokenize`."""

from __future__ import annotations

from bertwright.inference.show_tokens import TokenizeSettings, tokenize

SETTINGS = TokenizeSettings
run = tokenize
ORDER = 3
SUMMARY = "show the tokens, segments and positions of a text"
EXAMPLE = 'bertwright tokenize vocabulary "my dog is cute" --pair "he likes playing"'
