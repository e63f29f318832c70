# Scale n, keypoints of persons on COCO 2017, 17 keypoints, 640 px: data/coco with
# annotations/person_keypoints_{train,val}2017.json, {train,val}2017/.
_base_ = ['../_base_/runtime.py', '../_base_/schedule.py', '../_base_/keypoint.py']

model = dict(scale='n')
train_dataloader = dict(
    dataset=dict(
        ann_file='annotations/person_keypoints_train2017.json',
        image_dir='train2017',
        pipeline=[
            dict(type='Mosaic', prob=1.0, close_last=10),
            dict(type='RandomAffine', scale=0.5, translate=0.1),
            dict(type='Mixup', prob=0.0, close_last=10),
            dict(type='RandomHSV'),
            dict(type='HorizontalFlip', prob=0.5),
        ],
    )
)
val_dataloader = dict(dataset=dict(ann_file='annotations/person_keypoints_val2017.json', image_dir='val2017'))
