# Scale n, masks, on COCO 2017, 80 classes, 640 px: data/coco with annotations/instances_{train,val}2017.json,
# {train,val}2017/.
_base_ = ['../_base_/runtime.py', '../_base_/schedule.py', '../_base_/segment.py']

model = dict(scale='n')
# Masks and rotated boxes take the host longer than the network: other processes finish predictions.
val_cfg = dict(num_workers=8)
test_cfg = dict(type='TestLoop', num_workers=8)
train_dataloader = dict(
    dataset=dict(
        pipeline=[
            dict(type='Mosaic', prob=1.0, close_last=10),
            dict(type='RandomAffine', scale=0.5, translate=0.1),
            dict(type='Mixup', prob=0.0, close_last=10),
            dict(type='CopyPaste', prob=0.1, close_last=10),
            dict(type='RandomHSV'),
            dict(type='HorizontalFlip', prob=0.5),
        ],
    )
)
