# Scale n, masks, on generated scenes of rotated shapes, for a first run on any machine. With a
# CUDA card the hook replays the whole training step as CUDA graphs (what of that is proven says docs/capture.md);
# without one the run trains eager and says so.
_base_ = ['../_base_/runtime.py', '../_base_/schedule.py', '../_base_/segment.py']

data_root = 'data/shapes'
image_size = 160

train_cfg = dict(max_epochs=16, val_interval=4)
optim_wrapper = dict(optimizer=dict(lr=0.05, momentum=0.9))
train_dataloader = dict(num_workers=2, dataset=dict(type='ShapesDataset', num_images=512))
val_dataloader = dict(batch_size=32, num_workers=1, dataset=dict(type='ShapesDataset', num_images=128))
default_hooks = dict(logger=dict(interval=16))
custom_hooks = [dict(type='CaptureHook', regions=[dict(type='StepRegion'), dict(type='EvalRegion')])]
