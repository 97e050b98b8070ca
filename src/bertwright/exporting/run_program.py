"""`run.py` of an exported folder: it predicts with a runtime, tokenizers and NumPy alone."""

from __future__ import annotations

from typing import Any, NamedTuple

from bertwright.inference.bert import Bert
from bertwright.inference.exported_folder import FILES, LOGITS, MASKED_LM, SCORES, VECTOR
from bertwright.tasks.classification import Classification
from bertwright.tasks.multi_label import MultiLabel
from bertwright.tasks.question_answering import QuestionAnswering

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
import json, os, pathlib, sys
import numpy as np
from tokenizers import Tokenizer
HERE = pathlib.Path(__file__).parent
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
    f'''    return run([{{text}} for text in texts], "{VECTOR}")[1].tolist()''',
)
ROWS_OF_SCORES = f'''    scores = run({{texts}}, "{SCORES}")[1]
'''
TEXT_PROGRAMS = {
    "classification": """    best = {best}
    return [(LABELS[number], float(row[number])) for number, row in zip(best, scores)]""",
    "multi-label": """    thresholds = {thresholds}
    return [[one for p, one, least in zip(row, LABELS, thresholds) if p > least] for row in scores.tolist()]""",
    "regression": "    return scores[:, 0].tolist()",
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
        f'''    (one,), (logits,) = run([(question, context)], "{LOGITS}")
    places = [place for place, part in enumerate(one.sequence_ids) if part == 1]
    spans = ((logits[i, 0] + logits[j, 1], i, j) for i in places for j in places if i <= j < i + {{max_answer}})
    score, first, last = max(spans, key=lambda span: span[0], default=(-np.inf, 0, 0))
    return context[one.offsets[first][0] : one.offsets[last][1]]{{unless}}''',
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
    task, values = bert.task, fill_places(bert, kind)
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


def fill_places(bert: Bert, kind: str) -> dict[str, Any]:
    """Return what stands at the named places of a program: prompts, and what decides between answers."""
    modules, task = bert.choose_modules(None), bert.task
    text = f"{modules.prompt(None)!r} + text" if modules else "text"
    if modules and modules.lowercase:  # letter by letter, as the package does
        text = f'"".join(map(str.lower, {text}))'
    values: dict[str, Any] = {"mask": bert.tokenizer.mask_id if kind == MASKED_LM else 0}
    values |= {"best": "scores.argmax(1)", "unless": ""}
    if isinstance(task, Classification) and len(task.labels) == 2 and task.threshold != 0.5:
        positive = task.labels.index(task.f1_label)
        values["best"] = f"np.where(scores[:, {positive}] > {task.threshold}, {positive}, {1 - positive})"
    elif isinstance(task, MultiLabel):
        values["thresholds"] = list(task.thresholds) or f"[{task.threshold}] * len(LABELS)"
    elif isinstance(task, QuestionAnswering):
        values["max_answer"] = task.max_answer_length
        if task.allow_no_answer:
            values["unless"] = f' if score - logits[0].sum() > {task.threshold} else ""'
    return values | {"text": text}  # last: a prompt may look like a place
