"""What a run ran on: versions, machine and source revision, as plain values."""

import functools
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import lucid

DISTRIBUTIONS = ('torch', 'torchvision', 'mmengine', 'mmcv-lite', 'numpy', 'faster-coco-eval')
OPENCV = ('opencv-python', 'opencv-python-headless')


@functools.cache
def environment() -> dict[str, Any]:
    """Return versions, platform, cards and the git revision of lucid's source, read once per process.

    What cannot be found out is None.
    """
    return {
        'lucid': lucid.__version__,
        'python': platform.python_version(),
        'platform': platform.platform(),
        **{name: _version(name) for name in DISTRIBUTIONS},
        'opencv': next((found for name in OPENCV if (found := _version(name))), None),
        'cuda': torch.version.cuda,
        'cudnn': torch.backends.cudnn.version() if torch.cuda.is_available() else None,
        'cards': [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        'driver': _driver(),
        'cpu_threads': torch.get_num_threads(),
        'command': sys.argv,
        **_revision(Path(lucid.__file__).resolve().parents[1]),
    }


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _driver() -> str | None:
    if not torch.cuda.is_available():
        return None
    return _output('nvidia-smi', '--query-gpu=driver_version', '--format=csv,noheader')


def _revision(root: Path) -> dict[str, Any]:
    """Return commit and whether files differ from it; None where ``root`` is not the top of a work tree."""
    if not (root / '.git').exists():  # installed: a repository further up is somebody else's
        return {'git_revision': None, 'git_dirty': None}
    revision = _output('git', '-C', str(root), 'rev-parse', 'HEAD')
    changes = _output('git', '-C', str(root), 'status', '--porcelain', '--untracked-files=no')
    return {'git_revision': revision, 'git_dirty': None if changes is None else bool(changes)}


def _output(*command: str) -> str | None:
    """Return the first words that a command prints, stripped; None where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
