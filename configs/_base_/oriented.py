# Rotated boxes from a folder with COCO JSON whose objects have four corners (obb), such as the tiles that
# tools/tile_dota.py writes: set data_root, and image_size if 1024 is not wanted. Classes come from the data.
data_root = 'data/dota_tiles'
image_size = 1024

model = dict(type='YOLODetector', scale='n', head=dict(type='OrientedHead'))

train_dataloader = dict(
    batch_size=16,
    num_workers=8,
    persistent_workers=True,
    pin_memory=True,
    dataset=dict(
        type='CocoDataset',
        split='train',
        targets=('boxes', 'rboxes'),
        pipeline=[
            dict(type='Mosaic', prob=1.0, close_last=10),
            dict(type='RandomAffine', scale=0.5, translate=0.1),
            dict(type='RandomHSV'),
            dict(type='HorizontalFlip', prob=0.5),
        ],
    ),
    sampler=dict(type='EpochSampler'),
    collate_fn=dict(type='detection_collate'),
)
val_dataloader = dict(
    batch_size=16,
    num_workers=8,
    persistent_workers=True,
    pin_memory=True,
    dataset=dict(type='CocoDataset', split='val', targets=('boxes', 'rboxes'), pipeline=[dict(type='Letterbox')]),
    sampler=dict(type='DefaultSampler', shuffle=False),
    collate_fn=dict(type='detection_collate'),
)
# Both ways from the one forward to detections: end to end, and the one-to-many branch through NMS.
val_evaluator = dict(type='RotatedMetric', paths=('one_to_one', 'nms'))
