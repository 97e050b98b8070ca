"""Python interface to a trained model: load it, fill masks, compute vectors, classify, choose, tag, answer."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

import numpy as np
import torch

from bertwright.inference.attention_weights import Attention, compute_attention_weights, pack_segments
from bertwright.inference.explanation import Explanation, compute_explanation
from bertwright.inference.exported_folder import ExportedEncoder, find_export, open_export
from bertwright.inference.feature_cache import compute_word_features
from bertwright.inference.fill_mask import MaskPrediction, predict_masks
from bertwright.inference.generation import Generation, generate_texts, to_generator
from bertwright.inference.int8_model import use_int8
from bertwright.inference.next_sentence import predict_next_sentences
from bertwright.inference.python_inputs import (
    check_text,
    choice_example,
    qa_example,
    ranking_example,
    tag_example,
    text_example,
    to_list,
)
from bertwright.inference.text_scores import TextScore, score_texts
from bertwright.inference.text_settings import GenerationSettings
from bertwright.inference.text_vectors import (
    BATCH_TOKENS,
    NUM_SPECIAL,
    compute_vectors,
    encode_sentences,
    normalize_vectors,
    pool_sequences,
    role_prompt,
)
from bertwright.interop.huggingface import check_vocabulary, load_config, load_model, save_model
from bertwright.interop.model_files import model_folder
from bertwright.interop.sentence_modules import SentenceModules, read_sentence_modules
from bertwright.interop.weights import summarize
from bertwright.kernels.gpu_linear import keep_copies
from bertwright.models.encoder import EncoderModel, TokenPredictor
from bertwright.models.heads import is_untrained
from bertwright.models.linear import Int8Linear
from bertwright.models.pooling import Vectors, check_pooling
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.tasks.collation import check_segments
from bertwright.tasks.multiple_choice import ChoicePrediction, MultipleChoice
from bertwright.tasks.prediction import predict_chunks, split_into_chunks
from bertwright.tasks.question_answering import Answer, QuestionAnswering
from bertwright.tasks.reranking import RankedText, Reranking, rank_texts
from bertwright.tasks.tagging import Tagging, TagPrediction
from bertwright.tasks.task import AnyTask, Task
from bertwright.tasks.task_folder import TaskModel, load_task, save_task_folder
from bertwright.tasks.text_task import TextTask
from bertwright.tasks.unknown_rates import InputCounts
from bertwright.training.context import ExecutionContext
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from bertwright.vocabulary.tokenizer import TextTokenizer

E = TypeVar("E")
P = TypeVar("P")
T = TypeVar("T", bound=AnyTask)

SAMPLED = GenerationSettings()
COMPUTE_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
FEATURE_WINDOW = 512  # tokens: the sequence length of pre-training; longer windows add little

Text = str | tuple[str, str]
"""A text, or a pair of texts."""
Words = str | Sequence[str]
"""A text, which is then split into words, or a list of words."""


class Bert:
    """A model with its tokenizer, ready for use: dropout is off, and no gradients are computed.

    For a single input, methods return a single result; for a list of any length, a list of results in the same order.
    The other inputs in the list change a result by rounding only, by up to about 1e-6; in float32 on a CPU with one or
    two threads, not at all.
    """

    def __init__(
        self,
        model: EncoderModel | TaskModel,
        tokenizer: TextTokenizer,
        missing_heads: Sequence[str] = (),
        modules: SentenceModules | None = None,
    ) -> None:
        """Combine a pre-trained model, or a fine-tuned model and its task, with its tokenizer.

        `missing_heads`: heads of `model` with random weights, as in `interop.huggingface.LoadResult`. `modules`: how
        `embed` computes vectors, of a sentence-transformers folder. Raises ValueError if the vocabulary or the task
        does not fit the model.
        """
        self.task_model = model if isinstance(model, TaskModel) else None
        network: EncoderModel = model.model if isinstance(model, TaskModel) else model
        check_vocabulary(tokenizer, network.config, "tokenizer and model")
        if (self.task and self.task.head) != (network.head.spec if isinstance(network, EncoderForTask) else None):
            raise ValueError(
                "task and model do not belong together: expected a task if and only if the model has its head"
            )
        self.model = network.eval()
        self.tokenizer = tokenizer
        self.config = network.config
        self.missing_heads = tuple(missing_heads)
        self.sentence_modules = modules

    @property
    def task(self) -> AnyTask | None:
        """The task of a fine-tuned model."""
        return self.task_model.task if self.task_model else None

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.model.parameters()).device

    @overload
    def fill_mask(self, texts: str, top_k: int = 5) -> MaskPrediction: ...  # type: ignore[overload-overlap]
    @overload
    def fill_mask(self, texts: Sequence[str], top_k: int = 5) -> list[MaskPrediction]: ...
    @torch.inference_mode()
    def fill_mask(self, texts: str | Sequence[str], top_k: int = 5) -> MaskPrediction | list[MaskPrediction]:
        """Predict the `top_k` most probable tokens, with their probabilities, for each [MASK] of a text.

        Several [MASK]s of a text are predicted independently. If a text has more tokens than the model has positions,
        the model reads a window around each [MASK]. Task 1 of section 3.1.

        Raises ValueError for a text without [MASK], and for a model that cannot predict a [MASK]: a fine-tuned model, a
        model without a masked-LM head, or a left-to-right model.
        """
        if isinstance(texts, str):
            return self.fill_mask([texts], top_k)[0]
        checked = _check_texts(texts)
        if self.task is not None:
            raise ValueError(
                f"this model was fine-tuned for {self.task.kind} and has no masked-LM head; call fill_mask on the "
                "pre-trained model that it started from"
            )
        if not isinstance(self.model, TokenPredictor) or "masked_token" in self.missing_heads:
            raise ValueError("this model has no masked-LM head; call fill_mask on a pre-trained model that has one")
        if self.config.is_causal:
            raise ValueError(
                "this left-to-right model does not see what follows a [MASK]; call fill_mask on a masked LM"
            )
        if not 1 <= top_k <= self.tokenizer.vocab_size:
            raise ValueError(f"top_k: expected 1 to {self.tokenizer.vocab_size}, the vocabulary's size, got {top_k}")
        self._warn_of_vocabulary(checked)
        return predict_masks(self.model, self.tokenizer, checked, top_k)

    @overload
    def generate(self, prompts: str, settings: GenerationSettings = ...) -> Generation: ...  # type: ignore[overload-overlap]
    @overload
    def generate(self, prompts: Sequence[str], settings: GenerationSettings = ...) -> list[Generation]: ...
    @torch.inference_mode()
    def generate(
        self, prompts: str | Sequence[str], settings: GenerationSettings = SAMPLED
    ) -> Generation | list[Generation]:
        """Continue each prompt: by sampling or, by the settings, greedily or by beam search.

        Raises ValueError for an empty prompt, for one that leaves no position free, and for a model that is not a
        pre-trained left-to-right language model (GPT).
        """
        if isinstance(prompts, str):
            return self.generate([prompts], settings)[0]
        checked = _check_texts(prompts)
        model = to_generator(self.model, self.task)
        self._warn_of_vocabulary(checked)
        return generate_texts(model, self.tokenizer, checked, settings)

    @overload
    def score(self, texts: str) -> TextScore: ...  # type: ignore[overload-overlap]
    @overload
    def score(self, texts: Sequence[str]) -> list[TextScore]: ...
    @torch.inference_mode()
    def score(self, texts: str | Sequence[str]) -> TextScore | list[TextScore]:
        """Compute the log-probability, the number of tokens and the perplexity of each text.

        For left-to-right language models: GPT, a BERT of --objective ltr, ULMFiT's, and ELMo's forward direction.
        Raises ValueError for other models, and for a text without a token to predict.
        """
        if isinstance(texts, str):
            return self.score([texts])[0]
        checked = _check_texts(texts)
        self._warn_of_vocabulary(checked)
        return score_texts(self.model, self.tokenizer, checked)

    @overload
    def next_sentence(self, first: str, second: str) -> float: ...  # type: ignore[overload-overlap]
    @overload
    def next_sentence(self, first: Sequence[str], second: Sequence[str]) -> list[float]: ...
    @torch.inference_mode()
    def next_sentence(self, first: str | Sequence[str], second: str | Sequence[str]) -> float | list[float]:
        """Predict the probability that the second text follows the first; for two lists, of each pair.

        If a pair has more tokens than the model has positions, its longer text is truncated at the end. Task 2 of
        section 3.1.

        Raises ValueError for lists of different lengths, and for a model that was pre-trained without this task.
        """
        if isinstance(first, str):
            return self.next_sentence([first], [check_text(second, "second text")])[0]
        firsts, seconds = (_check_texts(texts) for texts in (first, second))
        _check_lengths("first text", firsts, "second texts", seconds)
        if not isinstance(self.model, BertForPretraining) or {"pooler", "next_sentence"} & {*self.missing_heads}:
            raise ValueError("this model has no next-sentence head; call next_sentence on a pre-trained model with one")
        untrained = is_untrained(self.model.pooler.dense) or is_untrained(self.model.next_sentence)
        if untrained or self.model.config.is_causal:  # [CLS] of a left-to-right model sees only itself
            raise ValueError(
                f"this {self.model.config.direction} model was pre-trained without next-sentence prediction; call "
                "next_sentence on a model that was pre-trained with --objective mlm+nsp"
            )
        self._warn_of_vocabulary(firsts + seconds)
        return predict_next_sentences(self.model, self.tokenizer, firsts, seconds)

    @torch.inference_mode()
    def attention(self, text: str, text_pair: str | None = None) -> Attention:
        """Compute the attention weights of a text or a pair: layer × head × attending token × attended token.

        They are the probabilities before dropout (`output_attentions` of transformers; Vaswani et al. 2017, section
        3.2.1). Raises ValueError if the text has more tokens than the model has positions, for a pair if the model has
        one segment embedding, and for a model that is not a BERT.
        """
        encoder = self.model.encoder
        if not isinstance(encoder, BertEncoder):
            raise ValueError(f"attention: expected a BERT, got a model of type {encoder.model_type}")
        texts = [check_text(text, "text")] + ([] if text_pair is None else [check_text(text_pair, "text_pair")])
        self._warn_of_vocabulary(texts)
        batch = pack_segments(texts, self.tokenizer)
        check_segments(np.arange(len(texts)), encoder.config)
        if batch.packing.num_tokens > self.config.max_positions:
            raise ValueError(
                f"expected at most the {self.config.max_positions} tokens that the model reads, got "
                f"{batch.packing.num_tokens}; shorten the text"
            )
        tokens = tuple(self.tokenizer.token(token) for token in batch.input_ids.tolist())
        return Attention(tokens, compute_attention_weights(encoder, batch.to(self.device)))

    def explain(self, query: str, text: str) -> Explanation:
        """Compute the share of each pair of words in the cosine of two texts: a matrix whose sum is the cosine.

        It is exact for mean pooling, where a text's vector is the sum of its words'. Prompts belong to queries and
        documents, if the model has them. Raises ValueError for another pooling, for layers that are not linear, and for
        a text that is longer than the model reads.
        """
        return compute_explanation(self, check_text(query, "query"), check_text(text, "text"))

    def embed(
        self,
        texts: str | Sequence[str],
        pooling: str | None = None,
        normalize: bool | None = None,
        batch_tokens: int = BATCH_TOKENS,
        max_length: int | None = None,
        prompt_name: str | None = None,
        dims: int | None = None,
    ) -> Vectors:
        """Compute one vector per text: N × H float32 for a list of N texts, H float32 for one text.

        A folder of sentence-transformers has its own pooling, further layers, normalization, prompts and longest text;
        they are the default, with the vectors of that library. `prompt_name`: one of its prompts, which comes before
        each text; None: its default. A `pooling` replaces all of them, `normalize` the normalization. None for other
        folders: "mean" and True.

        `pooling`: a name of `models.pooling.POOLINGS`: "mean", "max", "weightedmean" or "mean_sqrt_len_tokens" of the
        states of all tokens, including [CLS] and [SEP]; "cls", the state of [CLS]; or "lasttoken". In a left-to-right
        model, [CLS] sees only itself, so "cls" is the state of the last token.
        `normalize`: scale to Euclidean length 1, so that a dot product is the cosine. `batch_tokens`: maximum tokens
        per forward pass; it bounds memory and changes no result. `max_length`: maximum tokens per window; a longer text
        is split into windows of equal length and pooled over all of them (states of single tokens are averaged). None:
        the model's positions. `dims`: keep the first numbers of each vector only, of a model that was trained with
        `--dims`; what has length 1 is scaled to it again.

        Raises ValueError for other values of these parameters, and for a value that is not a text.
        """
        single = isinstance(texts, str)
        if dims is not None and not 1 <= dims <= self.vector_size(pooling):
            raise ValueError(f"dims: expected 1 to the {self.vector_size(pooling)} numbers of a vector, got {dims}")
        vectors, counts = self.embed_and_count(
            [texts] if isinstance(texts, str) else texts, pooling, normalize, batch_tokens, max_length, prompt_name
        )
        for warning in embedding_warnings(counts):
            warnings.warn(warning, stacklevel=2)
        if dims is not None:
            has_length_1 = np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-4)
            vectors = normalize_vectors(vectors[:, :dims]) if has_length_1 else vectors[:, :dims]
        return vectors[0] if single else vectors

    def embed_query(self, texts: str | Sequence[str], dims: int | None = None) -> Vectors:
        """Compute `embed` with the prompt named "query", if the model has one, else with its default prompt."""
        return self.embed(texts, prompt_name=role_prompt(self, "query"), dims=dims)

    def embed_document(self, texts: str | Sequence[str], dims: int | None = None) -> Vectors:
        """Compute `embed` with the prompt named "document", if the model has one, else with its default prompt."""
        return self.embed(texts, prompt_name=role_prompt(self, "document"), dims=dims)

    def similarity(self, first: str | Sequence[str] | Vectors, second: str | Sequence[str] | Vectors) -> Vectors:
        """Compute the cosines, N × M float32, of texts, or of vectors N × H and M × H."""
        one, two = (
            given if isinstance(given, np.ndarray) else self.embed([given] if isinstance(given, str) else given)
            for given in (first, second)
        )
        cosines: Vectors = normalize_vectors(np.atleast_2d(one)) @ normalize_vectors(np.atleast_2d(two)).T
        return cosines

    @torch.inference_mode()
    def embed_and_count(
        self,
        texts: Sequence[str],
        pooling: str | None = None,
        normalize: bool | None = None,
        batch_tokens: int = BATCH_TOKENS,
        max_length: int | None = None,
        prompt_name: str | None = None,
    ) -> tuple[Vectors, InputCounts]:
        """Compute the vectors of `embed` without its warnings, which belong to all chunks of a file together."""
        max_positions, modules = self.config.max_positions, self.choose_modules(pooling)
        if modules and max_length is None:
            max_length = modules.limit(max_positions)
        if prompt_name is not None and modules is None:
            raise ValueError("prompt_name: this model has no prompts of its own, or pooling replaces its modules")
        pooling = pooling or "mean"
        max_length = max_positions if max_length is None else max_length
        check_pooling(pooling)
        if not NUM_SPECIAL < max_length <= max_positions:
            raise ValueError(f"max_length: expected {NUM_SPECIAL + 1} to the model's {max_positions}, got {max_length}")
        if batch_tokens < 1:
            raise ValueError(f"batch_tokens: expected at least 1, got {batch_tokens}")
        checked = _check_texts(texts)
        encoder, tokenizer = self.model.encoder, self.tokenizer
        if modules:
            encoded, skip = encode_sentences(tokenizer, checked, modules, modules.prompt(prompt_name), max_length)
            pooled = pool_sequences(encoder, encoded, modules.modes, batch_tokens, skip)
            vectors = modules.transform(torch.from_numpy(pooled), normalize).numpy()
        else:
            vectors, encoded = compute_vectors(encoder, tokenizer, checked, pooling, max_length, batch_tokens)
            normalize = normalize is not False
        counts = InputCounts.count(len(checked), encoded, tokenizer)
        return normalize_vectors(vectors) if normalize else vectors, counts

    def choose_modules(self, pooling: str | None) -> SentenceModules | None:
        """Return the folder's own modules unless `pooling` replaces them. Raises ValueError for unsupported ones."""
        if pooling is not None or self.sentence_modules is None:
            return None
        if self.sentence_modules.unsupported:
            raise ValueError(f"{self.sentence_modules.unsupported}; a pooling of your choice needs no modules")
        return self.sentence_modules

    def vector_size(self, pooling: str | None = None) -> int:
        """Return the numbers per vector of `embed`."""
        modules, hidden_size = self.choose_modules(pooling), self.config.hidden_size
        return modules.vector_size(hidden_size) if modules else hidden_size

    @overload
    def classify(self, texts: Text) -> Any: ...
    @overload
    def classify(self, texts: Sequence[Text]) -> list[Any]: ...
    def classify(self, texts: Text | Sequence[Text]) -> Any:
        """Predict the label of each text, or of each pair `(a, b)`: a `LabelPrediction`; for a regression, a float.

        A text with more tokens than the task's `max_length` is truncated at its end; a pair, at the end of its longer
        text. Section 4.1.

        Raises ValueError for a model of another task type, for pairs if the task has single texts, and vice versa.
        """
        if isinstance(texts, str | tuple):
            (prediction,) = self.iter_classify([texts])
            return prediction
        return list(self.iter_classify(texts))

    def iter_classify(self, texts: Sequence[Text]) -> Iterator[Any]:
        """Yield the predictions of `classify` one by one, without storing them; warnings come after the last one."""
        task: AnyTask = check_task(self, "classify", TextTask, "classification")  # type: ignore[type-abstract]
        examples = [text_example(text, f"text {index}") for index, text in enumerate(to_list(texts, "texts"))]
        is_inferred = self.task_model is not None and self.task_model.inferred
        if is_inferred and any(example.text_pair is not None for example in examples):
            task = replace(task, text_pair="pair")  # type: ignore[type-var]
        return predict_examples(self, task, examples)

    @overload
    def choose(self, prompt: str, endings: Sequence[str]) -> ChoicePrediction: ...  # type: ignore[overload-overlap]
    @overload
    def choose(self, prompt: Sequence[str], endings: Sequence[Sequence[str]]) -> list[ChoicePrediction]: ...
    def choose(
        self, prompt: str | Sequence[str], endings: Sequence[str] | Sequence[Sequence[str]]
    ) -> ChoicePrediction | list[ChoicePrediction]:
        """Predict which ending continues a prompt; a list of prompts requires a list of endings for each of them.

        All prompts have the same number of endings. If all endings begin with the same text (SWAG's sent2, `--start` in
        fine-tuning), repeat it in each of them. Section 4.4.

        Raises ValueError for fewer than two endings, for lists of different lengths, and for a model of another task.
        """
        task = check_task(self, "choose", MultipleChoice, MultipleChoice.kind)
        if isinstance(prompt, str):
            (prediction,) = predict_examples(self, task, [choice_example(prompt, endings, "this choice")])
            return prediction
        prompts, endings_per_prompt = to_list(prompt, "prompt"), to_list(endings, "endings")
        _check_lengths("prompt", prompts, "endings", endings_per_prompt)
        choices = enumerate(zip(prompts, endings_per_prompt, strict=True))
        examples = [choice_example(begin, ends, f"choice {index}") for index, (begin, ends) in choices]
        return list(predict_examples(self, task, examples))

    def rank(self, query: str, texts: Sequence[str], top_k: int = 10) -> list[RankedText]:
        """Order texts by their relevance for a query; return the first `top_k` with position, score and text.

        The score is a probability or, after other losses than binary, a number without a scale. Texts with equal scores
        keep the order of the list. A pair with more tokens than the task's `max_length` loses the end of its longer
        text. Nogueira and Cho 2019 (1901.04085).

        Raises ValueError for an empty query or text, and for a model that is no re-ranker.
        """
        task = check_task(self, "rank", Reranking, Reranking.kind)
        if top_k < 1:
            raise ValueError(f"top_k: expected at least 1, got {top_k}")
        example = ranking_example(query, texts)
        (scores,) = predict_examples(self, task, [example]) if example.texts else [()]
        return rank_texts(example.texts, scores)[:top_k]

    @overload
    def tag(self, texts: str | tuple[str, ...]) -> TagPrediction: ...  # type: ignore[overload-overlap]
    @overload
    def tag(self, texts: Sequence[Words], document: bool = False) -> list[TagPrediction]: ...
    def tag(self, texts: Words | Sequence[Words], document: bool = False) -> TagPrediction | list[TagPrediction]:
        """Predict the tag of each word. A string or a tuple of words is one text; a list has several of them.

        A long text is read in windows; every word is tagged. `document`: the list contains the sentences of one
        document in order, and the model reads each with the surrounding ones; this requires a model that was trained
        with `--context True` (section 5.3).

        Raises ValueError for a model of another task type, and for `document` if it was trained without context.
        """
        task = check_task(self, "tag", Tagging, Tagging.kind)
        is_single = isinstance(texts, str | tuple)
        if is_single and document:
            raise ValueError("document: expected a list of sentences, got one text")
        values = enumerate([texts] if is_single else to_list(texts, "texts"))
        examples = [tag_example(value, f"text {index}").split_into(task.unit) for index, value in values]
        if document:
            examples = task.in_context(examples)
        predictions = list(predict_examples(self, task, examples))
        return predictions[0] if is_single else predictions

    @overload
    def answer(self, question: str, context: str) -> Answer: ...  # type: ignore[overload-overlap]
    @overload
    def answer(self, question: Sequence[str], context: str | Sequence[str]) -> list[Answer]: ...
    def answer(self, question: str | Sequence[str], context: str | Sequence[str]) -> Answer | list[Answer]:
        """Predict the span of a context that answers a question.

        For a list of questions, give one context for all of them, or a list with one context per question. A long
        context is read in windows. Sections 4.2 and 4.3.

        Raises ValueError for lists of different lengths, and for a model of another task type.
        """
        task = check_task(self, "answer", QuestionAnswering, QuestionAnswering.kind)
        is_single = isinstance(question, str)
        if is_single:
            check_text(context, "context of one question")
        questions = [question] if is_single else to_list(question, "question")
        contexts = [context] * len(questions) if isinstance(context, str) else to_list(context, "context")
        _check_lengths("question", questions, "context", contexts)
        pairs = enumerate(zip(questions, contexts, strict=True))
        answers = list(predict_examples(self, task, [qa_example(index, asked, read) for index, (asked, read) in pairs]))
        return answers[0] if is_single else answers

    @overload
    def features(self, texts: str | tuple[str, ...], layers: Sequence[int] = (-1,)) -> Vectors: ...  # type: ignore[overload-overlap]
    @overload
    def features(self, texts: Sequence[Words], layers: Sequence[int] = (-1,)) -> list[Vectors]: ...
    def features(self, texts: Words | Sequence[Words], layers: Sequence[int] = (-1,)) -> Vectors | list[Vectors]:
        """Compute vectors of words with the encoder: for each text, W words × K layers × H float32.

        A word's vector is the state of its first token. Layer 0 is the output of the embeddings, layer L or -1
        the output of the last layer. `texts`: as in `tag`. Section 5.3.

        Raises ValueError for a layer that the model does not have.
        """
        if isinstance(texts, str | tuple):
            return self.features([texts], layers)[0]
        last = self.config.num_layers
        if unknown := [layer for layer in layers if not -last - 1 <= layer <= last]:
            raise ValueError(f"layers: expected 0 (embeddings) to {last}, got {unknown[0]}")
        examples = [tag_example(value, f"text {index}") for index, value in enumerate(to_list(texts, "texts"))]
        task = Tagging(max_length=min(self.config.max_positions, FEATURE_WINDOW))
        positive = [layer % (last + 1) for layer in layers]
        computed = sorted({*positive})
        vectors: list[Vectors] = []
        counts = InputCounts()
        for chunk in split_into_chunks(examples):
            encoded = task.encode(chunk, self.tokenizer, labeled=False)
            counts.add(InputCounts.count(len(chunk), encoded, self.tokenizer))
            vectors += compute_word_features(self.model.encoder, encoded, len(chunk), computed)
        for warning in counts.vocabulary_warnings():
            warnings.warn(warning, stacklevel=2)
        return [of_text[:, [computed.index(layer) for layer in positive]] for of_text in vectors]

    def save(self, folder: Path | str) -> None:
        """Write a new Hugging Face folder with the model, its tokenizer and its task, atomically.

        Raises ValueError if the folder already exists, for an exported graph, and for a model in int8.
        """
        if isinstance(self.model.encoder, ExportedEncoder):
            raise ValueError(f"{folder}: an exported graph is not written again; copy its folder")
        if any(isinstance(module, Int8Linear) for module in self.model.modules()):
            raise ValueError(
                "save: expected a model in float32 or bfloat16, got one in int8; copy the folder it is from"
            )
        if self.task_model is not None:
            self.task_model.check_computed(f"{folder}, the model to save")
            save_task_folder(Path(folder), self.task_model, self.tokenizer)
        else:
            save_model(Path(folder), self.model, self.tokenizer, self.missing_heads, self.sentence_modules)

    def _warn_of_vocabulary(self, texts: Sequence[str]) -> None:
        """Warn if the vocabulary was not made for these texts."""
        ids = self.tokenizer.encode_ids(texts).ids
        for warning in InputCounts.count_ids(len(texts), ids, self.tokenizer).vocabulary_warnings():
            warnings.warn(warning, stacklevel=4)  # the caller of the public method, which runs in inference mode


