# Your own images with COCO JSON: change data_root, here or by --cfg-options data_root=PATH. Looked for in it:
#   annotations/{train,val}.json, annotations/instances_{train,val}.json or {train,val}/_annotations.coco.json;
#   images in {train,val}/, images/{train,val}/, images/; other places by dataset.ann_file and dataset.image_dir.
_base_ = ['../_base_/runtime.py', '../_base_/schedule.py', '../_base_/detection.py']

data_root = 'data/folder'
