"""What `import bertwright` offers; each name is imported when it is used first (`__init__.py`)."""

from .corpus.documents import CorpusSettings as CorpusSettings
from .corpus.survey import SurveySettings as SurveySettings
from .corpus.survey import survey as survey
from .experiments.experiment import experiment as experiment
from .experiments.experiment_settings import ExperimentSettings as ExperimentSettings
from .finetuning.estimators import BertClassifier as BertClassifier
from .finetuning.estimators import BertEmbedder as BertEmbedder
from .finetuning.estimators import BertRegressor as BertRegressor
from .finetuning.estimators import BertTagger as BertTagger
from .finetuning.grid import grid as grid
from .finetuning.grid_settings import GridSettings as GridSettings
from .finetuning.probe import probe as probe
from .finetuning.probe_settings import ProbeSettings as ProbeSettings
from .finetuning.run import finetune as finetune
from .finetuning.settings import FinetuneSettings as FinetuneSettings
from .finetuning.settings import TuningSettings as TuningSettings
from .inference.evaluate import EvaluateSettings as EvaluateSettings
from .inference.evaluate import evaluate as evaluate
from .inference.model import Bert as Bert
from .inference.model import load as load
from .inference.predict import predict as predict
from .inference.predict_settings import PredictSettings as PredictSettings
from .io.vector_file import VectorFile as VectorFile
from .io.vector_file import load_vectors as load_vectors
from .planning.plan import plan as plan
from .planning.plan_settings import PlanSettings as PlanSettings
from .pretraining.data_settings import DataSettings as DataSettings
from .pretraining.prepare import PrepareSettings as PrepareSettings
from .pretraining.prepare import prepare as prepare
from .pretraining.run import pretrain as pretrain
from .pretraining.settings import LongPhase as LongPhase
from .pretraining.settings import ModelSettings as ModelSettings
from .pretraining.settings import PretrainSettings as PretrainSettings
from .tasks.presets import TaskSettings as TaskSettings
from .tasks.task_types import TaskOptions as TaskOptions
from .tokenstore.build import BuildSettings as BuildSettings
from .training.device_settings import DeviceSettings as DeviceSettings
from .training.optimizer_settings import OptimizerSettings as OptimizerSettings
from .vocabulary.learn import LearnSettings as LearnSettings
from .vocabulary.learn import learn_vocabulary as learn_vocabulary
from .vocabulary.trainer import VocabularySettings as VocabularySettings

SPIN_COUNT: int
