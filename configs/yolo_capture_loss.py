# yolo_capture with the network and the loss as CUDA graphs of their own; the optimizer stays eager.
_base_ = ['yolo_capture.py']

custom_hooks = [
    dict(
        type='CaptureHook',
        regions=[dict(type='ModuleRegion', target='network'), dict(type='LossRegion'), dict(type='EvalRegion')],
    ),
]
