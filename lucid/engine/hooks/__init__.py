"""What happens around the steps of a run: one hook, one file, one test."""

from lucid.engine.hooks.branch_weight import BranchWeightHook
from lucid.engine.hooks.capture import CaptureHook
from lucid.engine.hooks.checkpoint import CheckpointHook
from lucid.engine.hooks.curves import CurvesHook
from lucid.engine.hooks.deferred_info import DeferredInfoHook, NonFiniteLossError
from lucid.engine.hooks.device_images import DeviceImagesHook
from lucid.engine.hooks.early_stopping import EarlyStoppingHook
from lucid.engine.hooks.ema import EMAHook
from lucid.engine.hooks.environment import EnvironmentHook
from lucid.engine.hooks.evaluation_figures import EvaluationFiguresHook
from lucid.engine.hooks.progress import ProgressHook
from lucid.engine.hooks.scheduler import SchedulerHook
from lucid.engine.hooks.visualization import VisualizationHook

__all__ = [
    'BranchWeightHook',
    'CaptureHook',
    'CheckpointHook',
    'CurvesHook',
    'DeferredInfoHook',
    'DeviceImagesHook',
    'EMAHook',
    'EarlyStoppingHook',
    'EnvironmentHook',
    'EvaluationFiguresHook',
    'NonFiniteLossError',
    'ProgressHook',
    'SchedulerHook',
    'VisualizationHook',
]
