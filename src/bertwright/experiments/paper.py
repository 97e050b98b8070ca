"""Published figures that experiments are compared with: tables 1 to 8 of the paper (Devlin et al. 2018), in percent.

Columns are named as presets, or PRESET EM for SQuAD's exact match; rows as the systems of the paper's table.
"""

from __future__ import annotations

Figures = dict[str, dict[str, float]]
"""Figures by row and column."""

# Table 1 (GLUE test), tables 2 and 3 (SQuAD 1.1 and 2.0), table 4 (SWAG), table 7 (CoNLL-2003). WNLI is left out.
TEST: Figures = {
    "BiLSTM+ELMo+Attn": {
        "mnli": 76.4, "mnli_mismatched": 76.1, "qqp": 64.8, "qnli": 79.8, "sst2": 90.4, "cola": 36.0, "stsb": 73.3,
        "mrpc": 84.9, "rte": 56.8,
    },
    "OpenAI GPT": {
        "mnli": 82.1, "mnli_mismatched": 81.4, "qqp": 70.3, "qnli": 87.4, "sst2": 91.3, "cola": 45.4, "stsb": 80.0,
        "mrpc": 82.3, "rte": 56.0, "swag": 78.0,
    },
    "ELMo": {"conll2003": 92.2},
    "BERT BASE": {
        "mnli": 84.6, "mnli_mismatched": 83.4, "qqp": 71.2, "qnli": 90.5, "sst2": 93.5, "cola": 52.1, "stsb": 85.8,
        "mrpc": 88.9, "rte": 66.4, "conll2003": 92.4,
    },
    "BERT LARGE": {
        "mnli": 86.7, "mnli_mismatched": 85.9, "qqp": 72.1, "qnli": 92.7, "sst2": 94.9, "cola": 60.5, "stsb": 86.5,
        "mrpc": 89.3, "rte": 70.1, "squad_v2 EM": 80.0, "squad_v2": 83.1, "swag": 86.3, "conll2003": 92.8,
    },
    "BERT LARGE, ensemble + TriviaQA": {"squad EM": 87.4, "squad": 93.2},
}  # fmt: skip
DEV: Figures = {
    "ESIM+GloVe": {"swag": 51.9},
    "ESIM+ELMo": {"swag": 59.1},
    "ELMo": {"conll2003": 95.7},
    "BERT BASE": {"squad EM": 80.8, "squad": 88.5, "swag": 81.6, "conll2003": 96.4},
    "BERT LARGE": {
        "squad EM": 84.1, "squad": 90.9, "squad_v2 EM": 78.7, "squad_v2": 81.9, "swag": 86.6, "conll2003": 96.6,
    },
}  # fmt: skip
SYSTEMS = (
    "BiLSTM+ELMo+Attn", "ESIM+GloVe", "ESIM+ELMo", "ELMo", "OpenAI GPT", "BERT BASE", "BERT LARGE",
    "BERT LARGE, ensemble + TriviaQA",
)  # fmt: skip
GLUE = ("mnli", "mnli_mismatched", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte")
"""Columns of table 1; its average is their mean, both halves of MNLI counted."""

TABLE5: Figures = {
    "MLM + NSP": {"mnli": 84.4, "qnli": 88.4, "mrpc": 86.7, "sst2": 92.7, "squad": 88.5},
    "MLM": {"mnli": 83.9, "qnli": 84.9, "mrpc": 86.5, "sst2": 92.6, "squad": 87.9},
    "LTR": {"mnli": 82.1, "qnli": 84.3, "mrpc": 77.5, "sst2": 92.1, "squad": 77.8},
    "LTR + BiLSTM": {"mnli": 82.1, "qnli": 84.1, "mrpc": 75.7, "sst2": 91.6, "squad": 84.9},
}

TABLE6: Figures = {
    "L3 H768 A12": {"perplexity": 5.84, "mnli": 77.9, "mrpc": 79.8, "sst2": 88.4},
    "L6 H768 A3": {"perplexity": 5.24, "mnli": 80.6, "mrpc": 82.2, "sst2": 90.7},
    "L6 H768 A12": {"perplexity": 4.68, "mnli": 81.9, "mrpc": 84.8, "sst2": 91.3},
    "L12 H768 A12": {"perplexity": 3.99, "mnli": 84.4, "mrpc": 86.7, "sst2": 92.9},
    "L12 H1024 A16": {"perplexity": 3.54, "mnli": 85.7, "mrpc": 86.9, "sst2": 93.3},
    "L24 H1024 A16": {"perplexity": 3.23, "mnli": 86.6, "mrpc": 87.8, "sst2": 93.7},
}

TABLE7_FINE_TUNED = 96.4  # BERT BASE on the dev set of CoNLL-2003; its feature-based rows are in `PAPER_F1`

# MASK / SAME / RND: NER by fine-tuning, NER on frozen features.
TABLE8: Figures = {
    "80/10/10": {"mnli": 84.2, "conll2003": 95.4, "features": 94.9},
    "100/0/0": {"mnli": 84.3, "conll2003": 94.9, "features": 94.0},
    "80/0/20": {"mnli": 84.1, "conll2003": 95.2, "features": 94.6},
    "80/20/0": {"mnli": 84.4, "conll2003": 95.2, "features": 94.7},
    "0/20/80": {"mnli": 83.7, "conll2003": 94.8, "features": 94.6},
    "0/0/100": {"mnli": 83.6, "conll2003": 94.9, "features": 94.6},
}
