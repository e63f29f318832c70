"""The metric of masks: COCO average precision of masks, and of boxes beside them."""

from lucid.evaluation.detection_metric import DetectionMetric
from lucid.evaluation.kinds import BOXES, MASKS
from lucid.registry import METRICS


@METRICS.register_module()
class CocoMaskMetric(DetectionMetric):
    """COCO mask AP over IoU 0.50:0.05:0.95 at 101 recall points, at the resolution of the original images.

    Returned keys: those of ``CocoMetric`` for the boxes, and the same behind ``mask/`` for the masks, such as
    ``mask/mAP``, ``nms/mask/mAP`` and ``mask/AP/<name>``; further ``mask/IoU``: the mean over all objects of the IoU
    with the detection that found them at IoU 0.5, best score first, where an object that nothing found counts 0. Of
    masks too, AP counts the best ``max_detections`` of a class and image. Truth is polygons, of which all rings count,
    and run-length masks, compressed or not; they are filled as COCO does. Masks stay run lengths throughout.

    Source: COCO, arXiv:1405.0312; the recall grid is exact hundredths.

    Arguments are those of ``DetectionMetric``; a row of ``outfile`` has ``segmentation`` too, a run-length mask.
    """

    kinds = (MASKS, BOXES)
