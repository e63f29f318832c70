#!/usr/bin/env python
"""Print parameters, multiply-adds and the bytes floor of a config's network, layer by layer."""

import argparse
import json
import sys
from pathlib import Path

from lucid.apis import load_config
from lucid.apis.analysis import analyze, print_cost
from lucid.apis.options import add_cfg_options

EXAMPLES = """examples:
  tools/analyze.py configs/yolo/detect_n_coco.py
  tools/analyze.py configs/yolo_capture.py --image-size 640 --num-classes 3 --json work_dirs/cost.json
  tools/analyze.py configs/yolo/segment_n_coco.py --cfg-options model.scale=s
"""


def main() -> int:
    """Parse the command line and print; 2 where the config or the size cannot be meant."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('config', type=Path, help='config file')
    parser.add_argument('--image-size', type=int, nargs='+', help="side, or height and width (default: the config's)")
    parser.add_argument('--num-classes', type=int, help="number of classes (default: the config's, else 80)")
    parser.add_argument('--num-keypoints', type=int, help="number of keypoints (default: the config's, else 17)")
    parser.add_argument('--json', type=Path, metavar='FILE', help='write the numbers there too')
    add_cfg_options(parser)
    args = parser.parse_args()
    if args.image_size and len(args.image_size) > 2:
        parser.error('--image-size takes one side, or height and width')
    size = args.image_size and (args.image_size[0], args.image_size[-1])
    try:
        cfg = load_config(args.config, args.cfg_options)
        cost = analyze(cfg, image_size=size, num_classes=args.num_classes, num_keypoints=args.num_keypoints)
        if args.json:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(cost.to_json(), indent=2) + '\n')
    except (ValueError, OSError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    print_cost(cost)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
