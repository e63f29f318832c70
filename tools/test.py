#!/usr/bin/env python
"""Evaluate a checkpoint on the validation set of a config."""

import argparse
import sys
from pathlib import Path

from lucid.apis import CheckpointError, ConfigError, ImageError, load_config, override, test
from lucid.apis.options import add_cfg_options

EXAMPLES = """examples:
  tools/test.py configs/yolo_capture.py work_dirs/yolo_capture/best.pth
  tools/test.py configs/yolo/detect_n_coco.py best.pth --out results.json --show-dir pictures
  tools/test.py configs/yolo_capture.py work_dirs/yolo_capture/best.pth --path nms
"""


def main() -> int:
    """Parse the command line and evaluate."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('config', type=Path, help='config file')
    parser.add_argument('checkpoint', type=Path, help='checkpoint file')
    parser.add_argument('--work-dir', type=Path, help='where the log goes (default: work_dirs/<name of the config>)')
    parser.add_argument(
        '--path',
        choices=('one_to_one', 'nms', 'both'),
        help='from the forward to detections: end to end, the one-to-many branch through NMS, or both side by side '
        '(default: as the config says, which is both)',
    )
    parser.add_argument('--out', type=Path, metavar='FILE', help='write the detections there as COCO results JSON')
    parser.add_argument(
        '--show-dir',
        type=Path,
        metavar='DIR',
        help='draw images with truth and detections there, and charts in its figures/',
    )
    parser.add_argument(
        '--weights', choices=('auto', 'ema', 'raw'), default='auto', help='averaged or trained (auto: averaged if any)'
    )
    parser.add_argument('--launcher', choices=('none', 'pytorch'), help='pytorch under torchrun')
    add_cfg_options(parser)
    args = parser.parse_args()
    try:
        cfg = override(load_config(args.config, args.cfg_options), work_dir=args.work_dir, launcher=args.launcher)
        test(cfg, args.checkpoint, weights=args.weights, path=args.path, out=args.out, show_dir=args.show_dir)
    except (ConfigError, CheckpointError, ImageError, FileNotFoundError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
