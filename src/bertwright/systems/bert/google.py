"""Google's checkpoints: `bert_config.json`, `vocab.txt` and the TensorFlow bundle `bert_model.ckpt.*`.

They are read as Google's code writes them, in releases and after fine-tuning, and written so that it reads them. What
its code does not need, and would be lost otherwise, is in fields and files that it ignores: labels (`id2label`) and
the kind of GELU in `bert_config.json`, the case of the vocabulary in `tokenizer_config.json`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bertwright.base.files import read_json, write_json
from bertwright.base.foreign import check_links
from bertwright.interop.head_config import HEAD_CLASSES, HeadRecord, format_head, parse_head
from bertwright.interop.huggingface import ModelSource, check_vocabulary, to_hf_weights
from bertwright.interop.model_files import new_folder
from bertwright.interop.tf_checkpoint import Bundle, Entry, read_bundle, write_bundle
from bertwright.interop.weights import summarize
from bertwright.models.encoder import EncoderModel
from bertwright.models.head_spec import HeadSpec
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bert.bert_folder import BERT
from bertwright.vocabulary.tokenizer import TextTokenizer
from bertwright.vocabulary.wordpiece_files import write_vocab
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer

CONFIG, VOCABULARY, INDEX = "bert_config.json", "vocab.txt", "bert_model.ckpt.index"

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # the variable that only TensorFlow 2's checkpoints have
# Start of a variable's name in checkpoints of other architectures, whose code has the same kinds of files.
OTHER_ARCHITECTURES = (
    (r"electra/|generator/|discriminator_predictions/", "ELECTRA"),
    (r"bert/encoder/transformer/group_\d", "ALBERT"),
    (r"bert/encoder/layer_\d+/bottleneck/", "MobileBERT"),
    (r"model/transformer/", "XLNet"),
)
# Names in `transformers`, with / for its dots, and Google's; * is the same in both. Import and export both read this
# table; the first row that matches counts.
NAMES = (
    ("*_embeddings/weight", "*_embeddings"),
    ("*/LayerNorm/weight", "*/LayerNorm/gamma"),
    ("*/LayerNorm/bias", "*/LayerNorm/beta"),
    ("cls/predictions/bias", "cls/predictions/output_bias"),
    ("cls/seq_relationship/weight", "cls/seq_relationship/output_weights"),
    ("cls/seq_relationship/bias", "cls/seq_relationship/output_bias"),
    ("qa_outputs/weight", "cls/squad/output_weights"),  # written by run_squad.py
    ("qa_outputs/bias", "cls/squad/output_bias"),
    ("classifier/weight", "output_weights"),  # written by run_classifier.py
    ("classifier/bias", "output_bias"),
    ("*/weight", "*/kernel"),
    ("*/bias", "*/bias"),
)
TRANSPOSED = "/kernel"  # end of the names of matrices that are stored input × output
# Fields of a configuration that Google's code does not have, and the values that it computes with.
FIXED_FIELDS = {"layer_norm_eps": 1e-12, "is_causal": False, "is_reversed": False}
GELU_APPROXIMATE = "gelu_approximate"  # our own field: "tanh" for gelu_tanh, which Google calls gelu


class GoogleCheckpoint(NamedTuple):
    """A checkpoint's configuration and weights, and its task's head."""

    source: ModelSource
    head: HeadRecord | None
    """None for a checkpoint of pre-training."""
    ignored: tuple[str, ...]
    """Variables of the optimizer and counters, which no model has."""


def read_checkpoint(folder: Path, labels: Sequence[str] = ()) -> GoogleCheckpoint:
    """Read a folder with a checkpoint of Google's code.

    `labels`: names of a classifier's outputs, in order, which Google's files lack. Raises ValueError for
    missing or damaged files, naming them, and for labels that are not one name per output.
    """
    check_links(folder)
    indexes, path = sorted(folder.glob("*.index")), folder / CONFIG
    bundle = read_bundle(indexes[0]) if len(indexes) == 1 else None
    if bundle is not None:
        check_is_bert(bundle)
    if not path.is_file() or bundle is None:
        present = ", ".join(file.name for file in (path, *indexes) if file.is_file())
        raise ValueError(
            f"{folder}: expected {CONFIG} and one *.ckpt.index, as in Google's release, got {present or 'neither'}; "
            "copy the files of one checkpoint to a folder of their own"
        )
    values = read_json(path)
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(values).__name__}")
    if values.get(GELU_APPROXIMATE) == "tanh":
        values["hidden_act"] = BERT.TANH_GELU[0]
    config = BERT.parse_config(values, path)
    slots = find_training_variables(bundle.entries)
    variables = bundle.read(name for name in bundle.entries if name not in slots)
    named = {to_hf_name(name): transpose(name, torch.from_numpy(array)) for name, array in variables}
    tensors = BERT.normalize(named, values, indexes[0])
    head = infer_head(tensors, labels, parse_head(values, path), indexes[0])
    return GoogleCheckpoint(ModelSource(BERT, config, tensors, indexes[0]), head, tuple(slots))


def check_is_bert(bundle: Bundle) -> None:
    """Raise ValueError, naming the file and its kind, for a checkpoint of TensorFlow 2 or of another architecture."""
    names = bundle.entries
    if OBJECT_GRAPH in names:
        raise ValueError(
            f"{bundle.path}: a TensorFlow 2 (object-based) checkpoint; only TensorFlow 1's names are read; convert it "
            "with convert_bert_original_tf2_checkpoint_to_pytorch.py of transformers 4, then name the new folder"
        )
    for pattern, name in OTHER_ARCHITECTURES:
        if any(re.match(pattern, variable) for variable in names):
            raise ValueError(f"{bundle.path}: expected a BERT, got the variables of an {name} model; take a BERT")
    if not any(variable.startswith("bert/") for variable in names):
        roots = summarize(dict.fromkeys(variable.partition("/")[0] for variable in names))
        raise ValueError(f"{bundle.path}: expected the variables of a BERT (bert/…), got {roots}; take a BERT")


def find_training_variables(entries: Mapping[str, Entry]) -> list[str]:
    """Return the names of an optimizer's slots and of counters, whatever the optimizer calls them.

    A slot has the name of a whole variable in its own: before it (`…/kernel/adam_m`) or, with a slot's name of at least
    one part in front, within it (`training/Adam/bert/…/kernel/m`). A counter is a scalar, which no layer of BERT has.

    >>> names = "bert/a/kernel bert/a/kernel/BERTAdam_1 Adam/bert/a/kernel/m output_bias cls/x/output_bias".split()
    >>> find_training_variables({name: Entry(1, (2,), 0, 0, 8, 0, False) for name in names})
    ['bert/a/kernel/BERTAdam_1', 'Adam/bert/a/kernel/m']
    """
    found = []
    for name, entry in entries.items():
        parts = name.split("/")
        before = any("/".join(parts[:end]) in entries for end in range(1, len(parts)))
        inside = any(
            "/".join(parts[start:end]) in entries
            for start in range(1, len(parts) - 2)
            for end in range(start + 3, len(parts) + 1)
        )
        if before or inside or not entry.shape:
            found.append(name)
    return found


def infer_head(
    tensors: Mapping[str, Tensor], labels: Sequence[str], stated: HeadRecord | None, path: Path
) -> HeadRecord | None:
    """Infer the head of a checkpoint's task from its weights; None if it has none.

    `labels` take precedence over the labels in `stated`. Raises ValueError, naming `path`, unless a classifier has one
    label per output.
    """
    bias = tensors.get(f"{HEAD_CLASSES['sequence'].classifier}.bias")
    if bias is None:
        if labels:
            raise ValueError(f"{path}: has no classifier (output_weights, output_bias), so no labels; omit --labels")
        is_span = f"{HEAD_CLASSES['span'].classifier}.bias" in tensors
        return HeadRecord(HeadSpec("span", 2), (), regression=False) if is_span else None
    labels = labels or (stated.labels if stated else ())
    if bias.numel() == 1 and not labels:
        return HeadRecord(HeadSpec("sequence", 1), (), regression=True)
    if len(labels) != bias.numel():
        raise ValueError(
            f"{path}: expected {bias.numel()} labels, one per output of its classifier, got {len(labels)}; name them "
            "with --labels in the order of get_labels() in run_classifier.py"
        )
    return HeadRecord(HeadSpec("sequence", len(labels)), tuple(labels), regression=False)


def save_checkpoint(
    folder: Path,
    model: EncoderModel,
    tokenizer: TextTokenizer,
    head: HeadRecord | None,
    missing_heads: Sequence[str] = (),
) -> None:
    """Write a new folder that Google's code reads (`--init_checkpoint`), whole or not at all.

    `head`: of a task's model. `missing_heads`: as in `LoadResult`; their weights are omitted. Raises ValueError if the
    path already exists, and for a model, head or tokenizer that Google's code does not have.
    """
    values = format_config(model, head, folder)
    check_vocabulary(tokenizer, model.config, folder)
    if Tokenizer.from_tokens(tokenizer.tokens, lowercase=tokenizer.lowercase).digest != tokenizer.digest:
        raise ValueError(
            f"{folder}: expected the normalization and word rules of BERT's own tokenizer, got others or added tokens; "
            "Google's code would give other ids; write a Hugging Face folder instead"
        )
    weights = {to_google_name(name): tensor for name, tensor in to_hf_weights(model, missing_heads).items()}
    with new_folder(folder) as temporary:
        write_json(temporary / CONFIG, values)
        write_vocab(temporary / VOCABULARY, tokenizer.tokens)
        write_json(temporary / "tokenizer_config.json", {"do_lower_case": tokenizer.lowercase})
        write_bundle(temporary / INDEX, {name: transpose(name, tensor).numpy() for name, tensor in weights.items()})


def format_config(model: EncoderModel, head: HeadRecord | None, folder: Path) -> dict[str, Any]:
    """Return the fields of `bert_config.json`.

    Raises ValueError, naming `folder`, for a model or a head that Google's code does not have.
    """
    config = model.config
    if not isinstance(config, BertConfig) or model.encoder.model_type != BertEncoder.model_type:
        raise ValueError(f"{folder}: expected a BERT for Google's format, got {model.encoder.model_type}")
    for name, value in FIXED_FIELDS.items():
        if getattr(config, name) != value:
            raise ValueError(
                f"{folder}: {name}: expected {value} as in Google's code, got {getattr(config, name)}; write a Hugging "
                "Face folder instead"
            )
    if head is not None and (head.regression or head.multi_label or head.head.kind not in ("sequence", "span")):
        kind = "regression" if head.regression else "multi-label" if head.multi_label else f"{head.head.kind} head"
        raise ValueError(
            f"{folder}: expected a classifier of texts or a span head, as in Google's code, got a {kind}; write a "
            "Hugging Face folder instead"
        )
    values = BERT.format_config(config) | (format_head(head, folder) if head else {})
    if config.activation == "gelu_tanh":
        values |= {"hidden_act": "gelu", GELU_APPROXIMATE: "tanh"}
    return values


def transpose(name: str, tensor: Tensor) -> Tensor:
    """Transpose a variable if Google stores it transposed, by its name there."""
    return tensor.T if name.endswith(TRANSPOSED) else tensor


def to_google_name(name: str) -> str:
    """Convert the name of a parameter in `transformers` to Google's.

    >>> to_google_name("bert.encoder.layer.3.attention.self.key.weight"), to_google_name("qa_outputs.bias")
    ('bert/encoder/layer_3/attention/self/key/kernel', 'cls/squad/output_bias')
    """
    return translate(re.sub(r"/layer/(\d+)/", r"/layer_\1/", name.replace(".", "/")), NAMES)


def to_hf_name(name: str) -> str:
    """Convert the name of one of Google's variables to that in `transformers`.

    >>> to_hf_name("bert/encoder/layer_3/attention/self/key/kernel"), to_hf_name("output_bias")
    ('bert.encoder.layer.3.attention.self.key.weight', 'classifier.bias')
    """
    theirs = translate(name, [(google, hf) for hf, google in NAMES])
    return re.sub(r"/layer_(\d+)/", r"/layer/\1/", theirs).replace("/", ".")


def translate(name: str, table: Iterable[tuple[str, str]]) -> str:
    """Translate a name by the first row of a table with a matching left pattern; return an unknown name unchanged.

    >>> translate("a/b/kernel", [("*/kernel", "*/weight")])
    'a/b/weight'
    """
    for source, target in table:
        if match := re.fullmatch(re.escape(source).replace(r"\*", "(.+)"), name):
            return target.replace("*", "".join(match.groups()))
    return name
