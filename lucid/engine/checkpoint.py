"""Checkpoint files: dicts of plain types, written whole or not at all, read with ``weights_only=True``.

A checkpoint is what mmengine's ``Runner.resume`` understands (``meta``, ``state_dict``, ``optimizer``,
``param_schedulers``, ``message_hub``), and besides what the hooks add (``ema``) and ``rng``.
"""

import os
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from mmengine.runner.checkpoint import CheckpointLoader
from torch import Tensor, nn

Weights = Literal['auto', 'ema', 'raw']
SUFFIX = '.pth'


class CheckpointError(ValueError):
    """A file that is no intact checkpoint, or one that does not fit this run; the message carries the remedy."""


def plain(value: Any, where: str = 'checkpoint', *, tensor: Callable[[Tensor], Tensor] | None = None) -> Any:
    """Rebuild ``value`` from dict, list, tuple, str, bytes, numbers, None and detached CPU tensors only.

    Args:
        value: Nested containers, tensors, numpy scalars and arrays, paths.
        where: Name of the place for the error message.
        tensor: Makes a tensor such a one; None is ``detach().cpu()``.

    Returns:
        The same values. A tensor on the CPU keeps its memory, which the caller still owns; others are copied.

    Raises:
        TypeError: Something else is inside.
    """
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if isinstance(value, Tensor):
        return value.detach().cpu() if tensor is None else tensor(value)
    if isinstance(value, Mapping):
        return {
            plain(key, f'{where} key', tensor=tensor): plain(item, f'{where}.{key}', tensor=tensor)
            for key, item in value.items()
        }
    if isinstance(value, tuple):
        return tuple(plain(item, f'{where}[{i}]', tensor=tensor) for i, item in enumerate(value))
    if isinstance(value, list):
        return [plain(item, f'{where}[{i}]', tensor=tensor) for i, item in enumerate(value)]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, str | Path):
        return str(value)
    if isinstance(value, bool | int | float):  # a subclass, such as an enum member
        return next(kind(value) for kind in (bool, int, float) if isinstance(value, kind))
    raise TypeError(f'{where} is a {type(value).__name__}, which a checkpoint cannot hold; store plain values instead')


