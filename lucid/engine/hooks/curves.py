"""Curves of a training run, as one picture that grows."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.dist import master_only
from mmengine.hooks import Hook
from mmengine.runner import Runner

from lucid.engine.drawing import Drawing, DrawingTime, begun_drawing
from lucid.engine.pictures import Picture
from lucid.registry import HOOKS, VISUALIZERS


@HOOKS.register_module()
class CurvesHook(Hook):
    """Draws loss, learning rate and metrics over the epochs, after each validation and at the end.

    The picture is ``work_dir/pictures/curves.png``, and ``curves`` in TensorBoard. What it shows are the values that
    were logged: the hook takes them from the message hub on logging iterations, reads nothing from the device, and
    keeps them in the checkpoint, so that the curves of a resumed run are whole and hold nothing that was lost. In
    training a process of its own draws, see ``Drawing``.

    Attributes: ``training`` and ``validations``, rows of values by name with their ``epoch``.

    Args:
        interval: Validations from one picture to the next; the end of training always draws.
        time_share: Share of the time since the first picture that drawing this one may take of a process, above 0 to
            1: where validations follow each other faster, some are left out. None draws each, and training waits
            where drawing does not keep up.
        metrics: Which metrics are drawn, by the last part of their names, in this order; all, where a validation gives
            none of these.
        painter: Config of the class that draws, from VISUALIZERS; None is a ``FigurePainter``.

    Raises:
        ValueError: ``interval`` is not positive, or ``time_share`` is out of range.
    """

    # After the logger; before the hook that writes checkpoints, which are to hold the metrics of their validation. It
    # draws in later events, after a checkpoint is written, because a picture that fails must not cost one.
    priority = 'LOW'

    def __init__(
        self,
        *,
        interval: int = 1,
        time_share: float | None = None,
        metrics: Sequence[str] = ('mAP', 'mAP50'),
        painter: Mapping[str, Any] | None = None,
    ) -> None:
        if interval < 1:
            raise ValueError(f'CurvesHook.interval is {interval}; use 1 or more')
        self.interval = interval
        self._time = DrawingTime(time_share)
        self._drawing = Drawing()
        self.metrics = tuple(metrics)
        self.painter = VISUALIZERS.build({'type': 'FigurePainter', **(painter or {})})
        self.training: list[dict[str, float]] = []
        self.validations: list[dict[str, float]] = []
        self._seen = 0
        self._drawn: tuple[int, int] | None = None

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Go on with the curves of a resumed run."""
        if runner._resume:
            curves = checkpoint.get('curves') or {}
            self.training, self.validations = list(curves.get('training', ())), list(curves.get('validations', ()))

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Add the rows so far."""
        checkpoint['curves'] = {'training': list(self.training), 'validations': list(self.validations)}

    def before_train(self, runner: Runner) -> None:
        """Pass over what the hub holds of before; draw in a process from now on."""
        self._drawing = begun_drawing(runner)
        self._seen = self._num_logged(runner)

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: dict[str, Any] | None = None
    ) -> None:
        """Take what a logging iteration has just put into the hub; elsewhere, compare two numbers."""
        num_logged = self._num_logged(runner)
        if num_logged == self._seen:
            return
        self._seen = num_logged
        scalars = runner.message_hub.log_scalars
        row = {'epoch': (runner.iter + 1) / len(runner.train_dataloader)}
        for key in scalars:
            name = key.removeprefix('train/')
            if name != key and (name.startswith('loss') or name == 'lr'):
                row[name] = float(scalars[key].current())
        self.training.append(row)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Take the metrics of a validation inside training."""
        if runner._train_loop is None or isinstance(runner._train_loop, dict):
            return
        values = {key: float(value) for key, value in (metrics or {}).items() if isinstance(value, int | float)}
        chosen = [key for name in self.metrics for key in values if key.rpartition('/')[2] == name]
        self.validations.append({'epoch': float(runner.epoch), **{key: values[key] for key in chosen or values}})

    def after_val(self, runner: Runner) -> None:
        """Have the picture drawn, if it is time for one."""
        if self.validations and len(self.validations) % self.interval == 0 and self._time.left:
            self._draw(runner)
        self._drawing.collect(runner)

    def after_train(self, runner: Runner) -> None:
        """Draw the whole, unless it was drawn after the last validation; wait for all pictures."""
        if self._drawn != (len(self.training), len(self.validations)):
            self._draw(runner)
        self._drawing.finish(runner)

    def close(self, runner: Runner) -> None:
        """Wait for all pictures, however training ended."""
        self._drawing.close(runner)

    @master_only
    def _draw(self, runner: Runner) -> None:
        self._drawn = len(self.training), len(self.validations)
        path = Path(runner.work_dir, 'pictures', 'curves.png')
        self._time.count(self._drawing.draw(runner, self, _curves, self.painter, self.training, self.validations, path))

    def _num_logged(self, runner: Runner) -> int:
        buffer = runner.message_hub.log_scalars.get('train/loss')
        return 0 if buffer is None else len(buffer.data[0])


def _curves(painter: Any, training: list[dict[str, float]], validations: list, path: Path) -> Iterator[Picture]:
    yield Picture(painter.draw_curves(training, validations), path, 'curves')
