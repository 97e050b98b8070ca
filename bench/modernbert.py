"""Measure ModernBERT beside `transformers` with sdpa, and the memory of 8,192 tokens.

Both have the same weights in the shape of ModernBERT-base with 6 of its 22 layers (the share of layers with windows is
the same). Texts of several lengths: states alone, and states with the gradients of all weights. `transformers` reads
each set in its fastest way, which a first round chooses: one text at a time, so without padding, or padded batches of
texts of similar length; with --dtype bfloat16, under autocast or, for states, with its weights in bfloat16. The
contenders take turns; a ratio is that within a round. The third contender computes only the products of our linear
layers, with the same rows: `transformers` beside it is the bound of the ratio, which no work on anything else can pass.
The memory is the peak of a process of its own that reads one text of 8,192 tokens with all 22 layers.

    python bench/modernbert.py [--dtype bfloat16] [--rounds 5] [--longest 2048] [--output FILE]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertwright.kernels.cpu import configure_malloc, peak_resident_memory
from bertwright.models.packing import pack
from bertwright.systems.modernbert.modernbert import ModernBertConfig, ModernBertEncoder
from bertwright.systems.modernbert.modernbert_folder import MODERNBERT
from contenders import run_alone
from environment import DTYPES, RESULTS, make_parser, multiply, take_turns, use_threads, write_result

LAYERS, VOCABULARY = 6, 30_000
BATCH_SIZES = (1, 4, 8)
Texts = list[np.ndarray]


def make_texts(name: str) -> Texts:
    """Return random tokens of a set of lengths."""
    rng = np.random.default_rng(1)
    ranges = {"16 to 128": (16, 129, 8), "16 to 512": (16, 513, 4)}
    lengths = rng.integers(*ranges[name]) if name in ranges else [int(name.replace(",", ""))]
    return [rng.integers(5, VOCABULARY, length) for length in lengths]


def build() -> tuple[ModernBertEncoder, Any]:
    """Return our encoder, and the model of `transformers` with its weights."""
    import transformers

    ours = ModernBertEncoder(ModernBertConfig(VOCABULARY, num_layers=LAYERS)).eval()
    config = transformers.ModernBertConfig(**MODERNBERT.format_config(ours.config) | {"pad_token_id": 0})
    config._attn_implementation = "sdpa"
    theirs = transformers.ModernBertModel(config).eval()
    named = {f"encoder.{name}": tensor for name, tensor in ours.state_dict().items()}
    theirs.load_state_dict({MODERNBERT.file_names(n)[0].removeprefix("model."): t for n, t in named.items()})
    return ours, theirs


def pad(texts: Texts) -> dict[str, torch.Tensor]:
    """Pad texts to the longest; one text, or texts of one length, need no mask."""
    longest = max(map(len, texts))
    ids = torch.tensor(np.stack([np.pad(text, (0, longest - len(text))) for text in texts]))
    lengths = torch.tensor([len(text) for text in texts])
    mask = (torch.arange(longest) < lengths[:, None]).long()
    return {"input_ids": ids} if bool(mask.all()) else {"input_ids": ids, "attention_mask": mask}


def run(model: Any, inputs: list[Any], trains: bool, autocast: bool = False) -> None:
    """Compute the states of all inputs and, if `trains`, the gradients of their mean square."""
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        compute(model, inputs, trains)


def compute(model: Any, inputs: list[Any], trains: bool) -> None:
    """Compute as `run` does, in the model's own dtype."""
    if not trains:
        with torch.inference_mode():
            for one in inputs:
                model(**one) if isinstance(one, dict) else model(one)
        return
    model.zero_grad()
    for one in inputs:
        states = model(**one)[0] if isinstance(one, dict) else model(one)
        states.square().mean().backward()


def measure(name: str, trains: bool, rounds: int, models: tuple[ModernBertEncoder, Any]) -> dict[str, Any]:
    """Return the speed, the ratio, its bound and the chosen batch size of `transformers` for one set of texts."""
    ours, theirs = models
    texts = make_texts(name)
    by_length = sorted(texts, key=len)
    ways: dict[str, Callable[[], object]] = {}
    is_half = ours.compute_dtype == torch.bfloat16
    half = deepcopy(theirs).bfloat16() if is_half and not trains else None
    for size in [size for size in BATCH_SIZES if size <= len(texts)]:
        batches = [pad(by_length[first : first + size]) for first in range(0, len(texts), size)]
        ways[f"batches of {size}"] = partial(run, theirs, batches, trains, is_half)
        if half is not None:
            ways[f"batches of {size}, weights in bfloat16"] = partial(run, half, batches, trains)
    first = take_turns(ways, 1, time.process_time)
    way = min(first, key=lambda name: first[name][0])
    contenders: dict[str, Callable[[], object]] = {
        "bertwright": partial(run, ours, [pack(texts)], trains),
        "transformers": ways[way],
        "products": partial(multiply, ours, sum(map(len, texts)), trains, ours.compute_dtype),
    }
    seconds = take_turns(contenders, rounds, time.process_time)
    ratios, bounds = (
        [theirs / own for own, theirs in zip(seconds[name], seconds["transformers"], strict=True)]
        for name in ("bertwright", "products")
    )
    tokens = sum(map(len, texts))
    return {
        "tokens": tokens,
        "tokens per second": tokens / statistics.median(seconds["bertwright"]),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "bound by products": statistics.median(bounds),
        "transformers": way,
    }


def measure_memory() -> float:
    """Return the peak memory in GB of this process after 8,192 tokens through all 22 layers."""
    use_threads(1)
    configure_malloc()
    with torch.device("meta"):
        encoder = ModernBertEncoder(ModernBertConfig(50_368))
    encoder = encoder.to_empty(device="cpu").eval()  # the initial draws would need more memory than the model
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    with torch.inference_mode():
        encoder(pack([np.arange(8192)]))
    return (peak_resident_memory() or 0) / 1e9


def main() -> None:
    """Print and write all figures."""
    parser = make_parser(__doc__)
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--longest", type=int, default=8192, help="leave out texts of more tokens")
    parser.add_argument("--output", type=Path, default=RESULTS / "modernbert.json")
    options = parser.parse_args()
    use_threads(1)
    configure_malloc()
    torch.manual_seed(0)
    models, results = build(), {}
    models[0].compute_dtype = DTYPES[options.dtype]
    sets = {"16 to 128": options.rounds, "16 to 512": options.rounds, "2,048": 3, "8,192": 1}
    for name, rounds in sets.items():
        if options.longest < max(map(len, make_texts(name))):
            continue
        for trains in (False, True)[: 1 if name == "8,192" else 2]:
            work = f"{'gradients' if trains else 'states'}, texts of {name} tokens"
            results[work] = found = measure(name, trains, min(rounds, options.rounds), models)
            bound = f"at most {found['bound by products']:.2f} with the same products"
            print(f"{work}: {found['ratio']:.2f} × transformers ({found['transformers']}), {bound}", flush=True)
    memory = run_alone(measure_memory)
    print(f"memory of 8,192 tokens, 22 layers: {memory:.2f} GB")
    setting = f"L{LAYERS} H768, {options.dtype}, CPU seconds"
    write_result(options.output, {"setting": setting, "results": results, "GB of 8,192 tokens, 22 layers": memory}, 1)


if __name__ == "__main__":
    main()
