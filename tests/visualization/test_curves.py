import math

from lucid.visualization.curves import curves_figure

TRAINING = [
    {'epoch': 0.5, 'loss': 4.0, 'loss_cls': 3.0, 'lr': 0.01},
    {'epoch': 1.0, 'loss': 2.0, 'loss_cls': 1.5, 'loss_l1': 0.5, 'lr': 0.02},
]
VALIDATIONS = [
    {'epoch': 1.0, 'coco/mAP': 0.25, 'coco/nms/mAP': 0.5},
    {'epoch': 2.0, 'coco/mAP': 0.5, 'coco/nms/mAP': 0.25},
    {'epoch': 3.0, 'coco/mAP': math.nan},
]


def lines(axes):
    return {line.get_label(): line.get_xydata().tolist() for line in axes.lines}


def test_three_panels_hold_what_was_logged_at_its_epochs():
    losses, rates, metrics = map(lines, curves_figure(TRAINING, VALIDATIONS).axes)
    assert losses == {
        'loss': [[0.5, 4], [1, 2]],
        'loss_cls': [[0.5, 3], [1, 1.5]],
        'loss_l1': [[1, 0.5]],  # a term that came later starts where it came
    }
    assert next(iter(losses)) == 'loss'
    assert rates == {'lr': [[0.5, 0.01], [1, 0.02]]}
    assert metrics['coco/nms/mAP'] == [[1, 0.5], [2, 0.25]]
    assert len(metrics['coco/mAP']) == 3


def test_the_best_value_of_the_first_metric_is_marked_and_nan_is_never_best():
    *_, metrics = curves_figure(TRAINING, VALIDATIONS).axes
    (mark,) = [line for line in metrics.lines if line.get_label().startswith('best')]
    assert mark.get_label() == 'best coco/mAP: 0.500 at 2'
    assert set(mark.get_xdata()) == {2.0}


def test_a_run_without_a_validation_yet_says_so():
    *_, metrics = curves_figure(TRAINING, []).axes
    assert [text.get_text() for text in metrics.texts] == ['nothing logged yet']
    assert not curves_figure([], VALIDATIONS).axes[0].lines


def test_epochs_are_whole_numbers_and_metrics_begin_at_zero():
    figure = curves_figure(TRAINING, [{'epoch': 1.0, 'mAP': 0.0}, {'epoch': 2.0, 'mAP': 0.5}])
    *_, metrics = figure.axes
    assert all(tick == int(tick) for axes in figure.axes for tick in axes.get_xticks())
    assert metrics.get_ylim()[0] == 0
    *_, metrics = curves_figure([], [{'epoch': 1.0, 'gain': -0.5}]).axes  # control
    assert metrics.get_ylim()[0] < -0.5
