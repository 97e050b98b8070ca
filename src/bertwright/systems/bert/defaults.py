"""BERT (Devlin et al. 2018) without torch: its record and its sizes."""

from __future__ import annotations

from bertwright.systems.registry import LadderStep, System

# base and large: Devlin et al. 2018, section 3. The smaller ones: Turc et al. 2019 (arXiv 1908.08962), table 1.
SIZES = {
    name: {"num_layers": layers, "hidden_size": hidden, "num_heads": heads, "intermediate_size": 4 * hidden}
    for name, layers, hidden, heads in (
        ("tiny", 2, 128, 2),
        ("mini", 4, 256, 4),
        ("small", 4, 512, 8),
        ("medium", 8, 512, 8),
        ("base", 12, 768, 12),
        ("large", 24, 1024, 16),
    )
}
FOLDER = "bertwright.systems.bert.bert_folder:BERT"
MODEL = {"model": "bert"}

BERT = System(
    name="bert",
    summary="BERT (Devlin et al. 2018), a Transformer that reads in both directions",
    folders={
        "bert": FOLDER,
        "bert-rtl": FOLDER,
        "bert-ltr": FOLDER,
        "bert-composite": "bertwright.trials.composed_model:FOLDER",
    },
    objectives={
        "mlm+nsp": "bertwright.systems.bert.masked_lm_objective:MaskedLMWithNextSentence",
        "mlm": "bertwright.systems.bert.masked_lm_objective:MaskedLM",
        "ltr": "bertwright.systems.bert.bert_objective:LeftToRightLM",
        "rtl": "bertwright.systems.bert.bert_objective:RightToLeftLM",
    },
    sizes=SIZES,
    ladder=(
        LadderStep(120, "BERT, random weights", {"tuning": {"from_scratch": True}}, MODEL, ("bert",), over=()),
        LadderStep(130, "BERT, frozen", {}, MODEL, ("bert",), over=(), is_frozen=True),
        LadderStep(
            140,
            "BERT, fine-tuned",
            {},
            MODEL,
            ("bert",),
            {"conll2003": 92.4},
            ("BERT, random weights",),  # table 7
        ),
    ),
)
