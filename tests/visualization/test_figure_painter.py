import numpy as np

from lucid.registry import VISUALIZERS
from lucid.structures.evaluation import EvaluationReport
from lucid.visualization import FigurePainter


def test_the_painter_is_found_by_its_bare_name_and_gives_rgb_pictures():
    painter = VISUALIZERS.build({'type': 'FigurePainter'})
    assert isinstance(painter, FigurePainter)
    curves = painter.draw_curves([{'epoch': 1.0, 'loss': 2.0, 'lr': 0.1}], [])
    ones, recall = np.ones(1), np.arange(101) / 100
    report = EvaluationReport(
        'nms', ('bolt',), ones, ones, recall, np.ones((1, 101)), 0.3, 1.0, np.eye(2, dtype=int), (0.25, 0.5), ()
    )
    pictures = painter.draw_evaluation([report])
    assert set(pictures) == {'class_ap', 'precision_recall', 'confusion_matrix', 'confusion_matrix_normalised'}
    for picture in (curves, *pictures.values()):
        assert picture.dtype == np.uint8
        assert picture.ndim == 3
        assert picture.min() < picture.max()
    assert not np.array_equal(pictures['confusion_matrix'], pictures['confusion_matrix_normalised'])
