"""Entry points: train, test, predict and analyse from a config."""

from lucid.apis.build import build_runner, complete, load_config, override
from lucid.apis.inference import TrainedDetector, inference_detector, init_detector
from lucid.apis.test import test
from lucid.apis.train import Interrupted, train
from lucid.apis.validate import ConfigError, validate
from lucid.engine.checkpoint import CheckpointError

__all__ = [
    'CheckpointError',
    'ConfigError',
    'Interrupted',
    'TrainedDetector',
    'build_runner',
    'complete',
    'inference_detector',
    'init_detector',
    'load_config',
    'override',
    'test',
    'train',
    'validate',
]
