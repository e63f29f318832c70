# detect_n_bccd in about the time that one card needs: the step and validation replayed, images drawn on the device,
# batches of one size each, and no trials of cuDNN algorithms, which took seconds per size and made no step faster here.
# fused_norm rounds otherwise. Use --amp.
_base_ = ['detect_n_bccd.py']

model = dict(fused_norm=True, cast_together=True, head=dict(parallel='stems'))
optim_wrapper = dict(optimizer=dict(ns_lanes=8))
train_dataloader = dict(drop_last=True, device_images=True, num_workers=4, dataset=dict(cache_mb=0))
val_dataloader = dict(batch_size=24, num_workers=3, dataset=dict(cache_mb=256))
val_evaluator = dict(paths=('one_to_one',))  # end to end alone, without NMS
env_cfg = dict(cudnn_benchmark=False)
custom_hooks = [
    # A mosaic of more boxes than the smallest capacity is captured too.
    dict(
        type='CaptureHook',
        regions=[dict(type='StepRegion'), dict(type='EvalRegion')],
        on_new_signature='capture',
    ),
]
