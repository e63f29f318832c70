#!/usr/bin/env python
"""Train each task on 100 generated images until it should know them by heart; 1 where a task misses its gate."""

import argparse
import json
from pathlib import Path

from lucid.apis.options import add_cfg_options
from lucid.apis.overfit import GATES, overfit, to_record

EXAMPLES = """examples:
  tools/overfit.py                                         four tasks from three seeds, one run after the other
  tools/overfit.py --jobs 12 --json overfit.json           all twelve runs at a time, on a card
  tools/overfit.py --task segment --seeds 0                one run
"""


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--task', nargs='+', choices=tuple(GATES), default=list(GATES), help='default: all')
    parser.add_argument('--seeds', type=int, nargs='+', default=[0, 1, 2], metavar='N', help='default: 0 1 2')
    parser.add_argument('--jobs', type=int, default=1, metavar='N', help='runs at a time (default: %(default)s)')
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/overfit'), help='default: %(default)s')
    parser.add_argument('--json', type=Path, metavar='FILE', help='write the record there')
    add_cfg_options(parser)
    args = parser.parse_args()
    if args.jobs < 1:
        parser.error('--jobs takes a number of at least 1')
    outcomes = overfit(args.task, seeds=args.seeds, jobs=args.jobs, work_dir=args.work_dir, options=args.cfg_options)
    if args.json:
        args.json.write_text(json.dumps(to_record(outcomes, args.cfg_options), indent=1) + '\n')
    return 0 if all(outcome.passed for outcome in outcomes) else 1


if __name__ == '__main__':
    raise SystemExit(main())
