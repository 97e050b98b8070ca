"""`load` a trained model and use it: fill masks, turn texts into vectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from bertwright.inference import masks, vectors
from bertwright.inference.masks import Candidate, Filled
from bertwright.inference.vectors import Pooling, Vectors
from bertwright.interop.huggingface import find_folder, load_model, save_model
from bertwright.models.heads import BertForPretraining
from bertwright.vocabulary.tokenizer import Tokenizer


class Bert:
    """A model with its tokenizer, ready to be called. Dropout is off; no gradient is kept."""

    def __init__(self, model: BertForPretraining, tokenizer: Tokenizer, missing_heads: Sequence[str] = ()) -> None:
        """`missing_heads`: heads of `model` that were never trained, as in `interop.huggingface.Loaded`."""
        if tokenizer.vocab_size > model.config.vocab_size:
            raise ValueError(
                f"the tokenizer has {tokenizer.vocab_size} tokens, the model {model.config.vocab_size}: "
                "they do not belong together"
            )
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.config = model.config
        self.missing_heads = tuple(missing_heads)

    @property
    def device(self) -> torch.device:
        return self.model.word_embeddings.device

    @torch.inference_mode()
    def fill_mask(self, text: str, top_k: int = 5) -> Filled:
        """What the model reads into each [MASK] of a text: the `top_k` likeliest tokens, with their probabilities.

        Several [MASK]s are answered at once, each on its own. In a text longer than the model's positions, each [MASK]
        is read in the window around it. Raises ValueError for a text without [MASK], and for a model that cannot
        answer: one without masked-token head, or a left-to-right one.
        """
        if "masked_token" in self.missing_heads:
            raise ValueError("this model folder has no masked-token head; fill_mask needs a pre-training checkpoint")
        if self.config.causal:
            raise ValueError("a left-to-right model never sees what follows a [MASK]; fill_mask needs a masked-LM one")
        if not 1 <= top_k <= self.tokenizer.vocab_size:
            raise ValueError(f"top_k = {top_k}: from 1 to the vocabulary's {self.tokenizer.vocab_size} is possible")
        encoding = self.tokenizer.encode(text)
        places = np.flatnonzero(encoding.ids == self.tokenizer.mask_id).tolist()
        if not places:
            raise ValueError(f"no [MASK] in {text[:60]!r}; write [MASK] in place of the word in question")
        asked = masks.questions(encoding, places, self.config.max_positions)
        predicted = self.model(asked.batch.to(self.device), torch.tensor(asked.positions, device=self.device))
        # A model may have more rows than tokens (rounded up for speed); those mean nothing.
        best = predicted.tokens[:, : self.tokenizer.vocab_size].softmax(-1).topk(top_k)
        answers = tuple(
            tuple(
                Candidate(self.tokenizer.token(number), probability) for number, probability in zip(*row, strict=True)
            )
            for row in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        )
        spans = [(int(first), int(last)) for first, last in encoding.offsets[places]]
        return Filled(masks.fill(text, spans, [answer[0].token for answer in answers]), answers)

    @torch.inference_mode()
    def embed(
        self,
        texts: Sequence[str],
        pooling: Pooling = "mean",
        normalize: bool = True,
        batch_tokens: int = 8192,
        max_length: int | None = None,
    ) -> Vectors:
        """One vector a text, N × H float32, in the order of the texts.

        `pooling`: mean or maximum over all tokens of the text, [CLS] and [SEP] included, or the state of [CLS].
        `normalize`: scale to Euclidean length 1, so that a dot product is the cosine. `batch_tokens`: tokens computed
        at once; it bounds memory and changes no result. A text longer than `max_length` tokens (None: the model's
        positions) is read in equal windows of at most that, and pooled over all of them; [CLS] states are averaged.
        """
        if isinstance(texts, str):
            raise ValueError("embed takes a list of texts, not one text: embed([text])")
        if pooling not in ("mean", "cls", "max"):
            raise ValueError(f"pooling = {pooling!r}: 'mean', 'cls' or 'max' is needed")
        longest = self.config.max_positions if max_length is None else max_length
        if not vectors.SPECIALS < longest <= self.config.max_positions:
            raise ValueError(f"max_length = {longest}: from 3 to the model's {self.config.max_positions} is possible")
        if batch_tokens < 1:
            raise ValueError(f"batch_tokens = {batch_tokens}: at least 1 is needed")
        if not texts:
            return np.empty((0, self.config.hidden_size), dtype=np.float32)
        rows = self.tokenizer.ids_with_specials(texts)
        cut = vectors.windows(rows, longest)
        pooled = np.empty((len(cut.first), self.config.hidden_size), dtype=np.float32)
        for chosen, batch in vectors.batches(rows.ids, cut, batch_tokens):
            batch = batch.to(self.device)
            pooled[chosen] = vectors.pool(self.model.encoder(batch), batch, pooling).cpu().numpy()
        joined = vectors.join(pooled, cut, pooling)
        return vectors.normalized(joined) if normalize else joined

    def save(self, folder: Path | str) -> None:
        """Write a Hugging Face folder, which must not be there yet; see `interop.huggingface.save_model`."""
        save_model(Path(folder), self.model, self.tokenizer)


def load(
    name: str | Path, device: str | torch.device | None = None, compute_dtype: torch.dtype = torch.float32
) -> Bert:
    """Open a model: a local folder, or a name on the Hugging Face hub (`org/name`, `hf://org/name`).

    `device`: None takes a GPU if there is one. `compute_dtype`: torch.bfloat16 is faster where the machine has it.
    Raises ValueError, naming file and reason, for what is not a whole BERT model.
    """
    folder = find_folder(name)
    loaded = load_model(folder, heads="optional")
    tokenizer = Tokenizer.load(folder)
    model = loaded.model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    model.encoder.compute_dtype = compute_dtype
    return Bert(model, tokenizer, loaded.missing_heads)
