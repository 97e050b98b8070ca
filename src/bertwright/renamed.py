"""Settings that had other names before the first release, so that a message can name the present one."""

from __future__ import annotations

from collections.abc import Iterable

RENAMED = {
    "any_count": ("ignore_row_count",),
    "clip_norm": ("max_grad_norm",),
    "dev_share": ("validation_fraction",),
    "documents": ("document_unit",),
    "epsilon": ("eps",),
    "evaluate_every": ("eval_every",),
    "evaluate_sequences": ("eval_sequences",),
    "first_weights": ("init_scheme",),
    "freeze": ("freeze_layers",),
    "impossible": ("allow_no_answer",),
    "keep": ("keep_last", "keep_columns"),
    "layer_decay": ("layerwise_lr_decay",),
    "long_share": ("long_ratio",),
    "mask_share": ("mlm_probability",),
    "max_answer": ("max_answer_length",),
    "max_predictions": ("max_predictions_per_seq",),
    "max_question": ("max_query_length",),
    "micro_batch": ("micro_batch_size",),
    "n_best": ("n_best_size",),
    "on_bad_bytes": ("encoding_errors",),
    "pair": ("text_pair",),
    "positive": ("pos_label",),
    "sentences": ("sentence_splitter",),
    "short_share": ("short_seq_prob",),
    "stride": ("doc_stride",),
    "warmup_share": ("warmup_ratio",),
    "whole_words": ("whole_word_mask",),
}


def find_new_name(old: str, names: Iterable[str]) -> str | None:
    """Return the present name of a setting among `names`, or None if it was not renamed.

    >>> find_new_name("keep", ["run", "keep_last"]), find_new_name("steps", ["steps"])
    ('keep_last', None)
    """
    present = {*names}
    return None if old in present else next((new for new in RENAMED.get(old, ()) if new in present), None)
