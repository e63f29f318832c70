#!/usr/bin/env python
"""Detect objects in images with a trained checkpoint: draws them, writes predictions.json, prints a table."""

import argparse
from pathlib import Path

from lucid.apis.inference import init_detector
from lucid.apis.prediction import find_image_files, predict_files

EXAMPLES = """\
examples:
  python tools/predict.py photo.jpg --checkpoint work_dirs/yolo_capture/best.pth
  python tools/predict.py photos/ 'more/**/*.png' --checkpoint best.pth --score 0.5 --out found
  python tools/predict.py photos/ --checkpoint best.pth --path nms"""
NO_CHECKPOINT = """\
no --checkpoint given. lucid comes without pretrained weights: train some first, for example
  python tools/train.py configs/yolo_capture.py
and then pass
  --checkpoint work_dirs/yolo_capture/best.pth"""


def main() -> int:
    """Parse the command line and detect; 1 where a file could not be read, 2 where nothing could be done."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('images', nargs='+', metavar='IMAGE|DIR|GLOB', help='image files, folders, quoted patterns')
    parser.add_argument('--checkpoint', type=Path, metavar='FILE', help='weights that tools/train.py wrote')
    parser.add_argument(
        '--config', type=Path, metavar='FILE', help="config file (default: the checkpoint's own config)"
    )
    parser.add_argument('--device', help='cpu, cuda or cuda:N (default: a CUDA card where there is one)')
    parser.add_argument('--weights', choices=('auto', 'ema', 'raw'), default='auto', help='averaged or trained values')
    parser.add_argument(
        '--path',
        choices=('one_to_one', 'nms'),
        default='one_to_one',
        help='end to end, or the one-to-many branch through NMS (default: %(default)s)',
    )
    parser.add_argument('--score', type=float, default=0.25, help='lowest score of a detection (default: %(default)s)')
    parser.add_argument(
        '--out',
        type=Path,
        default=Path('work_dirs', 'predictions'),
        metavar='DIR',
        help='folder for the results (default: %(default)s)',
    )
    parser.add_argument(
        '--batch-size', type=int, default=1, metavar='N', help='images at a time (default: %(default)s)'
    )
    args = parser.parse_args()
    if args.checkpoint is None:
        parser.error(NO_CHECKPOINT)
    if args.batch_size < 1:
        parser.error(f'--batch-size {args.batch_size}: give 1 or more')
    if not 0 <= args.score <= 1:
        parser.error(f'--score {args.score:g}: give a number from 0 to 1')
    try:
        files = find_image_files(args.images)
        detector = init_detector(
            args.checkpoint, config=args.config, device=args.device, weights=args.weights, path=args.path
        )
        result = predict_files(detector, files, args.out, score_threshold=args.score, batch_size=args.batch_size)
    except (ValueError, OSError) as error:
        parser.exit(2, f'{parser.prog}: error: {error}\n')
    return 1 if result.unreadable else 0


if __name__ == '__main__':
    raise SystemExit(main())
