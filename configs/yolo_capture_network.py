# yolo_capture with the network's forward and backward as CUDA graphs; loss and optimizer stay eager.
_base_ = ['yolo_capture.py']

custom_hooks = [
    dict(type='CaptureHook', regions=[dict(type='ModuleRegion', target='network'), dict(type='EvalRegion')]),
]
