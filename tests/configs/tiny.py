# Scale n on 20 generated images of 64 px: five batches per epoch, seconds per run.
_base_ = ['../../configs/_base_/runtime.py', '../../configs/_base_/schedule.py', '../../configs/_base_/detection.py']

data_root = 'data/tiny'
image_size = 64

train_cfg = dict(max_epochs=2, val_interval=2)
optim_wrapper = dict(optimizer=dict(type='SGD', lr=1e-3, momentum=0.9))
param_scheduler = dict(warmup_epochs=1.0)
train_dataloader = dict(batch_size=4, num_workers=0, dataset=dict(type='ShapesDataset', num_images=20))
val_dataloader = dict(batch_size=4, num_workers=0, dataset=dict(type='ShapesDataset', num_images=8))
default_hooks = dict(logger=dict(interval=2), pictures=dict(num_batches=1, val_images=2), figures=None, curves=None)
