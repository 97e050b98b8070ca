"""Compare forty kinds of released folders, built by transformers, sentence-transformers and by hand, with theirs.

Run: python bench/released_folders.py    (needs transformers and sentence-transformers; a minute on two cores)
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as st

import bertwright
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz.?"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"the old mill was built by two brothers".split()]
VOCABULARY += [*LETTERS, *(f"##{letter}" for letter in LETTERS[:26])]
TEXTS = [
    "the old mill",
    "",
    "two brothers built it .",
    "was the mill built by brothers ? " * 6,
    "Ärger 방앗간 The\u2028Mill",
]
TOLERANCE = 1e-5
MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
CONFIG = {"vocab_size": 80, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
CONFIG |= {"intermediate_size": 32, "max_position_embeddings": 40}


LINES = "".join(f"{token}\n" for token in VOCABULARY)


def write_tokenizer(folder: Path, content: str = LINES, **config: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_bytes(content.encode())
    values = {"do_lower_case": True, "tokenizer_class": "BertTokenizer", "model_max_length": 40}
    (folder / "tokenizer_config.json").write_text(json.dumps(values | config))


def write_model(folder: Path, kind: str = "BertModel", **config: Any) -> None:
    torch.manual_seed(1)
    model = getattr(transformers, kind)(transformers.BertConfig(**(CONFIG | config)))
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    write_tokenizer(folder)
    model.save_pretrained(folder)


# ---- Folders of sentence-transformers


def sentence_folders(root: Path) -> Iterator[tuple[str, Path, str | None]]:
    """Yield name, folder and the prompt to use."""
    base = root / "base"
    write_model(base)

    def build(name: str, *layers: Any, change: Callable[[Path], None] | None = None, **options: Any) -> Path:
        length = options.pop("max_seq_length", None)
        transformer = st.Transformer(str(base), max_seq_length=length, do_lower_case=options.pop("lower", False))
        folder = root / name
        SentenceTransformer(modules=[transformer, *layers], device="cpu", **options).save(str(folder))
        if change:
            change(folder)
        return folder

    def pooling(mode: Any = "mean", **options: Any) -> Any:
        return st.Pooling(16, mode, **options)

    tanh, relu = torch.nn.Tanh(), torch.nn.ReLU()
    variants: dict[str, tuple[Any, ...]] = {mode: (pooling(mode),) for mode in MODES}
    variants |= {"two modes": (pooling(("mean", "cls")),), "all modes": (pooling(MODES), st.Normalize())}
    variants |= {
        "normalize": (pooling("cls"), st.Normalize()),
        "dense": (pooling(), st.Dense(16, 5, activation_function=tanh)),
        "dense without bias, normalize": (pooling("cls"), st.Dense(16, 9, False, relu), st.Normalize()),
        "dense of two modes": (pooling(("max", "mean")), st.Dense(32, 7, activation_function=torch.nn.Identity())),
        "residual": (pooling(), st.Dense(16, 16, activation_function=torch.nn.GELU(), use_residual=True)),
        "projected residual": (pooling(), st.Dense(16, 4, use_residual=True)),
        "normalize, dense, layer norm": (pooling(), st.Normalize(), st.Dense(16, 6), st.LayerNorm(6)),
        "dropout": (pooling(), st.Dropout(0.5)),
    }
    for name, layers in variants.items():
        yield name, build(name, *layers), None
    prompts: dict[str, Any] = {"prompts": {"query": "was the mill built : ", "document": ""}}
    for mode in MODES:
        layer = pooling(mode, include_prompt=False)
        yield f"{mode} without prompt", build(f"{mode} without prompt", layer, **prompts), "query"
    yield "default prompt", build("default prompt", pooling(), **prompts, default_prompt_name="query"), None
    yield "truncated", build("truncated", pooling("lasttoken"), max_seq_length=9), None
    yield "first numbers", build("first numbers", pooling(), st.Normalize(), truncate_dim=5), None
    yield "lower case", build("lower case", pooling(), lower=True), None
    yield "old keys", build("old keys", pooling("cls"), change=write_old_keys), None
    yield "old layout", build("old layout", pooling(), st.Dense(16, 5), change=write_old_layout), None


def write_old_keys(folder: Path) -> None:
    """Describe the modules as sentence-transformers 2 does."""
    modes = {"cls": True, "mean": False, "max": False}
    keys = {f"pooling_mode_{mode}_tokens".replace("cls_tokens", "cls_token"): on for mode, on in modes.items()}
    (folder / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": 16} | keys))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 12, "do_lower_case": False}))
    kinds = ["sentence_transformers.models.Transformer", "sentence_transformers.models.Pooling"]
    names = ["", "1_Pooling"]
    listed = [{"idx": n, "name": str(n), "path": names[n], "type": kinds[n]} for n in range(2)]
    (folder / "modules.json").write_text(json.dumps(listed))


def write_old_layout(folder: Path) -> None:
    """Move the model to a folder of its own, as sentence-transformers 0 and 1 write it."""
    (folder / "0_Transformer").mkdir()
    for path in [*folder.iterdir()]:
        if path.is_file() and path.name not in ("modules.json", "config_sentence_transformers.json"):
            path.rename(folder / "0_Transformer" / path.name)
    listed = json.loads((folder / "modules.json").read_text())
    listed[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(listed))


def compare_vectors(folder: Path, prompt: str | None) -> float:
    """Return the largest difference of our vectors, before and after a save, from those of sentence-transformers."""
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, prompt_name=prompt)
    model = bertwright.load(folder, device="cpu")
    saved = folder.with_name(f"{folder.name} saved")
    model.save(saved)
    again = SentenceTransformer(str(saved), device="cpu").encode(TEXTS, prompt_name=prompt)
    ours = [bertwright.load(path, device="cpu").embed(TEXTS, prompt_name=prompt) for path in (folder, saved)]
    return max(float(np.abs(vectors - expected).max()) for vectors in (*ours, again))


# ---- Folders of transformers, and their files changed by hand


def change_weights(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "model.safetensors"
        save_file(change(load_file(path)), path)

    return apply


def shard(folder: Path) -> None:
    transformers.BertModel.from_pretrained(folder).save_pretrained(folder / "shards", max_shard_size="8KB")
    (folder / "model.safetensors").unlink()
    for path in (folder / "shards").iterdir():
        path.rename(folder / path.name)


def old_names(tensors: dict[str, Any]) -> dict[str, Any]:
    pairs = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
    return {name.replace(*pairs[0]).replace(*pairs[1]): tensor for name, tensor in tensors.items()}


def halve(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor.half() for name, tensor in tensors.items()}


def model_folders(root: Path) -> Iterator[tuple[str, Path]]:
    kinds = ["BertModel", "BertForMaskedLM", "BertForPreTraining", "BertForSequenceClassification"]
    kinds += ["BertForTokenClassification", "BertForQuestionAnswering", "BertForMultipleChoice"]
    for kind in kinds:
        write_model(root / kind, kind)
        yield kind, root / kind
    configs: dict[str, dict[str, Any]] = {
        "one output": {"num_labels": 1},
        "three labels": {"id2label": {0: "x", 1: "y", 2: "z"}},
    }
    configs |= {"gelu_new": {"hidden_act": "gelu_new"}, "one segment": {"type_vocab_size": 1}}
    for name, config in configs.items():
        write_model(root / name, "BertForSequenceClassification", **config)
        yield name, root / name
    changes = {"old names": change_weights(old_names), "half precision": change_weights(halve), "shards": shard}
    for name, change in changes.items():
        write_model(root / name)
        change(root / name)
        yield name, root / name


def compare_states(folder: Path) -> float:
    """Return the largest difference of mean vectors and of a classifier's outputs from those of transformers."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = bertwright.load(folder, device="cpu")
    encoder: Any = transformers.BertModel.from_pretrained(folder, dtype=torch.float32)
    encoder.eval()
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    differences = []
    for text in (text for text in TEXTS if len(text) < 40):
        inputs = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            expected = encoder(**inputs).last_hidden_state[0].mean(0).numpy()
            differences.append(np.abs(model.embed(text, "mean", normalize=False) - expected).max())
            if name == "BertForSequenceClassification":
                classifier: Any = getattr(transformers, name).from_pretrained(folder)
                logits = classifier.eval()(**inputs).logits[0]
                ours: Any = model.classify(text)
                probabilities = [*ours.probabilities.values()] if len(logits) > 1 else [ours]
                theirs = logits.softmax(0) if len(logits) > 1 else logits
                differences.append(np.abs(np.array(probabilities) - theirs.numpy()).max())
    return float(max(differences))


