# Blood cells on photographs (BCCD): 292 training and 72 validation images, three classes, from scratch.
_base_ = ['../_base_/runtime.py', '../_base_/schedule.py', '../_base_/detection.py']

data_root = 'data/bccd'

train_dataloader = dict(dataset=dict(cache_mb=512))  # all of it, decoded

train_cfg = dict(max_epochs=100, val_interval=10)
default_hooks = dict(logger=dict(interval=10))
