"""The loops that a runner runs: training that resumes inside an epoch, validation and test that tidy up."""

from lucid.engine.loops.evaluation import TestLoop, ValLoop
from lucid.engine.loops.train import EpochTrainLoop, Stopped

__all__ = ['EpochTrainLoop', 'Stopped', 'TestLoop', 'ValLoop']
