# Scale n on COCO 2017, 80 classes, 640 px: data/coco with annotations/instances_{train,val}2017.json, {train,val}2017/.
_base_ = ['../_base_/runtime.py', '../_base_/schedule.py', '../_base_/detection.py']

model = dict(scale='n')
