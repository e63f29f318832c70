"""What no optimizer wrapper can do, said when it is built."""

from collections.abc import Mapping
from typing import Any

_CLIP_KEYS = {'norm': {'max_norm', 'norm_type'}, 'value': {'clip_value'}}


def other_optimizer(optimizer: object) -> str:
    """Return what to say about an optimizer that is not lucid's."""
    kind = type(optimizer)
    near = {'SGD': 'SGD', 'Adam': 'AdamW', 'AdamW': 'AdamW', 'NAdam': 'AdamW'}.get(kind.__name__, 'MuSGD')
    return (
        f"{kind.__module__}.{kind.__name__} reads its options on the host; use lucid's optimizer=dict(type='{near}') "
        "with default_scope='lucid', or keep it in mmengine.OptimWrapper"
    )


def check_clip(clip_grad: Mapping[str, Any] | None) -> None:
    """Raise ``ValueError`` for a way to clip gradients that means nothing."""
    if clip_grad is None:
        return
    kind = clip_grad.get('type', 'norm')
    if kind not in _CLIP_KEYS:
        raise ValueError(f"clip_grad: type={kind!r}; choose 'norm' or 'value'")
    if unknown := sorted(set(clip_grad) - _CLIP_KEYS[kind] - {'type'}):
        why = ' (error_if_nonfinite would wait for the device in each step)' if 'error_if_nonfinite' in unknown else ''
        raise ValueError(f'clip_grad: unknown {unknown}{why}; {kind} takes {sorted(_CLIP_KEYS[kind])}')
    limit = 'max_norm' if kind == 'norm' else 'clip_value'
    if not clip_grad.get(limit, 0) > 0:
        raise ValueError(f'clip_grad: {limit}={clip_grad.get(limit)!r}; give a positive number, max_norm=10.0 is usual')
