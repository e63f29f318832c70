"""Pictures of detections, drawn with OpenCV on RGB arrays."""

from lucid.visualization.boxes import draw_boxes
from lucid.visualization.painter import DetectionPainter
from lucid.visualization.palette import class_color, text_color
from lucid.visualization.panels import add_caption, grid, resize_to_side

__all__ = [
    'DetectionPainter',
    'add_caption',
    'class_color',
    'draw_boxes',
    'grid',
    'resize_to_side',
    'text_color',
]
