#!/usr/bin/env python
"""Cut the large images of a DOTA data set into tiles, with oriented COCO JSON. The source is never written to."""

import argparse
import sys
from pathlib import Path

from lucid.apis.conversion import MISSING_LABELS, POLICIES
from lucid.apis.tiling import FORMATS, print_tiling, tile_dota

EXAMPLES = """examples:
  tools/tile_dota.py data/dota data/dota_tiles
  tools/tile_dota.py data/dota data/dota_tiles --overlap 512 --format jpg --splits train val
  tools/tile_dota.py data/dota data/dota_test --splits test --missing-labels background

Train on the result by CocoDataset with targets=('boxes', 'rboxes') and data_root=data/dota_tiles.
"""


def main() -> int:
    """Parse the command line, cut and print what was written; 2 where the data or the words cannot be used."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        'source', type=Path, help='folder with images/ and labelTxt/, or with a folder per split that has them'
    )
    parser.add_argument('out', type=Path, help='folder to make; must not exist, or be empty')
    parser.add_argument('--size', type=int, default=1024, help='side of a tile in pixels (default: %(default)s)')
    parser.add_argument(
        '--overlap', type=int, default=200, help='pixels that neighbours share at least (default: %(default)s)'
    )
    parser.add_argument(
        '--format',
        choices=tuple(FORMATS),
        default='png',
        help='of the tiles (default: %(default)s); jpg takes less room, and loses a little',
    )
    parser.add_argument('--splits', nargs='+', metavar='NAME', help='parts (default: those of train, val, test)')
    parser.add_argument('--classes', nargs='+', metavar='NAME', help='by their ids from 1 (default: 15 of DOTA-v1.0)')
    parser.add_argument(
        '--on-bad', choices=POLICIES, default='error', help='what to do about bad data (default: error)'
    )
    parser.add_argument(
        '--missing-labels', choices=MISSING_LABELS, default='error', help='what an image without label file means'
    )
    args = parser.parse_args()
    try:
        tiling = tile_dota(
            args.source,
            args.out,
            size=args.size,
            overlap=args.overlap,
            image_format=args.format,
            splits=args.splits,
            classes=args.classes,
            on_bad=args.on_bad,
            missing_labels=args.missing_labels,
        )
    except (ValueError, OSError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    print_tiling(tiling)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
