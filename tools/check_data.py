#!/usr/bin/env python
"""Find what is wrong with a data set before training does, and show what it holds: tables, JSON and pictures."""

import argparse
import sys
from pathlib import Path

from lucid.apis import ConfigError
from lucid.apis.check_data import check_data
from lucid.apis.options import add_cfg_options
from lucid.datasets.content import KINDS

EXAMPLES = """examples:
  tools/check_data.py path/to/folder
  tools/check_data.py configs/yolo/detect_n_folder.py --cfg-options data_root=path/to/folder
  tools/check_data.py path/to/dota --targets boxes rboxes
  tools/check_data.py configs/yolo/detect_n_bccd.py --out found --json report.json --strict

exit status: 0 clean, 1 problems (with --strict also notes), 2 could not check
"""


def main() -> int:
    """Parse the command line and check; 1 where there are problems, 2 where nothing could be checked."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('target', type=Path, metavar='CONFIG|FOLDER', help='config file, or folder of a data set')
    parser.add_argument(
        '--out',
        type=Path,
        metavar='DIR',
        help='pictures and report.json go there (default: work_dirs/check_data/<name of the target>)',
    )
    parser.add_argument('--json', type=Path, metavar='FILE', help='write the report there too')
    parser.add_argument(
        '--image-size', type=int, nargs='+', help="side, or height and width (default: the config's, else 640)"
    )
    parser.add_argument(
        '--targets',
        nargs='+',
        choices=sorted({kind for kinds in KINDS.values() for kind in kinds}),
        help='kinds to read of a folder (default: boxes); a config states its own',
    )
    parser.add_argument(
        '--samples',
        type=int,
        default=16,
        metavar='N',
        help='most images on a sheet; 0: no pictures (default: %(default)s)',
    )
    parser.add_argument('--strict', action='store_true', help='exit with 1 for notes too')
    add_cfg_options(parser)
    args = parser.parse_args()
    if args.image_size and (len(args.image_size) > 2 or min(args.image_size) < 1):
        parser.error('--image-size takes one side, or height and width, of at least 1 pixel')
    try:
        check = check_data(
            args.target,
            args.out,
            json_file=args.json,
            image_size=args.image_size and (args.image_size[0], args.image_size[-1]),
            targets=args.targets,
            options=args.cfg_options,
            samples=args.samples,
        )
    except (ConfigError, OSError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    return 1 if check.num_problems or (args.strict and check.num_notes) else 0


if __name__ == '__main__':
    raise SystemExit(main())
