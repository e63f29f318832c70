# yolo_capture with network and loss through torch.compile inside the captured step: minutes of compiling, once per run.
_base_ = ['yolo_capture.py']

custom_hooks = [
    dict(type='CaptureHook', regions=[dict(type='StepRegion', compile=True), dict(type='EvalRegion')]),
]
