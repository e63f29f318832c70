# Scale n on generated scenes of rotated shapes, for a first run on any machine: minutes on two CPU cores. With a CUDA
# card the whole training step is replayed as CUDA graphs; without one the run trains eager and says so.
_base_ = ['_base_/runtime.py', '_base_/schedule.py', '_base_/detection.py']

data_root = 'data/shapes'
image_size = 160

train_cfg = dict(max_epochs=16, val_interval=4)
# 512 steps are few: boxes that start with a size, a large step, and gains that let the classes, which learn last, lead.
optim_wrapper = dict(optimizer=dict(lr=0.05, momentum=0.9))
model = dict(
    head=dict(type='DetectHead', box_start=2.0),
    loss=dict(type='DetectionLoss', cls_gain=2.0, box_gain=2.0, l1_gain=1.0),
)
train_dataloader = dict(num_workers=2, dataset=dict(type='ShapesDataset', num_images=512))
val_dataloader = dict(batch_size=32, num_workers=1, dataset=dict(type='ShapesDataset', num_images=128))
default_hooks = dict(logger=dict(interval=16), ema=dict(decay=0.98, warmup=50))  # an average over 50 steps
custom_hooks = [dict(type='CaptureHook', regions=[dict(type='StepRegion'), dict(type='EvalRegion')])]
