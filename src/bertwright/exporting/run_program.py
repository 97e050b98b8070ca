"""`run.py` of an exported folder: it predicts with a runtime, tokenizers and NumPy alone."""

from __future__ import annotations

from typing import Any, NamedTuple

from bertwright.inference.bert import Bert
from bertwright.inference.exported_folder import FILES, LOGITS, MASKED_LM, SCORES, VECTOR

ONNX = """os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # sends no report of its use
import onnxruntime
options = onnxruntime.SessionOptions()
options.enable_cpu_mem_arena, options.intra_op_num_threads = False, min(4, os.cpu_count() or 1)
session = onnxruntime.InferenceSession(str(HERE / "{path}"), options, providers=["CPUExecutionProvider"])
NAMES, compute = [one.name for one in session.get_inputs()], lambda arrays, name: session.run([name], arrays)[0]"""
OPENVINO = """sys.modules["openvino_telemetry"] = None  # sends no report of its use
import openvino
OPTIONS = {{"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": min(4, os.cpu_count() or 1)}}
model = openvino.Core().compile_model(HERE / "{path}", "CPU", OPTIONS)
NAMES, compute = [one.any_name for one in model.inputs], lambda arrays, name: model(arrays)[name]"""
TEMPLATE = '''"""Predict with {runtime}, tokenizers and NumPy alone: python run.py {usage}"""
import json, os, sys
from pathlib import Path
import numpy as np
from tokenizers import Tokenizer
HERE = Path(__file__).parent
LABELS = json.loads((HERE / "labels.json").read_text("utf-8"))
tokenizer = Tokenizer.from_file(str(HERE / "tokenizer.json"))
tokenizer.enable_truncation({max_length})
tokenizer.enable_padding(pad_to_multiple_of={multiple})
{session}
def run(texts, output, mask=None):
    """Compute an output of the graph for texts or for pairs of texts; return the tokens, too."""
    encoded = tokenizer.encode_batch(texts)
    columns = {{"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}}
    arrays = {{name: np.array([getattr(one, field) for one in encoded]) for name, field in columns.items()}}
    arrays["positions"] = np.flatnonzero(arrays["input_ids"] == mask)
    return encoded, compute({{name: arrays[name].astype(np.int64) for name in NAMES}}, output)
def predict({arguments}):
{body}
if __name__ == "__main__":
    print(json.dumps(predict({call}), ensure_ascii=False))
'''


class Program(NamedTuple):
    """The part of `run.py` that depends on the task."""

    usage: str
    arguments: str
    body: str
    call: str = "*sys.argv[1:]"


VECTORS = Program(
    "TEXT …",
    "*texts",
    f'''    return run([{{prompt}} + text{{lower}} for text in texts], "{VECTOR}")[1].tolist()''',
)
ROWS_OF_SCORES = f'''    rows = run({{texts}}, "{SCORES}")[1].tolist()
'''
TEXT_PROGRAMS = {
    "classification": "    return [max(zip(row, LABELS))[::-1] for row in rows]",
    "multi-label": "    return [[label for p, label in zip(row, LABELS) if p >= {threshold}] for row in rows]",
    "regression": "    return [row[0] for row in rows]",
}
PROGRAMS = {
    "reranking": Program(
        "QUERY TEXT …",
        "query, *texts",
        f'''    return run([(query, text) for text in texts], "{SCORES}")[1][:, 0].tolist()''',
    ),
    "multiple-choice": Program(
        "PROMPT ENDING ENDING …",
        "prompt, *endings",
        f'''    logits = run([(prompt, ending) for ending in endings], "{LOGITS}")[1][:, 0]
    shares = np.exp(logits - logits.max())
    return (shares / shares.sum()).tolist()''',
    ),
    "tagging": Program(
        "TEXT",
        "text",
        f'''    (one,), (scores,) = run([text], "{SCORES}")
    first = {{word: place for place, word in reversed([*enumerate(one.word_ids)]) if word is not None}}
    tags = {{word: LABELS[scores[place].argmax()] for word, place in sorted(first.items())}}
    return [(text[slice(*one.word_to_chars(word))], tag) for word, tag in tags.items()]''',
    ),
    "question-answering": Program(
        "QUESTION CONTEXT",
        "question, context",
        f'''    (one,), (scores,) = run([(question, context)], "{SCORES}")
    places = [place for place, part in enumerate(one.sequence_ids) if part == 1]
    spans = ((first, last) for first in places for last in places if first <= last < first + {{max_answer}})
    first, last = max(spans, key=lambda span: scores[span[0], 0] * scores[span[1], 1])
    return context[one.offsets[first][0] : one.offsets[last][1]]''',
    ),
    MASKED_LM: Program(
        "TEXT",
        "text",
        f'''    shares = run([text], "{SCORES}", mask={{mask}})[1]
    best = [np.argsort(-row)[:5].tolist() for row in shares]
    return [[(tokenizer.id_to_token(n), float(row[n])) for n in top] for row, top in zip(shares, best)]''',
    ),
}


def make_runner(bert: Bert, kind: str, graph_format: str, max_length: int) -> str:
    """Return the program of a folder, at most 30 lines."""
    modules, task = bert.choose_modules(None), bert.task
    prompt = modules.prompt(None) if modules else ""
    values: dict[str, Any] = {"prompt": repr(prompt), "lower": ".lower()" if modules and modules.lowercase else ""}
    values |= {"threshold": getattr(task, "threshold", 0.5), "mask": bert.tokenizer.mask_id if kind == MASKED_LM else 0}
    values |= {"max_answer": getattr(task, "max_answer_length", 30)}
    if kind in TEXT_PROGRAMS:
        if task is not None and task.num_segments > 1:
            program = Program(
                "TEXT SECOND_TEXT", "*pairs", ROWS_OF_SCORES + TEXT_PROGRAMS[kind], "tuple(sys.argv[1:3])"
            )
            values["texts"] = "list(pairs)"
        else:
            program = Program("TEXT …", "*texts", ROWS_OF_SCORES + TEXT_PROGRAMS[kind])
            values["texts"] = "list(texts)"
    else:
        program = PROGRAMS.get(kind, VECTORS)
    body = program.body
    for name, value in values.items():
        body = body.replace(f"{{{name}}}", str(value))
    is_onnx = graph_format == "onnx"
    return TEMPLATE.format(
        runtime="onnxruntime" if is_onnx else "openvino",
        usage=program.usage,
        max_length=max_length,
        multiple=1 if is_onnx else next(size for size in (32, 16, 8, 4, 2, 1) if max_length % size == 0),
        session=(ONNX if is_onnx else OPENVINO).format(path=FILES[graph_format]),
        arguments=program.arguments,
        body=body,
        call=program.call,
    )