def check_task(bert: Bert, method: str, task_type: type[T], kind: str) -> T:
    """Return a model's task. Raises ValueError, naming the method and a `kind` that has it, for other types."""
    if bert.task_model is not None:
        bert.task_model.check_computed("this model")
    if isinstance(bert.task, task_type):
        return bert.task
    purpose = "was not fine-tuned for a task"
    if bert.sentence_modules is not None:
        purpose = "computes vectors of texts: call embed(texts)"
    if bert.task is not None:
        purpose = f"is for {bert.task.kind}: call {bert.task.inference_call}"
    raise ValueError(f"this model {purpose}; {method} needs a model from: bertwright finetune --task {kind} …")


def predict_examples(bert: Bert, task: Task[E, P], examples: Sequence[E]) -> Iterator[P]:
    """Yield one prediction of a model's task per example, then warn if examples were truncated."""
    assert isinstance(bert.model, EncoderForTask)
    counts = InputCounts()
    for chunk in predict_chunks(bert.model, task, bert.tokenizer, examples):
        yield from chunk.predictions
        counts.add(chunk.counts)
    notes = task.truncation_warnings(counts.examples, counts.truncated, bert.config.max_positions)
    for warning in notes + counts.vocabulary_warnings():
        warnings.warn(warning, stacklevel=3)  # points to the caller of the public method


