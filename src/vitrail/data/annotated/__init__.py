"""Images whose pixels or objects have classes: folders of masks, COCO, Pascal VOC, parquet, synthetic scenes."""
