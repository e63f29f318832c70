"""The metric of boxes: COCO average precision of every path from one forward to detections."""

from lucid.evaluation.detection_metric import DetectionMetric
from lucid.evaluation.kinds import BOXES
from lucid.registry import METRICS


@METRICS.register_module()
class CocoMetric(DetectionMetric):
    """COCO box AP over IoU 0.50:0.05:0.95 at 101 recall points.

    Returned keys: ``mAP``, ``mAP50``, ``mAP75``, ``mAP_s``, ``mAP_m``, ``mAP_l``, ``AR``, ``recall50``, and per class
    ``AP/<name>`` and ``AP50/<name>``, in 0..1; those of the path ``nms`` begin with ``nms/``, and only the first of
    ``paths`` has figures per class (the table shows all). What has no ground truth is NaN and enters no mean. AP and
    AR count the best ``max_detections`` of a class and image: COCO's own figure is 100. ``recall50`` is the share of
    all boxes that a detection of their class found at IoU 0.5, among up to ``recall_detections``: all that an
    end-to-end head gives. Crowd boxes are ignored regions. Only images that were predicted are evaluated; a warning
    says how many were not.

    Source: COCO, arXiv:1405.0312; the recall grid is exact hundredths.

    Arguments are those of ``DetectionMetric``.
    """

    kinds = (BOXES,)
