#!/usr/bin/env python
"""Write a data set in another layout: COCO JSON, YOLO or Pascal VOC; DOTA is read. The source is never written to."""

import argparse
import sys
from pathlib import Path

from lucid.apis.conversion import IMAGES, LAYOUTS, MISSING_LABELS, POLICIES, WRITERS, convert, print_conversion

EXAMPLES = """examples:
  tools/convert_data.py data/cells data/cells_yolo --to yolo
  tools/convert_data.py data/cells_yolo data/cells_voc --to voc --images link
  tools/convert_data.py data/dota data/dota_coco --to coco
  tools/convert_data.py data/cells out --to voc --splits train --ann-file annotations/raw.json --on-bad skip_box
"""


def main() -> int:
    """Parse the command line, convert and print what was written; 2 where the data or the words cannot be used."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('source', type=Path, help='folder of the data set, or its data.yaml')
    parser.add_argument('target', type=Path, help='folder to make; must not exist, or be empty')
    parser.add_argument('--to', required=True, choices=tuple(WRITERS), help='layout to write')
    parser.add_argument('--from', dest='source_layout', choices=LAYOUTS, help='layout to read (default: found out)')
    parser.add_argument('--splits', nargs='+', metavar='NAME', help='parts (default: those of train, val, test)')
    parser.add_argument('--ann-file', type=Path, help='COCO JSON of the one split, relative to the source')
    parser.add_argument('--image-dir', type=Path, help='folder of its images, relative to the source')
    parser.add_argument('--images', choices=IMAGES, default='copy', help='copy the images (default) or link to them')
    parser.add_argument(
        '--on-bad', choices=POLICIES, default='error', help='what to do about bad data (default: error)'
    )
    parser.add_argument(
        '--missing-labels', choices=MISSING_LABELS, default='error', help='what an image without label file means'
    )
    args = parser.parse_args()
    try:
        conversion = convert(
            args.source,
            args.target,
            layout=args.to,
            source_layout=args.source_layout,
            splits=args.splits,
            ann_file=args.ann_file,
            image_dir=args.image_dir,
            images=args.images,
            on_bad=args.on_bad,
            missing_labels=args.missing_labels,
        )
    except (ValueError, OSError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    print_conversion(conversion)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
