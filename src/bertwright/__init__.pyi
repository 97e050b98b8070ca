"""What `import bertwright` offers; each name is imported when it is used first (`__init__.py`)."""

from .commands.evaluate import EvaluateSettings as EvaluateSettings
from .commands.evaluate import evaluate as evaluate
from .commands.experiment.run import experiment as experiment
from .commands.experiment.settings import ExperimentSettings as ExperimentSettings
from .commands.finetune.run import finetune as finetune
from .commands.finetune.settings import FinetuneSettings as FinetuneSettings
from .commands.finetune.settings import TuningSettings as TuningSettings
from .commands.grid.run import grid as grid
from .commands.grid.settings import GridSettings as GridSettings
from .commands.plan.run import plan as plan
from .commands.plan.settings import PlanSettings as PlanSettings
from .commands.predict.run import predict as predict
from .commands.predict.settings import PredictSettings as PredictSettings
from .commands.prepare import PrepareSettings as PrepareSettings
from .commands.prepare import prepare as prepare
from .commands.pretrain.run import pretrain as pretrain
from .commands.pretrain.settings import LongPhase as LongPhase
from .commands.pretrain.settings import ModelSettings as ModelSettings
from .commands.pretrain.settings import PretrainSettings as PretrainSettings
from .commands.probe.run import probe as probe
from .commands.probe.settings import ProbeSettings as ProbeSettings
from .commands.survey import SurveySettings as SurveySettings
from .commands.survey import survey as survey
from .commands.vocabulary import LearnSettings as LearnSettings
from .commands.vocabulary import learn_vocabulary as learn_vocabulary
from .corpus.documents import CorpusSettings as CorpusSettings
from .estimators import BertClassifier as BertClassifier
from .estimators import BertRegressor as BertRegressor
from .estimators import BertTagger as BertTagger
from .inference.model import Bert as Bert
from .inference.model import load as load
from .pretraining.settings import DataSettings as DataSettings
from .tasks.presets import TaskOptions as TaskOptions
from .tasks.presets import TaskSettings as TaskSettings
from .tokenstore.build import BuildSettings as BuildSettings
from .training.settings import DeviceSettings as DeviceSettings
from .training.settings import OptimizerSettings as OptimizerSettings
from .vocabulary.trainer import VocabularySettings as VocabularySettings

SPIN_COUNT: int
