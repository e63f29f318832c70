#!/usr/bin/env python
"""Run on a CUDA card what proves a claim about capture, and keep the docs' table of claims honest."""

import argparse
import sys
from pathlib import Path

import torch

from lucid.apis.claims import CLAIMS, claims_table, table_stands, write_table
from lucid.apis.options import add_cfg_options
from lucid.apis.proof import prove

DOCS = Path(__file__).resolve().parents[1] / 'docs'
TABLE, RECORDS = DOCS / 'capture.md', DOCS / 'evidence'
PARTS = ('tests', 'parity', 'host-time')
EXAMPLES = """examples, from the root of the repository:
  tools/prove.py --jobs 8                                  everything, many minutes on a card
  tools/prove.py --claim step --only parity --precision bf16       some parts; the record keeps the others
  tools/prove.py --claim network loss step --only parity --config configs/yolo/detect_n_bccd.py \\
      --cfg-options data_root=/data/bccd
  tools/prove.py --write                                   put what the records say into docs/capture.md
  tools/prove.py --check                                   1 where docs/capture.md says anything else
"""


def main() -> int:
    """Parse the command line; 1 where a run failed or the table does not stand, 2 where nothing could be run."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument('--write', action='store_true', help='write the table, run nothing')
    action.add_argument('--check', action='store_true', help='check the table, run nothing')
    parser.add_argument('--claim', nargs='+', choices=tuple(CLAIMS), default=list(CLAIMS), help='default: all')
    parser.add_argument('--only', nargs='+', choices=PARTS, default=list(PARTS), help='kinds of runs (default: all)')
    parser.add_argument('--config', nargs='+', default=[], help="of the parity runs (default: the claims')")
    parser.add_argument('--precision', nargs='+', choices=('fp32', 'bf16', 'fp16'), default=[], help='default: all')
    parser.add_argument('--jobs', type=int, default=1, metavar='N', help='runs at a time (default: %(default)s)')
    parser.add_argument('--steps', type=int, default=50, help='of a parity run (default: %(default)s)')
    parser.add_argument('--out', type=Path, default=RECORDS, help='folder of the records (default: docs/evidence)')
    add_cfg_options(parser)
    args = parser.parse_args()
    if args.write:
        write_table(TABLE, RECORDS)
        print(claims_table(RECORDS))
        return 0
    if args.check:
        stands = table_stands(TABLE, RECORDS)
        if not stands:
            print('docs/capture.md does not say what docs/evidence says: run tools/prove.py --write', file=sys.stderr)
        return 0 if stands else 1
    if not torch.cuda.is_available():
        print('error: there is no CUDA card, and nothing can be proven without one', file=sys.stderr)
        return 2
    passed = prove(
        args.claim,
        args.out,
        only=args.only,
        configs=args.config,
        precisions=args.precision,
        steps=args.steps,
        options=args.cfg_options,
        jobs=args.jobs,
    )
    return 0 if passed else 1


if __name__ == '__main__':
    raise SystemExit(main())
