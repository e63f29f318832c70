"""Windows: the micro-batches of one optimizer step, as any optimizer wrapper counts them."""

from typing import Any

from mmengine.optim import OptimWrapperDict


def window_size(wrapper: Any) -> int:
    """Micro-batches of the current window of an optimizer wrapper, mmengine's own included."""
    if isinstance(wrapper, OptimWrapperDict):
        return max(window_size(each) for each in wrapper.optim_wrappers.values())
    size: int | None = getattr(wrapper, 'window_size', None)
    if size is not None:
        return size
    counts: int = wrapper._accumulative_counts
    if wrapper._max_counts >= 0 and wrapper._inner_count >= wrapper._max_counts - wrapper._remainder_counts:
        return wrapper._remainder_counts or counts
    return counts
