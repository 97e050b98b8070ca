"""`load` a trained model and use it: fill masks, turn texts into vectors, classify, choose, tag, answer."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
import torch

from bertwright.inference import fill_mask as masks
from bertwright.inference import pooling as text_pooling
from bertwright.inference.feature_cache import word_features
from bertwright.inference.fill_mask import MaskPrediction, TokenCandidate
from bertwright.inference.pooling import Pooling, Vectors
from bertwright.interop.huggingface import check_vocabulary, load_config, load_model, save_model
from bertwright.interop.model_files import model_folder
from bertwright.io.decoding import SURROGATE
from bertwright.models.heads import BertForPretraining, EncoderForTask, EncoderModel
from bertwright.tasks.classification import Classification, TextExample
from bertwright.tasks.conll import TagExample
from bertwright.tasks.multiple_choice import ChoiceExample, ChoicePrediction, MultipleChoice
from bertwright.tasks.prediction import predict_chunks, split_into_chunks
from bertwright.tasks.presentation import truncation_warnings
from bertwright.tasks.question_answering import Answer, QuestionAnswering
from bertwright.tasks.regression import Regression
from bertwright.tasks.squad import QaExample
from bertwright.tasks.tagging import Tagging, TagPrediction
from bertwright.tasks.task import AnyTask, Task
from bertwright.tasks.task_io import TaskModel, load_task, save_task_folder
from bertwright.training.loop import check_finite_outputs
from bertwright.vocabulary.tokenizer import Tokenizer

E = TypeVar("E")
P = TypeVar("P")
T = TypeVar("T", bound=AnyTask)

UNLISTED = (Mapping, set, frozenset)  # which would give their keys, or their values in any order
FEATURE_WINDOW = 512  # tokens; longer windows than those of pre-training say little more
# How a model of each kind is used.
USES = {
    "classification": "classify(texts)",
    "regression": "classify(texts)",
    "multiple-choice": "choose(prompt, endings)",
    "tagging": "tag(text)",
    "question-answering": "answer(question, context)",
}

Text = str | tuple[str, str]
"""A text, or a pair of texts."""
Words = str | Sequence[str]
"""A text that is cut into words, or the words."""


class Bert:
    """A model with its tokenizer, ready to be called. Dropout is off; no gradient is kept.

    What is given as one is answered by one, a list by a list: in its order, of any length, and each answer the same
    whatever stands beside it.
    """

    def __init__(
        self,
        model: EncoderModel,
        tokenizer: Tokenizer,
        missing_heads: Sequence[str] = (),
        task: AnyTask | None = None,
        inferred: bool = False,
        classes: Any = None,
    ) -> None:
        """`missing_heads`: heads of `model` that were never trained, as in `interop.huggingface.Loaded`.

        `task`: what a `EncoderForTask` was trained for; `inferred` and `classes` as in `tasks.kinds.TaskModel`.
        """
        check_vocabulary(tokenizer, model.config, "tokenizer and model")
        if (task and task.head) != (model.head if isinstance(model, EncoderForTask) else None):
            raise ValueError("a task's model needs its task, and a task its own model: they do not belong together")
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.config = model.config
        self.missing_heads = tuple(missing_heads)
        self.task = task
        self.inferred = inferred
        self.classes = classes

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @overload
    def fill_mask(self, texts: str, top_k: int = 5) -> MaskPrediction: ...  # type: ignore[overload-overlap]
    @overload
    def fill_mask(self, texts: Sequence[str], top_k: int = 5) -> list[MaskPrediction]: ...
    @torch.inference_mode()
    def fill_mask(self, texts: str | Sequence[str], top_k: int = 5) -> MaskPrediction | list[MaskPrediction]:
        """What the model reads into each [MASK] of a text: the `top_k` likeliest tokens, with their probabilities.

        Several [MASK]s are answered at once, each on its own. In a text longer than the model's positions, each [MASK]
        is read in the window around it. Raises ValueError for a text without [MASK], and for a model that cannot
        answer: one of a task, one without masked-token head, or a left-to-right one.
        """
        if isinstance(texts, str):
            return self.fill_mask([texts], top_k)[0]
        texts = _texts(texts)
        model = self.model
        if isinstance(model, EncoderForTask):
            assert self.task is not None  # as has every model with a head of its own
            raise ValueError(
                f"this model was fine-tuned for {self.task.kind}, which leaves no masked-token head; "
                "filling masks needs the checkpoint that it started from"
            )
        if not isinstance(model, BertForPretraining) or "masked_token" in self.missing_heads:
            raise ValueError("this model folder has no masked-token head; fill_mask needs a pre-training checkpoint")
        if self.config.is_causal:
            raise ValueError("a left-to-right model never sees what follows a [MASK]; fill_mask needs a masked-LM one")
        if not 1 <= top_k <= self.tokenizer.vocab_size:
            raise ValueError(f"top_k = {top_k}: from 1 to the vocabulary's {self.tokenizer.vocab_size} is possible")
        encodings = self.tokenizer.encode_batch(texts)
        places = [np.flatnonzero(encoding.ids == self.tokenizer.mask_id).tolist() for encoding in encodings]
        if missing := [text for text, found in zip(texts, places, strict=True) if not found]:
            raise ValueError(f"no [MASK] in {missing[0][:60]!r}; write [MASK] in place of the word in question")
        answers: list[tuple[TokenCandidate, ...]] = []  # of all [MASK]s, in order
        longest = self.config.max_positions
        read = (masks.windows(encoding, found, longest) for encoding, found in zip(encodings, places, strict=True))
        for asked in masks.batch_windows(chain.from_iterable(read)):
            predicted = model(asked.batch.to(self.device), torch.tensor(asked.positions, device=self.device))
            check_finite_outputs(bool(predicted.tokens.isfinite().all()))
            # A model may have more rows than tokens (rounded up for speed); those mean nothing.
            best = predicted.tokens[:, : self.tokenizer.vocab_size].softmax(-1).topk(top_k)
            answers += [
                tuple(TokenCandidate(self.tokenizer.token(number), share) for number, share in zip(*row, strict=True))
                for row in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            ]
        filled = []
        in_turn = iter(answers)
        for text, encoding, found in zip(texts, encodings, places, strict=True):
            own = tuple(islice(in_turn, len(found)))
            spans = [masks.trim_span(text, *offsets) for offsets in encoding.offsets[found].tolist()]
            filled.append(MaskPrediction(masks.replace_spans(text, spans, [answer[0].token for answer in own]), own))
        return filled

    @torch.inference_mode()
    def embed(
        self,
        texts: str | Sequence[str],
        pooling: Pooling = "mean",
        normalize: bool = True,
        batch_tokens: int = 8192,
        max_length: int | None = None,
    ) -> Vectors:
        """One vector a text, N × H float32, in the order of the texts; of a text that is no list, H float32.

        `pooling`: mean or maximum over all tokens of the text, [CLS] and [SEP] included, or the state of [CLS].
        `normalize`: scale to Euclidean length 1, so that a dot product is the cosine. `batch_tokens`: tokens computed
        at once; it bounds memory and changes no result. A text longer than `max_length` tokens (None: the model's
        positions) is read in equal windows of at most that, and pooled over all of them; [CLS] states are averaged.
        """
        if isinstance(texts, str):
            one: Vectors = self.embed([texts], pooling, normalize, batch_tokens, max_length)[0]
            return one
        if pooling not in ("mean", "cls", "max"):
            raise ValueError(f"pooling = {pooling!r}: 'mean', 'cls' or 'max' is needed")
        longest = self.config.max_positions if max_length is None else max_length
        if not text_pooling.SPECIALS < longest <= self.config.max_positions:
            raise ValueError(f"max_length = {longest}: from 3 to the model's {self.config.max_positions} is possible")
        if batch_tokens < 1:
            raise ValueError(f"batch_tokens = {batch_tokens}: at least 1 is needed")
        texts = _texts(texts)
        if not texts:
            return np.empty((0, self.config.hidden_size), dtype=np.float32)
        rows = self.tokenizer.encode_ids(texts)
        cut = text_pooling.windows(rows, longest)
        pooled = np.empty((len(cut.first), self.config.hidden_size), dtype=np.float32)
        for chosen, batch in text_pooling.batches(rows.ids, cut, batch_tokens):
            batch = batch.to(self.device)
            found = text_pooling.pool(self.model.encoder, batch, pooling)
            check_finite_outputs(bool(found.isfinite().all()))
            pooled[chosen] = found.cpu().numpy()
        joined = text_pooling.join(pooled, cut, pooling)
        return text_pooling.normalized(joined) if normalize else joined

    @overload
    def classify(self, texts: Text) -> Any: ...
    @overload
    def classify(self, texts: Sequence[Text]) -> list[Any]: ...
    def classify(self, texts: Text | Sequence[Text]) -> Any:
        """The label of each text, or of each pair `(a, b)`: `LabelPrediction`, and of a regression a float.

        What is longer than the task's `max_length` is cut at the end, of a pair the longer text first. Raises
        ValueError for a model of another kind of task, and for pairs where it reads single texts, or the reverse.
        """
        if isinstance(texts, str | tuple):
            (found,) = self.iter_classify([texts])
            return found
        return list(self.iter_classify(texts))

    def iter_classify(self, texts: Sequence[Text]) -> Iterator[Any]:
        """What `classify` gives, one after another, without holding it all; warnings come at the end."""
        task: AnyTask = self._task_of("classify", Classification, Regression)
        examples = [_text_example(given, f"text {number}") for number, given in enumerate(_rows(texts, "texts"))]
        if self.inferred and any(example.text_pair is not None for example in examples):
            task = replace(task, text_pair="pair")  # type: ignore[type-var]
        return self._predictions(task, examples)

    @overload
    def choose(self, prompt: str, endings: Sequence[str]) -> ChoicePrediction: ...  # type: ignore[overload-overlap]
    @overload
    def choose(self, prompt: Sequence[str], endings: Sequence[Sequence[str]]) -> list[ChoicePrediction]: ...
    def choose(
        self, prompt: str | Sequence[str], endings: Sequence[str] | Sequence[Sequence[str]]
    ) -> ChoicePrediction | list[ChoicePrediction]:
        """Which of several endings follows a prompt; or of each of two equally long lists, of as many endings each.

        A text that begins every ending (`--start`, SWAG's sent2) belongs to the endings: each is given whole. Raises
        ValueError for fewer than two endings, and as `classify`.
        """
        task = self._task_of("choose", MultipleChoice)
        if isinstance(prompt, str):
            (found,) = self._predictions(task, [_choice_example(prompt, endings, "this choice")])
            return found
        prompts, several = _rows(prompt, "prompt"), _rows(endings, "endings")
        if len(prompts) != len(several):
            raise ValueError("choose takes one prompt and its endings, or a list of each, equally long")
        pairs = enumerate(zip(prompts, several, strict=True))
        return list(self._predictions(task, [_choice_example(*pair, f"choice {number}") for number, pair in pairs]))

    @overload
    def tag(self, texts: str | tuple[str, ...]) -> TagPrediction: ...  # type: ignore[overload-overlap]
    @overload
    def tag(self, texts: Sequence[Words], document: bool = False) -> list[TagPrediction]: ...
    def tag(self, texts: Words | Sequence[Words], document: bool = False) -> TagPrediction | list[TagPrediction]:
        """The tag of each word of a text, or of words given as a tuple; or of each of a list of texts and words.

        A text of any length is read in windows, and no word is left out. `document`: the list holds the sentences of
        one document, in order, and each is read with those around it, by a model that was trained so (section 5.3).
        Raises ValueError as `classify`, and where a model that was trained without context is to use it.
        """
        task = self._task_of("tag", Tagging)
        single = isinstance(texts, str | tuple)
        if single and document:
            raise ValueError("document: a list of sentences expected, one text found")
        rows = enumerate([texts] if single else _rows(texts, "texts"))
        examples = [_tag_example(given, f"text {number}") for number, given in rows]
        if document:
            examples = task.in_context(examples)
        found = list(self._predictions(task, examples))
        return found[0] if single else found

    @overload
    def answer(self, question: str, context: str) -> Answer: ...  # type: ignore[overload-overlap]
    @overload
    def answer(self, question: Sequence[str], context: str | Sequence[str]) -> list[Answer]: ...
    def answer(self, question: str | Sequence[str], context: str | Sequence[str]) -> Answer | list[Answer]:
        """The span of a context that answers a question; of a list of questions each from the same context, or from its
        own in an equally long list.

        A context of any length is read in windows. Raises ValueError for lists of unequal length, and as `classify`.
        """
        task = self._task_of("answer", QuestionAnswering)
        single = isinstance(question, str)
        if single and not isinstance(context, str):
            raise ValueError(f"context: a text expected, as there is one question; one {type(context).__name__} found")
        questions = [question] if single else _rows(question, "question")
        contexts = [context] * len(questions) if isinstance(context, str) else _rows(context, "context")
        if len(questions) != len(contexts):
            raise ValueError("answer takes one question and its context, or a list of each, equally long")
        pairs = enumerate(zip(questions, contexts, strict=True))
        found = list(self._predictions(task, [_qa_example(number, *pair) for number, pair in pairs]))
        return found[0] if single else found

    @overload
    def features(self, texts: str | tuple[str, ...], layers: Sequence[int] = (-1,)) -> Vectors: ...  # type: ignore[overload-overlap]
    @overload
    def features(self, texts: Sequence[Words], layers: Sequence[int] = (-1,)) -> list[Vectors]: ...
    def features(self, texts: Words | Sequence[Words], layers: Sequence[int] = (-1,)) -> Vectors | list[Vectors]:
        """Vectors of words, the encoder as it is (section 5.3): for each text W × K × H float32, K layers of W words.

        A word's vector is the state of its first token. Layer 0 are the embeddings, L the last layer, and -1 the last
        as well. Texts are cut into words as `tag` cuts them, or are given as words; long ones are read in windows.
        Raises ValueError for a layer that the model does not have.
        """
        if isinstance(texts, str | tuple):
            return self.features([texts], layers)[0]
        depth = self.config.num_layers
        if odd := [layer for layer in layers if not -depth - 1 <= layer <= depth]:
            raise ValueError(f"layer {odd[0]}: this model has {depth}, and 0 for the embeddings")
        examples = [_tag_example(given, f"text {number}") for number, given in enumerate(_rows(texts, "texts"))]
        task = Tagging(max_length=min(self.config.max_positions, FEATURE_WINDOW))
        asked = [layer % (depth + 1) for layer in layers]
        read = sorted({*asked})
        found: list[Vectors] = []
        for chunk in split_into_chunks(examples):
            encoded = task.encode(chunk, self.tokenizer, labelled=False)
            found += word_features(self.model.encoder, encoded, len(chunk), read)
        return [vectors[:, [read.index(layer) for layer in asked]] for vectors in found]

    @property
    def task_model(self) -> TaskModel:
        """A task's model, with all that its folder tells of the task."""
        assert isinstance(self.model, EncoderForTask)
        assert self.task is not None
        return TaskModel(self.model, self.task, self.inferred, self.classes)

    def save(self, folder: Path | str) -> None:
        """Write a Hugging Face folder with the task, if there is one; it must not be there yet."""
        if isinstance(self.model, EncoderForTask):
            save_task_folder(Path(folder), self.task_model, self.tokenizer)
        else:
            save_model(Path(folder), self.model, self.tokenizer)

    def _task_of(self, call: str, *kinds: type[T]) -> T:
        """The model's task where it is of one of these kinds."""
        if not isinstance(self.task, kinds):
            wanted = kinds[0].kind
            raise ValueError(
                f"{self._purpose()}; {call} needs one fine-tuned for it: bertwright finetune --task {wanted} …"
            )
        return self.task

    def _purpose(self) -> str:
        if self.task is None:
            return "this model was not fine-tuned for a task"
        return f"this model is for {self.task.kind}: call {USES[self.task.kind]}"

    def _predictions(self, task: Task[E, P], examples: Sequence[E]) -> Iterator[P]:
        """One prediction an example; warns, at the end, of examples that are longer than the task reads."""
        assert isinstance(self.model, EncoderForTask)
        truncated = 0
        for chunk in predict_chunks(self.model, task, self.tokenizer, examples):
            yield from chunk.predictions
            truncated += chunk.truncated
        for note in truncation_warnings(task, len(examples), truncated, self.config.max_positions):
            warnings.warn(note, stacklevel=3)  # where the call was made that gives a list of these


def _rows(values: Any, name: str) -> list[Any]:
    """A list, an array or a column as a list. Raises ValueError for what would not give one value after another."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable) or getattr(values, "shape", None) == ():
        raise ValueError(f"{name}: one {type(values).__name__}; a list, an array or a column is expected")
    if isinstance(values, UNLISTED) or hasattr(values, "columns"):
        hint = "give one of its columns" if hasattr(values, "columns") else "give its values as a list"
        raise ValueError(f"{name}: a {type(values).__name__}; {hint}")
    return list(values)


def _texts(values: Any) -> list[str]:
    return [_text(given, f"text {number}") for number, given in enumerate(_rows(values, "texts"))]


def _text(given: Any, place: str) -> str:
    if not isinstance(given, str):  # of bytes the tokenizer would make some text
        raise ValueError(f"{place}: a text expected, {str(given)[:60]!r} found")
    if half := SURROGATE.search(given):
        raise ValueError(f"{place}: lone surrogate U+{ord(half[0]):04X} at character {half.start()}")
    return given


def _parts(given: Any) -> tuple[Any, ...]:
    """What a pair, a list of words or of endings holds; nothing that no text is where it is none of these."""
    listed = isinstance(given, Iterable) and not isinstance(given, (str, bytes, *UNLISTED))
    return tuple(given) if listed else (None,)


def _text_example(given: Any, place: str) -> TextExample[Any]:
    if isinstance(given, str):
        return TextExample(_text(given, place), None, None, place)
    pair = _parts(given)
    if len(pair) != 2 or not all(isinstance(text, str) for text in pair):
        raise ValueError(f"{place}: a text or a pair of texts (a, b) expected, {str(given)[:60]!r} found")
    first, second = (_text(text, place) for text in pair)
    return TextExample(first, second, None, place)


def _choice_example(prompt: Any, endings: Any, place: str) -> ChoiceExample:
    parts = _parts(endings)
    if len(parts) < 2:
        raise ValueError(f"{place}: two endings or more are needed, in a list; {str(endings)[:60]!r} given")
    if odd := [text for text in (prompt, *parts) if not isinstance(text, str)]:
        raise ValueError(f"{place}: a prompt and its endings are texts; {str(odd[0])[:60]!r} found")
    return ChoiceExample(_text(prompt, place), tuple(_text(ending, place) for ending in parts), None, place)


def _qa_example(number: int, question: Any, context: Any) -> QaExample:
    asked = _text(question, f"question {number}")
    return QaExample(f"{number}", asked, _text(context, f"context {number}"), location=f"question {number}")


def _tag_example(given: Any, place: str) -> TagExample:
    if isinstance(given, str):
        return TagExample.from_text(_text(given, place), source=place)
    words = _parts(given)
    if not all(isinstance(word, str) and word for word in words):
        raise ValueError(f"{place}: a text or a list of its words expected, {str(given)[:60]!r} found")
    return TagExample(tuple(_text(word, place) for word in words), source=place)


def load(
    name: str | Path, device: str | torch.device | None = None, compute_dtype: torch.dtype = torch.float32
) -> Bert:
    """Open a model: a local folder, a run's folder, or a name on the Hugging Face hub (`org/name`, `hf://org/name`).

    It may be a pre-training model, a bare encoder, or a task's model, ours or of `transformers`. `device`: None takes a
    GPU if there is one. `compute_dtype`: torch.bfloat16 is faster where the machine has it.
    Raises ValueError, naming file and reason, for what is not a whole BERT model, and for a device that is not there.
    """
    if compute_dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"compute_dtype: torch.float32 or torch.bfloat16 expected, {compute_dtype!r} found")
    place = _device(device)
    folder = model_folder(name)
    config = load_config(folder)  # checks checksums: before the tokenizer is read
    tokenizer = Tokenizer.load(folder)
    check_vocabulary(tokenizer, config, folder)
    if found := load_task(folder):
        bert = Bert(found.model, tokenizer, task=found.task, inferred=found.inferred, classes=found.classes)
    else:
        loaded = load_model(folder, heads="optional")
        bert = Bert(loaded.model, tokenizer, loaded.missing_heads)
    bert.model.to(place)
    bert.model.encoder.compute_dtype = compute_dtype
    return bert


def _device(asked: str | torch.device | None) -> torch.device:
    """Where to compute. Raises ValueError for what is no device, and for a GPU where there is none."""
    try:
        found = torch.device(asked if asked is not None else "cuda" if torch.cuda.is_available() else "cpu")
    except (RuntimeError, TypeError):
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise ValueError(f'device = {asked!r}: "cpu", "cuda" or "cuda:1" expected')
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device = {asked!r}: this PyTorch sees {torch.cuda.device_count()} GPUs; leave it out")
    return found
