"""Capture: module calls recorded once as graphs and replayed. Needs torch and the standard library only."""

from lucid.capture.accumulation import TABLE, AccumulationTable, Row
from lucid.capture.compiling import CompiledModules
from lucid.capture.errors import (
    BackwardError,
    CaptureError,
    DynamicShapeError,
    GuardError,
    HostReadError,
    RecordingError,
    SignatureError,
    TargetError,
)
from lucid.capture.eval_region import EvalRegion
from lucid.capture.graph import CudaGraph, CudaMemory, Graph, Memory, cuda_memory, is_recording, quiet
from lucid.capture.module_region import LossRegion, ModuleRegion
from lucid.capture.parity import Difference, first_difference, run_lockstep, training_values
from lucid.capture.policy import Parts, Policy
from lucid.capture.pool import Pool, SharedMemory
from lucid.capture.recording import Recording
from lucid.capture.region import Region
from lucid.capture.report import Reason, Report, Routes
from lucid.capture.step_region import StepRegion
from lucid.capture.tape import Tape, TapeMemory
from lucid.capture.together import activate_together, release_together

__all__ = [
    'TABLE',
    'AccumulationTable',
    'BackwardError',
    'CaptureError',
    'CompiledModules',
    'CudaGraph',
    'CudaMemory',
    'Difference',
    'DynamicShapeError',
    'EvalRegion',
    'Graph',
    'GuardError',
    'HostReadError',
    'LossRegion',
    'Memory',
    'ModuleRegion',
    'Parts',
    'Policy',
    'Pool',
    'Reason',
    'Recording',
    'RecordingError',
    'Region',
    'Report',
    'Routes',
    'Row',
    'SharedMemory',
    'SignatureError',
    'StepRegion',
    'Tape',
    'TapeMemory',
    'TargetError',
    'activate_together',
    'cuda_memory',
    'first_difference',
    'is_recording',
    'quiet',
    'release_together',
    'run_lockstep',
    'training_values',
]
