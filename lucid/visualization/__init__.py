"""Pictures of detections, drawn with OpenCV on RGB arrays, and charts, drawn with matplotlib."""

from lucid.visualization.boxes import draw_boxes
from lucid.visualization.figure_painter import FigurePainter
from lucid.visualization.objects import draw_objects
from lucid.visualization.outlines import draw_outlines
from lucid.visualization.painter import DetectionPainter
from lucid.visualization.palette import class_color, text_color
from lucid.visualization.panels import add_caption, grid, resize_to_side

__all__ = [
    'DetectionPainter',
    'FigurePainter',
    'add_caption',
    'class_color',
    'draw_boxes',
    'draw_objects',
    'draw_outlines',
    'grid',
    'resize_to_side',
    'text_color',
]