def plain_hub(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message hub's state without its histories and without what does not survive a restart.

    The log files keep the histories; a hub that starts without them only smooths over fewer values.
    """
    kept = {}
    for key, value in state['runtime_info'].items():
        try:
            kept[key] = plain(value)
        except TypeError:
            continue
    names = {key: flag for key, flag in state['resumed_keys'].items() if key in kept}
    assert all(isinstance(value, HistoryBuffer) for value in state['log_scalars'].values())
    return {'log_scalars': {}, 'runtime_info': kept, 'resumed_keys': names}


def save(checkpoint: Mapping[str, Any], path: str | Path) -> None:
    """Write ``checkpoint`` to ``path`` whole or not at all: a reader, or a crash, never meets half a file."""
    save_plain(plain(checkpoint), path)


def save_plain(checkpoint: Mapping[str, Any], path: str | Path) -> None:
    """``save`` what ``plain`` has returned."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f'.{path.name}.{os.getpid()}')
    try:
        with temporary.open('wb') as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        # fsync, then replace: the other way round a power cut can leave the new name on an empty file.
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def link(source: str | Path, target: str | Path) -> None:
    """Make ``target`` the same file as ``source`` in one step, by a hard link, or a copy where there are none."""
    source, target = Path(source), Path(target)
    temporary = target.with_name(f'.{target.name}.{os.getpid()}')
    temporary.unlink(missing_ok=True)
    try:
        try:
            os.link(source, temporary)
        except OSError:
            temporary.write_bytes(source.read_bytes())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def load(path: str | Path, map_location: Any = 'cpu') -> dict[str, Any]:
    """Read a checkpoint without running code from it.

    Args:
        path: A local file.
        map_location: As in ``torch.load``.

    Returns:
        A dict with ``state_dict`` and ``meta`` at least.

    Raises:
        FileNotFoundError: There is no such file.
        CheckpointError: The file is empty, truncated, damaged, holds Python objects, or is something else; the
            message names the newest intact checkpoint beside it.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f'no checkpoint at {path}{_remedy(path, is_missing=True)}')
    return _read(path, map_location, advise=True)


def _read(path: Path, map_location: Any, *, advise: bool) -> dict[str, Any]:
    remedy = _remedy(path) if advise else ''
    if path.stat().st_size == 0:
        raise CheckpointError(f'{path} is empty, so it was never written whole{remedy}')
    try:
        # torch.load does not notice a flipped byte; the sums of the archive that torch.save writes do.
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except zipfile.BadZipFile:
        raise CheckpointError(f'{path} is truncated, or no checkpoint at all{remedy}') from None
    if damaged is not None:
        raise CheckpointError(f'{path} is damaged: {damaged} in it does not have its checksum{remedy}')
    try:
        checkpoint = torch.load(path, map_location=map_location, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        raise CheckpointError(
            f'{path} is no checkpoint that can be read safely: {str(error).splitlines()[0]}{remedy}'
        ) from None
    if not isinstance(checkpoint, dict) or 'state_dict' not in checkpoint or 'meta' not in checkpoint:
        raise CheckpointError(f"{path} is no checkpoint of lucid: it has no 'state_dict' and 'meta'{remedy}")
    return checkpoint


def _remedy(path: Path, *, is_missing: bool = False) -> str:
    before = intact_before(path)
    if before is None:
        return f'. No intact checkpoint lies beside it in {path.parent}: correct the path, or train anew'
    if is_missing:
        return f'. Correct the path; the newest intact checkpoint in its folder is {before}'
    return f'. The newest intact checkpoint before it is {before}: use that one'


def intact_before(path: str | Path) -> Path | None:
    """Return the newest readable checkpoint in the folder of ``path`` that is not younger than it."""
    path = Path(path)
    limit = path.stat().st_mtime_ns if path.is_file() else None
    others = [file for file in path.parent.glob(f'*{SUFFIX}') if file.name != path.name]
    for file in sorted(others, key=lambda file: file.stat().st_mtime_ns, reverse=True):
        if limit is not None and file.stat().st_mtime_ns > limit:
            continue
        try:
            _read(file, 'cpu', advise=False)
        except CheckpointError:
            continue
        return file
    return None


def load_weights(model: nn.Module, checkpoint: Mapping[str, Any], weights: Weights = 'auto') -> None:
    """Copy a checkpoint's weights into ``model``, in place; all keys must match.

    Args:
        model: The detector, not wrapped.
        checkpoint: What ``load`` returned.
        weights: ``'ema'`` the averaged values (what validation used), ``'raw'`` the trained ones, ``'auto'`` the
            averaged ones where the checkpoint has them.

    Raises:
        CheckpointError: There are no averaged values, or names or shapes differ.
    """
    state = chosen_weights(checkpoint, weights)
    check_fits(model, state)
    model.load_state_dict(state)


def chosen_weights(checkpoint: Mapping[str, Any], weights: Weights = 'auto') -> dict[str, Tensor]:
    """Return the averaged or the trained weights of a checkpoint, as in ``load_weights``, by name.

    Args:
        checkpoint: What ``load`` returned; it still owns the tensors.
        weights: Which.

    Returns:
        A state; what has no average is the trained value.

    Raises:
        CheckpointError: There are no averaged values, though these are asked for.
    """
    average = checkpoint.get('ema')
    if weights == 'ema' and average is None:
        raise CheckpointError("the checkpoint holds no averaged weights (it was trained without EMAHook); use 'raw'")
    state = dict(checkpoint['state_dict'])
    if weights != 'raw' and average is not None:
        state.update(average['shadow'])
    return state


def check_fits(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Raise ``CheckpointError`` unless ``state`` has exactly the names and shapes of ``model``."""
    own = model.state_dict()
    missing = [name for name in own if name not in state]
    foreign = [name for name in state if name not in own]
    shapes = [
        f'{name} is {tuple(state[name].shape)} there and {tuple(own[name].shape)} here'
        for name in own
        if name in state and state[name].shape != own[name].shape
    ]
    if not (missing or foreign or shapes):
        return
    parts = [
        f'{len(names)} {what}, such as {names[0]}'
        for names, what in ((missing, 'missing'), (foreign, 'unknown'), (shapes, 'of another shape'))
        if names
    ]
    raise CheckpointError(
        f'the checkpoint does not fit the model: tensors {"; ".join(parts)}. Use the config that it was trained with'
    )


@CheckpointLoader.register_scheme(prefixes='', force=True)
def load_from_local(filename: str, map_location: Any = None) -> dict[str, Any]:
    """``load`` for mmengine, whose own cannot read its checkpoints since torch 2.6 made ``weights_only`` the rule."""
    return load(filename, map_location)
