# Scale m, rotated boxes on DOTA-v1.0, 15 classes, in tiles of 1024 px: data/dota_tiles, made by
# tools/tile_dota.py data/dota data/dota_tiles
_base_ = ['../_base_/runtime.py', '../_base_/schedule.py', '../_base_/oriented.py']

model = dict(scale='m')
# Masks and rotated boxes take the host longer than the network: other processes finish predictions.
val_cfg = dict(num_workers=8)
test_cfg = dict(type='TestLoop', num_workers=8)
train_dataloader = dict(
    dataset=dict(
        pipeline=[
            dict(type='Mosaic', prob=1.0, close_last=10),
            dict(type='RandomAffine', scale=0.9, translate=0.1),
            dict(type='Mixup', prob=0.1, close_last=10),
            dict(type='RandomHSV'),
            dict(type='HorizontalFlip', prob=0.5),
        ],
    )
)
