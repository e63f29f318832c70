"""Capturing regions of the model for the length of a training."""

import json
import logging
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch import nn

from lucid.capture import (
    AccumulationTable,
    CaptureError,
    EvalRegion,
    Parts,
    Policy,
    Reason,
    Region,
    Report,
    Routes,
    StepRegion,
    TargetError,
    activate_together,
    release_together,
)
from lucid.engine.windows import window_size
from lucid.registry import HOOKS, REGIONS, SCOPE

FILE = 'capture_report.json'
logger = logging.getLogger('lucid.capture')


@HOOKS.register_module()
class CaptureHook(Hook):
    """Replays regions of the model as CUDA graphs in training; what is computed stays the same, bit for bit.

    An ``EvalRegion`` replays the validations inside training; it shares the graph memory of the first other region.

    Works under any runner of mmengine, for any ``BaseModel``. Regions become active in ``before_train`` and are
    released in ``after_train``, in the next ``before_train``, at ``close`` of lucid's loop, and when the runner dies,
    because ``after_train`` is not called when training fails. Without CUDA the run trains eager, and log and report
    say so.

    The report counts how each call of each region ran, and why. Each epoch writes it to ``capture_report.json`` in the
    work directory and to the visualizer's scalars (``capture/<region>/...``); the end of training logs it as a table.

    Args:
        regions: Of the ``REGIONS`` registry, as dicts, such as ``dict(type='ModuleRegion', target='network')``.
        on_new_signature: About a call that no recording serves, such as a partial last batch.
        on_change: About model state that a recording baked in and that has changed.
        on_error: About a recording that fails.
        gradients: Who owns gradients that leave a region: ``'clone'`` hands out copies, ``'adopt'`` graph memory.
        max_signatures: Recordings per region, for ``on_new_signature='capture'``.
        accumulation: Overrides of the accumulation table, such as ``{('segment', 'network'): 'eager'}``.
        strict: Fail the run at the first unexpected eager call, and where nothing is replayed.

    Raises:
        ValueError: An option means nothing.
        CaptureError: In training, as the policies say, or in ``strict``.
    """

    # In before_train after EMAHook (NORMAL) and everything else that still replaces parts of the model; in after_train
    # before the summary (LOWEST).
    priority = 'LOW'
    parts: ClassVar[Parts] = Parts()  # what regions are made of: tests put the CPU stand-in here

    def __init__(
        self,
        *,
        regions: Sequence[Mapping[str, Any] | Region],
        on_new_signature: Literal['eager', 'capture', 'raise'] = 'eager',
        on_change: Literal['recapture', 'eager', 'raise'] = 'recapture',
        on_error: Literal['raise', 'eager'] = 'raise',
        gradients: Literal['clone', 'adopt'] = 'clone',
        max_signatures: int = 4,
        accumulation: Mapping[tuple[str | None, str], str] | None = None,
        strict: bool = False,
    ) -> None:
        if not regions:
            raise ValueError(
                "CaptureHook.regions is empty: name one, such as dict(type='ModuleRegion', target='network'), "
                'or take the hook out'
            )
        self.policy = Policy(
            on_new_signature=on_new_signature,
            on_change=on_change,
            on_error=on_error,
            gradients=gradients,
            max_signatures=max_signatures,
        )
        self.accumulation = AccumulationTable(accumulation)
        self.strict = strict
        self.regions: list[Region] = [
            region if isinstance(region, Region) else REGIONS.build({'_scope_': SCOPE, **region}) for region in regions
        ]
        self.report = Report()
        self._num_reasons = 0  # of eager calls, when `strict` looked last
        self._release: weakref.finalize | None = None

    def check(self, runner: Runner) -> None:
        """Refuse what can be known to fail before anything runs; called at build time and before each run.

        Args:
            runner: Whose model is to be captured.

        Raises:
            ValueError: A target does not exist or is compiled, or the config asks for ``compile`` too.
        """
        if runner.cfg.get('compile'):
            raise ValueError(
                'the config has compile and a CaptureHook, and a compiled train_step would go round the regions; '
                'remove `compile`, or the hook'
            )
        self.release()
        try:
            if steps := [region for region in self.regions if isinstance(region, StepRegion)]:
                self._check_step(runner, steps[0])
            activate_together(self.regions, _unwrapped(runner.model))
        except TargetError as error:
            raise ValueError(f'CaptureHook.regions: {error}') from error
        finally:
            release_together(self.regions)

    def _check_step(self, runner: Runner, region: StepRegion) -> None:
        if any(other is not region and not isinstance(other, EvalRegion) for other in self.regions):
            raise TargetError('StepRegion holds the whole step', 'remove the other regions, but for an EvalRegion')
        if is_model_wrapper(runner.model):
            raise TargetError(
                'StepRegion would not average gradients over processes',
                "train on one card, or capture modules: dict(type='ModuleRegion', target='network')",
            )
        if not isinstance(runner.optim_wrapper, dict):  # not built yet
            region.check_wrapper(runner.optim_wrapper)

    def before_run(self, runner: Runner) -> None:
        """Check, under runners that nobody checked."""
        if runner._train_loop is not None:
            self.check(runner)

    def before_train(self, runner: Runner) -> None:
        """Route the targets' calls to the regions; nothing is recorded before the first of them."""
        self.release()
        forward = _Forward(runner.logger)
        logger.addHandler(forward)
        logger.setLevel(logging.INFO)
        # Made first, so that a region that cannot be activated takes the others back. It must not hold the runner.
        self._release = weakref.finalize(runner, _release, self.regions, forward)
        model = _unwrapped(runner.model)
        for region in self.regions:
            region.task = region.task or getattr(model, 'task', None)
        try:
            activate_together(self.regions, model, policy=self.policy, accumulation=self.accumulation, parts=self.parts)
        except CaptureError:
            self.release()
            raise
        self.report = Report(region.routes for region in self.regions)
        self._num_reasons = 0

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """Tell the regions how many micro-batches the current window really has."""
        size = window_size(runner.optim_wrapper)
        for region in self.regions:
            region.micro_batches = size

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: dict[str, Any] | None = None
    ) -> None:
        """In ``strict``, fail at the first unexpected eager call."""
        self._fail_if_unexpected()

    def after_val_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Sequence[Any] | None = None
    ) -> None:
        """In ``strict``, fail at the first unexpected eager call; evaluation is due now."""
        for region in self.regions:
            region.routes.due = True
        self._fail_if_unexpected()

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """In ``strict``, fail if evaluation was not replayed."""
        if self._release is not None and self._release.alive:
            self._fail_if_unused([region.routes for region in self.regions if isinstance(region, EvalRegion)])

    def _fail_if_unexpected(self) -> None:
        if self.strict and (number := sum(len(region.routes.eager) for region in self.regions)) != self._num_reasons:
            self._num_reasons = number
            self._fail([problem for region in self.regions for problem in _unexpected(region.routes)])

    def after_train_epoch(self, runner: Runner) -> None:
        """Write the report; in ``strict``, fail if a region was not used."""
        self._write(runner)
        scalars = {
            f'capture/{routes.name}/{key}': value for routes in self.report.routes for key, value in _counts(routes)
        }
        runner.visualizer.add_scalars(scalars, step=runner.iter)
        self._fail_if_unused(self.report.routes)

    def after_train(self, runner: Runner) -> None:
        """Release the recordings and log the report.

        Args:
            runner: The runner.

        Raises:
            CaptureError: In ``strict``, if a region did not do its work.
        """
        self.close(runner)
        self._fail_if_unused(self.report.routes)

    def close(self, runner: Runner) -> None:
        """Release the recordings, write and log the report; does nothing if that is done."""
        if not self.release():
            return
        self._write(runner)
        runner.logger.info(f'capture, how each call ran ({FILE} has it too):\n{self.report.table()}')
        for problem in self.report.problems():
            runner.logger.warning(f'capture: {problem}')

    def release(self) -> bool:
        """Release the recordings; whether any region was active."""
        if self._release is None or not self._release.alive:
            return False
        self._release()
        return True

    def _write(self, runner: Runner) -> None:
        if runner.rank == 0:
            text = json.dumps(self.report.as_dict(), indent=2) + '\n'
            Path(runner.work_dir, FILE).write_text(text)

    def _fail_if_unused(self, found: Sequence[Routes]) -> None:
        if self.strict:
            unused = [f'{routes.name}: never replayed' for routes in found if routes.due and not routes.replays]
            self._fail([problem for routes in found for problem in routes.problems()] or unused)

    def _fail(self, problems: Sequence[str]) -> None:
        if problems:
            raise CaptureError(
                f'strict: {"; ".join(problems)}', 'remove the cause, or set strict=False to train on, eager there'
            )


