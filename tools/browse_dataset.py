#!/usr/bin/env python
"""Draw samples of a config's data set as training sees them: augmented, with their targets."""

import argparse
import sys
from pathlib import Path

from lucid.apis import ConfigError, ImageError, load_config, override
from lucid.apis.browse import browse
from lucid.apis.options import add_cfg_options

EXAMPLES = """examples:
  tools/browse_dataset.py configs/yolo/detect_n_bccd.py --sheet
  tools/browse_dataset.py configs/yolo/detect_s_coco.py --steps --indices 0 7 12 --epoch 3
  tools/browse_dataset.py configs/yolo/detect_n_folder.py --in-order --number 32 --compare --out look
  tools/browse_dataset.py configs/yolo/detect_n_folder.py --split val --cfg-options data_root=/data/mine
"""


def main() -> int:
    """Parse the command line and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('config', type=Path, help='config file')
    parser.add_argument(
        '--out', type=Path, metavar='DIR', help='folder for the PNG files (default: work_dirs/browse/<name of config>)'
    )
    parser.add_argument('--split', choices=('train', 'val', 'test'), default='train', help='default: %(default)s')
    parser.add_argument('--epoch', type=int, default=1, help='of the training, from 1 as in its log')
    which = parser.add_mutually_exclusive_group()
    which.add_argument('--indices', type=int, nargs='+', metavar='I', help='places in the data set, from 0')
    which.add_argument(
        '--in-order', action='store_true', help="the first ones of the epoch, in the training's shuffled order"
    )
    parser.add_argument('--number', type=int, default=16, metavar='N', help='how many images (default: %(default)s)')
    view = parser.add_mutually_exclusive_group()
    view.add_argument('--compare', action='store_true', help='the image of the file beside its sample')
    view.add_argument('--steps', action='store_true', help='the sample after each transform, in a row')
    parser.add_argument('--sheet', action='store_true', help='several samples in one picture')
    parser.add_argument('--side', type=int, metavar='PIXELS', help="a panel's longer side")
    parser.add_argument('--seed', type=int, help='of all random draws (default: the config says, 0)')
    add_cfg_options(parser)
    args = parser.parse_args()
    try:
        files = browse(
            override(load_config(args.config, args.cfg_options), seed=args.seed),
            out=args.out,
            split=args.split,
            epoch=args.epoch,
            indices=args.indices,
            number=args.number,
            in_order=args.in_order,
            view='steps' if args.steps else 'compare' if args.compare else 'sample',
            sheet=args.sheet,
            side=args.side,
        )
    except (ConfigError, ImageError, FileNotFoundError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    print(f'{len(files)} {"picture" if len(files) == 1 else "pictures"} in {files[0].parent}')
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
