"""The systems: what the rest of the package knows of each, by name. The module imports nothing."""

from __future__ import annotations

# Formats of model folders by `model_type` of `config.json`: the module and the name of an `Architecture`.
FOLDER_FORMATS: dict[str, str] = {
    "bilstm": "bertwright.systems.bilstm.bilstm:FOLDER",
    "window": "bertwright.systems.window.window:FOLDER",
    "bcn": "bertwright.systems.bcn.bcn:FOLDER",
    "bert": "bertwright.systems.bert.bert_folder:BERT",
    "bert-rtl": "bertwright.systems.bert.bert_folder:BERT",
    "bert-ltr": "bertwright.systems.bert.bert_folder:BERT",
    "bert-composite": "bertwright.systems.bert.composite:FOLDER",
    "awd-lstm": "bertwright.systems.ulmfit.awd_lstm:FOLDER",
    "elmo": "bertwright.systems.elmo.elmo:FOLDER",
    "openai-gpt": "bertwright.systems.gpt.openai_gpt:GPT",
}
DEFAULT_MODEL_TYPE = "bert"  # of a `config.json` that names none
