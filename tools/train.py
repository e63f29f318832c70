#!/usr/bin/env python
"""Train the model of a config."""

import argparse
import sys
from pathlib import Path

from lucid.apis import (
    CheckpointError,
    ConfigError,
    ImageError,
    Interrupted,
    NonFiniteLossError,
    load_config,
    override,
    train,
)
from lucid.apis.options import add_cfg_options
from lucid.capture.errors import CaptureError

EXAMPLES = """examples:
  tools/train.py configs/yolo_capture.py
  tools/train.py configs/yolo/detect_n_folder.py --cfg-options data_root=/data/mine train_dataloader.batch_size=8
  tools/train.py configs/yolo/detect_s_coco.py --amp --work-dir runs/s --seed 1
  tools/train.py configs/yolo/detect_s_coco.py --amp --work-dir runs/s --resume
  tools/train.py configs/yolo/detect_n_folder.py --load-from work_dirs/detect_n_coco/best.pth
  torchrun --nproc-per-node 4 tools/train.py configs/yolo/detect_s_coco.py --launcher pytorch
"""


def main() -> int:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('config', type=Path, help='config file')
    parser.add_argument('--work-dir', type=Path, help='where results go (default: work_dirs/<name of the config>)')
    parser.add_argument(
        '--resume', nargs='?', const=True, default=False, metavar='PATH', help='go on (default: from last.pth)'
    )
    parser.add_argument('--overwrite', action='store_true', help='replace the run that the work dir holds')
    parser.add_argument(
        '--load-from', type=Path, metavar='PATH', help='start from the weights that fit; classes are matched by name'
    )
    parser.add_argument(
        '--amp', nargs='?', const='bfloat16', choices=('bfloat16', 'float16'), help='mixed precision (bfloat16)'
    )
    parser.add_argument('--seed', type=int, help='of all random draws (default: the config says, 0)')
    parser.add_argument('--deterministic', action='store_true', help='deterministic algorithms only, slower')
    parser.add_argument('--launcher', choices=('none', 'pytorch'), help='pytorch under torchrun')
    add_cfg_options(parser)
    args = parser.parse_args()
    try:
        cfg = override(
            load_config(args.config, args.cfg_options),
            work_dir=args.work_dir,
            seed=args.seed,
            deterministic=args.deterministic,
            amp=args.amp,
            launcher=args.launcher,
            load_from=args.load_from,
        )
        train(cfg, resume=args.resume, overwrite=args.overwrite)
    except (ConfigError, CheckpointError, ImageError, FileNotFoundError, NonFiniteLossError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    except CaptureError as error:
        if type(error) is not CaptureError or error.__cause__ is not None:
            raise  # the stack leads to the line of the model
        print(f'error: {error}', file=sys.stderr)  # strict
        return 2
    except Interrupted as stop:
        return 128 + stop.signum
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