def embedding_warnings(counts: InputCounts) -> list[str]:
    """Describe how texts did not suit a model whose vectors were computed."""
    share = f"{counts.truncated:,} of {counts.examples:,} texts lose tokens"
    reason = "they are longer than the model folder says that it reads (max_seq_length)"
    truncated = [f"{share}: {reason}"] if counts.truncated else []
    return truncated + counts.vocabulary_warnings()


def _check_texts(values: Any) -> list[str]:
    return [check_text(value, f"text {index}") for index, value in enumerate(to_list(values, "texts"))]


def _check_lengths(name: str, values: Sequence[Any], other_name: str, others: Sequence[Any]) -> None:
    if len(values) != len(others):
        raise ValueError(f"{other_name}: expected one for each of {len(values)} {name}s, got {len(others)}")


def load(
    name: str | Path,
    device: str | torch.device | None = None,
    compute_dtype: torch.dtype = torch.float32,
    dtype: Literal["float32", "bfloat16", "int8"] | None = None,
) -> Bert:
    """Load a model: a model folder, a run's folder, or a name on the Hugging Face hub (`org/name`, `hf://org/name`).

    The model may be a pre-trained model, a bare encoder or a fine-tuned model, written by bertwright or `transformers`.
    `device`: "cpu", "cuda" or a number such as "cuda:1"; None: a GPU if there is one. `compute_dtype`: torch.bfloat16
    is faster on processors that support it; torch.int8 computes the linear layers of a BERT, RoBERTa, DistilBERT,
    ELECTRA, ALBERT or MPNet in int8, on a CPU, and warns if `bertwright quantize` has not written the folder. `dtype`:
    its name, which replaces it. If the folder has a `checksums.json`, all files are compared with it; this takes 0.1 s
    for BERT base.

    Raises ValueError, naming file and reason, for an incomplete, damaged or unsupported model, for a device that does
    not exist, and for a device or dtype that an exported graph does not have. If a run is unfinished, its best or
    newest checkpoint is loaded, with a warning; another one names the parameters of layers that the model's class does
    not have.
    """
    if dtype not in (None, *COMPUTE_DTYPES):
        raise ValueError(f"dtype: expected one of {', '.join(COMPUTE_DTYPES)}, got {dtype!r}")
    if dtype is None and compute_dtype in (torch.bfloat16, torch.int8):
        dtype = "int8" if compute_dtype == torch.int8 else "bfloat16"
    asked = "auto" if device is None else str(device), dtype or "auto"
    return _warn_of_layers(open_model(name, device, COMPUTE_DTYPES[dtype] if dtype else compute_dtype, asked), name)


