"""The commands: one row each, in the order of the help, where raw text comes first.

Torch takes seconds to import, so neither --help nor a check of the inputs waits for it: modules are named, and a
command imports its settings, checks its inputs, and then imports the function of the library that does the work.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pkgutil import resolve_name
from typing import Any, NamedTuple

TASK_FILES = "task data train dev test text text_pair label"  # usual options of commands that read a task


class Verb(NamedTuple):
    """A command of the command line."""

    name: str
    settings: str
    """Module and class of its settings."""
    function: str
    """Module and function of the library, which takes the settings and a `Reporter`."""
    summary: str
    example: str
    usual: str = ""
    """Fields of its usual options, which --help shows where the command has many; empty: all."""
    check: str = ""
    """Function beside the settings that checks the inputs without torch; empty: the function of the library does."""
    restarts: bool = False
    """A run that torchrun restarts goes on by itself."""
    prints_results: Callable[[Any], bool] = lambda settings: False
    """Whether standard output is for results alone, with these settings; reports then go to standard error."""

    def load_settings(self) -> type[Any]:
        settings: type[Any] = resolve_name(f"bertwright.{self.settings}")
        return settings

    def run(self, settings: Any) -> None:
        from bertwright.cli.render.terminal import terminal_reporter

        if self.restarts:
            from bertwright.training.run_folder import resume_restarted

            settings = resume_restarted(settings)
        if self.check:
            resolve_name(f"bertwright.{self.settings.partition(':')[0]}:{self.check}")(settings)
        with importing_torch():
            work = resolve_name(f"bertwright.{self.function}")
        work(settings, terminal_reporter(stderr=self.prints_results(settings)))


@contextmanager
def importing_torch() -> Iterator[None]:
    """Exit at once on Ctrl-C: an exception during the import of a C extension can crash the interpreter."""

    def leave(*_: object) -> None:
        os.write(2, b"bertwright: interrupted\n")
        os._exit(130)

    if threading.current_thread() is not threading.main_thread():  # signals reach only the main thread
        yield
        return
    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


VERBS = (
    Verb(
        "survey", "surveying.survey:SurveySettings", "surveying.survey:survey",
        "describe a corpus and warn about problems for pre-training",
        "bertwright survey books/ wiki.txt",
    ),
    Verb(
        "survey --pairs", "inference.survey_pairs:PairSurveySettings", "inference.survey_pairs:survey_pairs",
        "describe pairs before vectors are trained on them",
        "bertwright survey --pairs faq.csv --dev dev.tsv --model MODEL",
        "train dev model columns header encoding max_length vector_loss",
        check="check_inputs",
    ),
    Verb(
        "vocabulary", "vocabulary.learn.learn_vocabulary:LearnSettings",
        "vocabulary.learn.learn_vocabulary:learn_vocabulary",
        "learn a vocabulary from text: word pieces or byte pairs",
        "bertwright vocabulary books/ wiki.txt --size 30000 --output vocabulary",
    ),
    Verb(
        "prepare", "pretraining.prepare:PrepareSettings", "pretraining.prepare:prepare",
        "tokenize text into a token store, for pre-training",
        "bertwright prepare books/ wiki.txt --vocabulary vocabulary --store store --held-out 0.01",
    ),
    Verb(
        "tokenize", "inference.show_tokens:TokenizeSettings", "inference.show_tokens:tokenize",
        "show the tokens, segments and positions of a text",
        'bertwright tokenize vocabulary "my dog is cute" --pair "he likes playing"',
    ),
    Verb(
        "word-vectors", "systems.word_vectors.vector_settings:WordVectorSettings",
        "systems.word_vectors.train_vectors:train_word_vectors",
        "learn word vectors from text: word2vec, fastText or GloVe",
        "bertwright word-vectors books/ wiki.txt --output vectors",
    ),
    Verb(
        "plan", "planning.plan_settings:PlanSettings", "planning.plan:plan",
        "choose size, batch and steps for your text and hours",
        "bertwright plan --text books/ wiki.txt --hours 12 --output plan.toml",
    ),
    Verb(
        "pretrain", "pretraining.settings:PretrainSettings", "pretraining.run:pretrain",
        "pre-train a BERT on a token store, or resume a run",
        "bertwright pretrain --config mini --store store --run runs/mini",
        "store run size init architecture objective steps batch_size max_length learning_rate seed save_every "
        "eval_every show_examples dry_run resume device dtype threads",
        check="check_inputs", restarts=True,
    ),
    Verb(
        "finetune", "finetuning.settings:FinetuneSettings", "finetuning.run:finetune",
        "fine-tune a BERT on a task, or resume a run",
        "bertwright finetune --task classification --train train.tsv --dev dev.tsv --model runs/mini --run runs/task",
        f"{TASK_FILES} model run epochs batch_size learning_rate max_length seed validation_fraction patience "
        "show_examples dry_run resume device threads",
        check="check_inputs", restarts=True,
    ),
    Verb(
        "distill", "inference.distill:DistillSettings", "inference.distill:distill",
        "make a smaller model with the vectors of a teacher",
        "bertwright distill runs/vectors --layers 0 2 5 --texts texts.txt --run runs/small",
    ),
    Verb(
        "grid", "trials.grid_settings:GridSettings", "trials.grid:grid",
        "fine-tune with several settings and seeds",
        "bertwright grid --task mrpc --model runs/mini --run runs/mrpc-grid --seeds 5 --dry-run",
        f"{TASK_FILES} model run learning_rates batch_sizes epochs seeds max_length validation_fraction keep_all "
        "dry_run resume device threads",
        check="check_inputs",
    ),
    Verb(
        "evaluate", "inference.evaluate:EvaluateSettings", "inference.evaluate:evaluate",
        "score a fine-tuned model on labeled files",
        "bertwright evaluate runs/task test.tsv --output scores.json",
        "model inputs output errors ensemble threshold kind split compare reranker top show_examples text text_pair "
        "label columns encoding format device threads",
    ),
    Verb(
        "ladder", "trials.ladder_settings:LadderSettings", "trials.ladder:ladder",
        "compare the systems that led to BERT on one task",
        "bertwright ladder --task conll2003 --data data/conll2003 --bert runs/mini --elmo runs/elmo --run runs/ladder",
        f"{TASK_FILES} run vectors elmo cove ulmfit gpt bert seeds word_epochs epochs max_length limit resume device "
        "threads",
        check="check_inputs",
    ),
    Verb(
        "score-vectors", "systems.word_vectors.vector_evaluation:ScoreVectorsSettings",
        "systems.word_vectors.vector_evaluation:score_vectors",
        "score word vectors on word similarity and analogies",
        "bertwright score-vectors vectors EN-MEN-TR-3k.txt questions-words.txt",
    ),
    Verb(
        "predict", "inference.predict_settings:PredictSettings", "inference.predict:predict",
        "label texts with a fine-tuned model",
        "bertwright predict runs/task --inputs new.csv --keep-columns id --output predictions.csv",
        "model texts inputs output limit show_examples keep_columns safe_csv ensemble threshold text text_pair "
        "encoding format device threads",
        check="check_inputs", prints_results=lambda settings: str(settings.output) == "-",
    ),
    Verb(
        "probe", "trials.probe_settings:ProbeSettings", "trials.probe:probe",
        "train small heads on the features of a frozen BERT",
        "bertwright probe --task conll2003 --model runs/mini --run runs/ner-probe",
        f"{TASK_FILES} model run representations seeds learning_rates epochs batch_size max_length validation_fraction "
        "dry_run resume device threads",
        check="check_inputs",
    ),
    Verb(
        "experiment", "trials.experiment_settings:ExperimentSettings", "trials.experiment:experiment",
        "repeat an experiment of the paper within a budget",
        "bertwright experiment table5 --store store --data glue --work experiments --level demo --dry-run",
        check="check_inputs",
    ),
    Verb(
        "glue-submission", "inference.glue_submission:SubmissionSettings", "inference.glue_submission:submission",
        "write predictions for GLUE's server",
        "bertwright glue-submission cola=runs/cola sst2=runs/sst2 --data glue --output glue.zip --fill-missing",
    ),
    Verb(
        "fill-mask", "inference.text_settings:FillMaskSettings", "inference.text_commands:fill_masks",
        "predict the tokens for [MASK] in a text",
        "bertwright fill-mask runs/mini 'Paris is the [MASK] of France.'",
        check="check_inputs",
    ),
    Verb(
        "nearest-words", "systems.word_vectors.vector_evaluation:NearestSettings",
        "systems.word_vectors.vector_evaluation:nearest_words",
        "print nearest words of word vectors, and answer analogies",
        "bertwright nearest-words vectors man king woman --analogy",
    ),
    Verb(
        "next-sentence", "inference.text_settings:NextSentenceSettings", "inference.text_commands:score_next_sentences",
        "score whether each text follows the one before",
        "bertwright next-sentence runs/mini 'Where are you?' 'I am at home.'",
        check="check_inputs",
    ),
    Verb(
        "attention", "inference.attention_plot:AttentionSettings", "inference.attention_plot:attention",
        "draw the attention weights of a text",
        "bertwright attention runs/mini 'The bear sleeps.' --output attention.png",
    ),
    Verb(
        "generate", "inference.text_settings:GenerateSettings", "inference.text_commands:continue_texts",
        "continue texts with a GPT",
        "bertwright generate runs/gpt 'It was a dark night, and' --top-p 0.9",
        check="check_inputs",
    ),
    Verb(
        "score", "inference.text_settings:ScoreSettings", "inference.text_commands:score_texts",
        "print how probable texts are to a GPT: perplexity",
        "bertwright score runs/gpt 'The bear sleeps.' 'Sleeps bear the.'",
        check="check_inputs",
    ),
    Verb(
        "embed", "inference.embed:EmbedSettings", "inference.embed:embed",
        "turn texts into vectors",
        "bertwright embed runs/mini --inputs texts.txt --output vectors.npy",
    ),
    Verb(
        "explain", "inference.explain:ExplainSettings", "inference.explain:explain",
        "show which words make two texts similar",
        "bertwright explain runs/vectors 'how do I pay?' 'ways to pay' --output similarity.png",
    ),
    Verb(
        "search build", "inference.search_settings:SearchBuildSettings", "inference.search_commands:build",
        "embed documents and write an index of them",
        "bertwright search build runs/vectors docs.jsonl --index index",
        check="check_build_inputs",
    ),
    Verb(
        "search query", "inference.search_settings:SearchQuerySettings", "inference.search_commands:query",
        "find documents of an index for queries",
        "bertwright search query index 'how do I pay?'",
    ),
    Verb(
        "mine-negatives", "inference.search_settings:MineSettings", "inference.mine_negatives:mine_negatives",
        "find hard negatives for pairs",
        "bertwright mine-negatives runs/vectors --train pairs.jsonl --output mined.jsonl",
        "model train corpus output columns header encoding by number margin from_rank to_rank sampling seed reranker "
        "scores show_examples device threads",
        check="check_mine_inputs",
    ),
    Verb(
        "serve", "serving.serve_settings:ServeSettings", "serving.serve:serve",
        "answer requests over HTTP with one or several models",
        "bertwright serve runs/task runs/vectors --port 8000",
        "models index examples host port api_key allow_hosts allow_origins log max_wait device dtype threads",
        check="check_inputs",
    ),
    Verb(
        "info", "inference.info:InfoSettings", "inference.info:info",
        "describe a model, vocabulary, store or run folder",
        "bertwright info runs/mini",
    ),
    Verb(
        "convert", "inference.convert:ConvertSettings", "inference.convert:convert",
        "write a model in the format of Hugging Face, or of Google",
        "bertwright convert uncased_L-12_H-768_A-12 bert-base --lowercase True",
    ),
    Verb(
        "quantize", "inference.quantize:QuantizeSettings", "inference.quantize:quantize",
        "check on labeled files what int8 costs, and write the model",
        "bertwright quantize runs/task runs/task-int8 --dev dev.tsv",
        "model output dev max_drop kind split threads",
    ),
    Verb(
        "report", "reports.run_report:ReportSettings", "reports.run_report:report",
        "write a page of HTML about runs: curves, errors, time",
        "bertwright report runs/sst2 --output report.html",
    ),
    Verb(
        "check-labels", "reports.check_labels:CheckLabelsSettings", "reports.check_labels:check_labels",
        "list training rows whose label is probably wrong",
        "bertwright check-labels train.tsv --output suspects.tsv",
    ),
    Verb(
        "push", "reports.push:PushSettings", "reports.push:push",
        "send a model folder with its card to the Hugging Face hub",
        "bertwright push runs/sst2 me/sst2 --license apache-2.0 --language en",
    ),
    Verb(
        "export", "exporting.export_settings:ExportSettings", "exporting.export:export",
        "write a model for ONNX Runtime or OpenVINO, also in int8",
        "bertwright export runs/task exported --to openvino --int8 --dev dev.tsv",
        "model output to int8 calibrate dev max_drop half_range encoding",
        check="check_inputs",
    ),
    Verb(
        "train-translation", "translation.settings:TrainTranslationSettings", "translation.run:train_translation",
        "train a translation model, or resume a run",
        "bertwright train-translation --train-source train.en --train-target train.de --dev-source dev.en "
        "--dev-target dev.de --run runs/en-de",
        check="check_training_inputs",
    ),
    Verb(
        "translate", "translation.settings:TranslateSettings", "translation.translator:translate",
        "translate texts, and score translations",
        "bertwright translate runs/en-de --inputs test.en --output test.de.txt --references test.de",
        check="check_translation_inputs",
    ),
)  # fmt: skip