class _Forward(logging.Handler):
    """Passes what capture logs on to a runner's logger, which standard loggers do not reach."""

    def __init__(self, target: logging.Logger) -> None:
        super().__init__()
        self._target = target

    def emit(self, record: logging.LogRecord) -> None:
        self._target.handle(record)


def _release(regions: Sequence[Region], forward: logging.Handler) -> None:
    release_together(regions)
    logger.removeHandler(forward)
    if not logger.handlers:
        logger.setLevel(logging.NOTSET)


def _unwrapped(model: nn.Module) -> nn.Module:
    inner: Any = model.module if is_model_wrapper(model) else model
    return inner


def _unexpected(routes: Routes) -> list[str]:
    """What a strict run does not forgive at once: missing CUDA too, because nothing will ever replay."""
    return [
        f'{routes.name}: {reason.text}{f" ({detail})" if detail else ""}'
        for reason, detail in routes.eager
        if not reason.expected or reason is Reason.NO_CUDA
    ]


def _counts(routes: Routes) -> list[tuple[str, int]]:
    unexpected = sum(count for (reason, _), count in routes.eager.items() if not reason.expected)
    return [
        ('replays', routes.replays),
        ('eager', routes.calls - routes.replays),
        ('unexpected', unexpected),
        ('captures', routes.captures),
    ]