def load_in(context: ExecutionContext, name: str | Path) -> Bert:
    """Load a model as `load` does, on the device and in the dtype of a command."""
    return _warn_of_layers(open_in(context, name), name)


def load_reranker(context: ExecutionContext, name: str | Path) -> Bert:
    """Load a re-ranker. Raises ValueError for another model."""
    model = load_in(context, name)
    if not isinstance(model.task, Reranking):
        raise ValueError(f"{name}: no re-ranker; train one with bertwright finetune --task {Reranking.kind}")
    return model


def open_in(context: ExecutionContext, name: str | Path) -> Bert:
    """Load a model as `open_model` does, on the device and in the dtype of a command."""
    return open_model(name, context.device, context.dtype, context.asked)


def _warn_of_layers(bert: Bert, name: str | Path) -> Bert:
    """Return the model, after a warning of layers that are not computed."""
    if bert.model.not_computed:
        names = summarize(bert.model.not_computed)
        warnings.warn(f"{name}: not computed: {names}, of layers that the model's class does not have", stacklevel=3)
    return bert


def open_model(
    name: str | Path,
    device: str | torch.device | None,
    compute_dtype: torch.dtype = torch.float32,
    asked: tuple[str, str] = ("auto", "auto"),
) -> Bert:
    """Load a model as `load` does, without its warning of layers that are not computed.

    `asked`: device and dtype that the user named, else "auto": an exported graph has a device and a dtype of its own.
    """
    if compute_dtype not in COMPUTE_DTYPES.values():
        raise ValueError(f"compute_dtype: expected torch.float32, torch.bfloat16 or torch.int8, got {compute_dtype!r}")
    checked_device = _check_device(device)
    folder = model_folder(name)
    config = load_config(folder)  # first: it also checks the files of tokenizer and task
    tokenizer = open_tokenizer(folder)
    check_vocabulary(tokenizer, config, folder)
    if report := find_export(folder):
        report.check_asked(asked[0], "int8" if compute_dtype == torch.int8 else asked[1])
        return Bert(open_export(report), tokenizer, modules=read_sentence_modules(folder))
    if task_model := load_task(folder):
        bert = Bert(task_model, tokenizer, modules=read_sentence_modules(folder))
    else:
        loaded = load_model(folder, heads="optional")
        bert = Bert(loaded.model, tokenizer, loaded.missing_heads, read_sentence_modules(folder))
    bert.model.to(checked_device)
    if compute_dtype == torch.int8:
        use_int8(bert.model.encoder, checked_device, folder)
    else:
        bert.model.encoder.compute_dtype = compute_dtype
    keep_copies(bert.model.parameters())
    return bert


def _check_device(value: str | torch.device | None) -> torch.device:
    """Return the device; None selects a GPU if there is one. Raises ValueError if the device does not exist."""
    try:
        device = torch.device(value if value is not None else "cuda" if torch.cuda.is_available() else "cpu")
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f'device: expected "cpu", "cuda" or "cuda:1", got {value!r}')
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device: expected one of {torch.cuda.device_count()} GPUs that PyTorch sees, got {value!r}")
    return device
