# Whether the method can learn the rotated boxes of 100 images by heart: trained and evaluated on the same ones.
_base_ = ['../_base_/runtime.py', '../_base_/schedule.py', '../_base_/oriented.py']

data_root = 'data/overfit_shapes'
image_size = 320

train_cfg = dict(max_epochs=100, val_interval=10)
param_scheduler = dict(warmup_epochs=0.0, lrf=1.0)
_images = dict(type='ShapesDataset', split='train', num_images=100, scene_size=128, pipeline=[dict(type='Letterbox')])
train_dataloader = dict(batch_size=4, dataset=_images)
val_dataloader = dict(batch_size=25, dataset=_images)
default_hooks = dict(logger=dict(interval=25))
custom_hooks = [dict(type='CaptureHook', regions=[dict(type='StepRegion'), dict(type='EvalRegion')])]
