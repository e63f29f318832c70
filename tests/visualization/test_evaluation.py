import numpy as np
import pytest

from lucid.structures.evaluation import EvaluationReport
from lucid.visualization.evaluation import NAMED, WRITTEN, ap_figure, confusion_figure, precision_recall_figure

NAN = float('nan')


def report(num_classes=2, path='one_to_one', confusion=None, ap=(0.25, NAN)):
    precision = np.full((num_classes, 101), 0.5)
    precision[0] = np.linspace(1, 0, 101)
    ap_K = np.resize(ap, num_classes)
    confusion = np.zeros((num_classes + 1, num_classes + 1), int) if confusion is None else np.array(confusion)
    names = tuple(f'class {i}' for i in range(num_classes))
    recall = np.arange(101) / 100
    return EvaluationReport(path, names, ap_K, ap_K * 2, recall, precision, 0.3, 0.75, confusion, (0.25, 0.5), ())


def widths(figure):
    return {bars.get_label(): [bar.get_width() for bar in bars] for bars in figure.axes[0].containers}


def test_bars_show_ap_and_ap50_of_one_path_and_the_ap_of_two():
    assert widths(ap_figure([report()])) == {'AP': [0.25, 0], 'AP50': [0.5, 0]}
    both = ap_figure([report(), report(path='nms', ap=(0.75, 0.5))])
    assert widths(both) == {'AP one_to_one': [0.25, 0], 'AP nms': [0.75, 0.5]}


def test_a_panel_per_path_shows_the_classes_that_have_truth_and_their_mean():
    first, second = precision_recall_figure([report(), report(path='nms', ap=(0.25, 0.5))]).axes
    assert [line.get_label() for line in first.lines] == ['class 0 0.500', 'all 0.500']
    assert first.get_title() == r'one_to_one: best F1 0.750 at score 0.300'
    np.testing.assert_array_equal(first.lines[0].get_ydata(), np.linspace(1, 0, 101))
    mean = second.lines[-1]
    assert mean.get_label() == 'all 0.750'
    np.testing.assert_allclose(mean.get_ydata(), (np.linspace(1, 0, 101) + 0.5) / 2)


def test_beyond_some_classes_the_mean_alone_is_named():
    (axes,) = precision_recall_figure([report(NAMED + 1, ap=(0.25,))]).axes
    assert len(axes.lines) == NAMED + 2
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ['all 0.500']


def test_without_any_truth_there_are_empty_panels():
    (axes,) = precision_recall_figure([report(ap=(NAN,))]).axes
    assert len(axes.lines) == 0


CONFUSION = [[6, 1, 1], [0, 3, 1], [2, 0, 0]]


@pytest.mark.parametrize(
    ('normalised', 'numbers'),
    [
        (False, {(0, 0): '6', (0, 1): '1', (0, 2): '1', (1, 1): '3', (1, 2): '1', (2, 0): '2'}),
        (True, {(0, 0): '0.75', (0, 1): '0.12', (0, 2): '0.12', (1, 1): '0.75', (1, 2): '0.25', (2, 0): '1.00'}),
    ],
)
def test_cells_hold_counts_or_shares_of_their_row(normalised, numbers):
    axes = confusion_figure(report(confusion=CONFUSION), normalised=normalised).axes[0]
    assert {(t.get_position()[1], t.get_position()[0]): t.get_text() for t in axes.texts} == numbers
    shares = [[0.75, 0.125, 0.125], [0, 0.75, 0.25], [1, 0, 0]]
    assert axes.images[0].get_array().tolist() == shares
    assert [label.get_text() for label in axes.get_yticklabels()] == ['class 0', 'class 1', 'background']
    assert (axes.get_xlabel(), axes.get_ylabel()) == ('detected as', 'truth')
    assert 'score ≥ 0.25, IoU ≥ 0.5' in axes.get_title()


def test_a_row_without_objects_is_no_division_by_zero():
    axes = confusion_figure(report(), normalised=True).axes[0]
    assert not axes.images[0].get_array().any()
    assert not axes.texts


def test_a_large_matrix_has_no_numbers_and_a_bounded_size():
    figure = confusion_figure(report(300, confusion=np.ones((301, 301))), normalised=False)
    assert max(figure.get_size_inches()) <= 27
    assert not figure.axes[0].texts
    assert WRITTEN < 301
