# yolo_capture with the words of docs/capture.md that shorten the card's own time. fused_norm and compile round
# otherwise than yolo_capture does.
_base_ = ['yolo_capture.py']

model = dict(fused_norm=True, cast_together=True, head=dict(parallel='stems'))
optim_wrapper = dict(optimizer=dict(ns_lanes=8))
custom_hooks = [
    dict(type='CaptureHook', regions=[dict(type='StepRegion', compile=['criterion']), dict(type='EvalRegion')]),
]
