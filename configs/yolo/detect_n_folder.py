# Your own images: change data_root, here or by --cfg-options data_root=PATH. The layout is found from the files:
#   COCO JSON    annotations/{train,val}.json, annotations/instances_{train,val}.json or
#                {train,val}/_annotations.coco.json; images in {train,val}/, images/{train,val}/ or images/;
#                other places by dataset.ann_file and dataset.image_dir
#   YOLO         data.yaml with names, train and val; images/... beside labels/...
#   Pascal VOC   Annotations/*.xml, ImageSets/Main/{train,val}.txt, JPEGImages/
#   DOTA         {train,val}/labelTxt/*.txt, {train,val}/images/
# docs/data.md says more.
_base_ = ['../_base_/runtime.py', '../_base_/schedule.py', '../_base_/detection.py']

data_root = 'data/folder'

train_dataloader = dict(dataset=dict(type='FolderDataset'))
val_dataloader = dict(dataset=dict(type='FolderDataset'))