# ---- Vocabularies by hand


def vocabularies() -> Iterator[tuple[str, str]]:
    odd = {"repeated": "the\nzz\n", "blank": "\nzz\n\nyy\n", "blank end": "zz\n\n\n", "separator": "\u2028\nzz\n"}
    odd |= {"no-break space": "\u00a0\nzz\n", "spaces": "zz \n yy\nx x\n", "next line": "zz\u0085\nyy\n", "nothing": ""}
    for (name, more), (end, mark) in product(odd.items(), {"": "\n", ", CRLF": "\r\n"}.items()):
        yield f"{name}{end}", (LINES + more).replace("\n", mark)


def compare_ids(folder: Path, content: str) -> float:
    """Return the number of texts with other ids than those of transformers, before and after a save."""
    write_tokenizer(folder, content)
    (folder / "config.json").write_text('{"model_type": "bert"}')
    ours, theirs = Tokenizer.load(folder), transformers.AutoTokenizer.from_pretrained(folder)
    ours.save(folder / "saved")
    saved = Tokenizer.load(folder / "saved")
    texts = [*TEXTS, "zz yy x zzyy [MASK]"]
    return float(
        sum(one.encode(text).ids.tolist() != theirs(text)["input_ids"] for one in (ours, saved) for text in texts)
    )


def main() -> int:
    warnings.simplefilter("ignore")
    results: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        for name, folder, prompt in sentence_folders(root / "sentences"):
            results[f"sentence-transformers: {name}"] = compare_vectors(folder, prompt)
        for name, folder in model_folders(root / "models"):
            results[f"transformers: {name}"] = compare_states(folder)
        for number, (name, content) in enumerate(vocabularies()):
            results[f"vocab.txt: {name}"] = compare_ids(root / f"vocabulary {number}", content)
    for name, difference in results.items():
        print(f"{'ok  ' if difference <= TOLERANCE else 'FAIL'} {difference:8.1e}  {name}")
    failed = sum(difference > TOLERANCE for difference in results.values())
    print(f"{len(results)} kinds of folders, {failed} differ by more than {TOLERANCE}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
