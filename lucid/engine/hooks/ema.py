"""Averaging the weights in training, and validating with the averages."""

from typing import Any

from mmengine.dist import all_reduce_params
from mmengine.hooks import Hook
from mmengine.runner import Runner

from lucid.engine.distributed import buffer_names, unwrapped
from lucid.engine.ema import ExponentialMovingAverage, check_decay
from lucid.engine.optim_wrappers import OptimWrapper
from lucid.registry import HOOKS


@HOOKS.register_module()
class EMAHook(Hook):
    """Averages the model after each optimizer step, and swaps the averages in for validation and test.

    The update is a post-step of the optimizer wrapper, not of this hook, so that it is recorded with the step.
    Checkpoints keep the trained weights in ``state_dict`` and get ``ema = dict(shadow=..., num_updates=...)``. Resuming
    restores it in place; without that entry, and when weights are only loaded, averaging starts from them.

    ``restore`` undoes a swap, and does nothing when there is none. It runs after validation and test, at their loops'
    ``undo_val`` and ``undo_test``, at ``close``, and before an epoch, so that an exception leaves no swap behind.

    Args:
        decay: Limit of the decay.
        warmup: Updates in which the decay comes within 1/e of its limit.

    Raises:
        ValueError: A number is out of range.
    """

    priority = 'NORMAL'  # before CheckpointHook (VERY_LOW): after_val_epoch must have swapped out when best is written

    def __init__(self, *, decay: float = 0.9999, warmup: float = 2000.0) -> None:
        check_decay(decay, warmup)
        self.decay = decay
        self.warmup = warmup
        self.ema: ExponentialMovingAverage | None = None
        self._resumed: dict[str, Any] | None = None

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Keep the averages of a resumed checkpoint until the model has its weights.

        Args:
            runner: The runner that loads.
            checkpoint: The loaded checkpoint.
        """
        self._resumed = checkpoint.get('ema') if runner._resume else None
        if runner._resume and self._resumed is None:
            runner.logger.warning("The checkpoint has no 'ema' entry: averaging starts from its weights.")

    def check(self, runner: Runner) -> None:
        """Refuse a wrapper without post-steps, before training.

        Args:
            runner: The runner, with its optimizer wrapper built.

        Raises:
            ValueError: The optimizer wrapper is not one of lucid's.
        """
        wrapper = runner.optim_wrapper
        if not isinstance(wrapper, OptimWrapper):
            raise ValueError(
                f"EMAHook: {type(wrapper).__name__} has no post-steps; use lucid's OptimWrapper or AmpOptimWrapper "
                "with default_scope='lucid'"
            )

    def before_train(self, runner: Runner) -> None:
        """Start averaging, from the weights that were initialised, loaded or resumed by now.

        Args:
            runner: The runner that starts training.
        """
        self.check(runner)
        if self.ema is None:
            self.ema = ExponentialMovingAverage(unwrapped(runner.model), decay=self.decay, warmup=self.warmup)
        self.restore(runner)
        if self._resumed is not None:
            self.ema.load_state_dict(self._resumed)
            self._resumed = None
        runner.optim_wrapper.add_post_step(self.ema)

    def before_train_epoch(self, runner: Runner) -> None:
        """Make sure that the model holds its own weights, and look its tensors up again.

        Args:
            runner: The runner.
        """
        self.restore(runner)
        if self.ema is not None:
            self.ema.bind()

    def before_val_epoch(self, runner: Runner) -> None:
        """Swap the averages in.

        Args:
            runner: The runner.
        """
        if self.ema is not None and not self.ema.swapped:
            self.ema.swap()

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Swap the averages out.

        Args:
            runner: The runner.
            metrics: Of the averages.
        """
        self.restore(runner)

    def before_test_epoch(self, runner: Runner) -> None:
        """Swap the averages in, if this runner has trained any.

        Args:
            runner: The runner.
        """
        self.before_val_epoch(runner)

    def after_test_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Swap the averages out.

        Args:
            runner: The runner.
            metrics: Of the averages.
        """
        self.restore(runner)

    def restore(self, runner: Runner) -> None:
        """Give the model its own weights back; nothing to do if it has them.

        Args:
            runner: The runner.
        """
        if self.ema is not None and self.ema.swapped:
            self.ema.swap()

    undo_val = restore
    undo_test = restore
    close = restore

    def synchronise(self, runner: Runner) -> None:
        """Give all processes the mean of their averages of buffers; those of parameters are equal already.

        Args:
            runner: The runner.
        """
        if self.ema is not None:
            shadow = self.ema.shadow
            all_reduce_params([shadow[name] for name in buffer_names(self.ema.model)], op='mean')

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Add the averages, the live ones: who saves copies them, as the weights.

        Args:
            runner: The runner that saves.
            checkpoint: Gets ``ema``.
        """
        if self.ema is not None:
            checkpoint['ema'] = self.ema.state_dict(live=True)
