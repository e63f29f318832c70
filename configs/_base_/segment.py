# Masks from a folder with COCO JSON: set data_root, and image_size if 640 is not wanted. Classes come from the data.
data_root = 'data/coco'
image_size = 640

model = dict(type='YOLODetector', scale='n', head=dict(type='SegmentHead'))

train_dataloader = dict(
    batch_size=16,
    num_workers=8,
    persistent_workers=True,
    pin_memory=True,
    dataset=dict(
        type='CocoDataset',
        split='train',
        targets=('boxes', 'masks'),
        pipeline=[
            dict(type='Mosaic', prob=1.0, close_last=10),
            dict(type='RandomAffine', scale=0.5, translate=0.1),
            dict(type='RandomHSV'),
            dict(type='HorizontalFlip', prob=0.5),
        ],
    ),
    sampler=dict(type='EpochSampler'),
    collate_fn=dict(type='detection_collate', masks=True),
)
val_dataloader = dict(
    batch_size=16,
    num_workers=8,
    persistent_workers=True,
    pin_memory=True,
    dataset=dict(type='CocoDataset', split='val', targets=('boxes', 'masks'), pipeline=[dict(type='Letterbox')]),
    sampler=dict(type='DefaultSampler', shuffle=False),
    collate_fn=dict(type='detection_collate', masks=True),
)
# Both ways from the one forward to detections: end to end, and the one-to-many branch through NMS.
val_evaluator = dict(type='CocoMaskMetric', paths=('one_to_one', 'nms'))
