"""The metric that a hook follows, known before the first validation."""

import difflib

from mmengine.evaluator import Evaluator

AUTO = 'auto'
"""Instead of a metric's name: the chief figure of the first metric that names one."""


def chief_metric(owner: str, evaluator: Evaluator) -> str:
    """The key of the chief figure of a validation.

    Args:
        owner: The option that asks, for the message.
        evaluator: Of the validation loop; a metric names its chief figure by an attribute ``chief``, without prefix.

    Returns:
        The key as it is logged, prefix included.

    Raises:
        ValueError: No metric names one.
    """
    for metric in evaluator.metrics:
        if chief := getattr(metric, 'chief', None):
            return f'{metric.prefix}/{chief}' if metric.prefix else str(chief)
    raise ValueError(f'{owner} is {AUTO!r}, and no metric of the validation names its chief figure; name one, or None')


def check_metric(owner: str, metric: str, evaluator: Evaluator) -> None:
    """Raise ``ValueError`` where the option ``owner`` names a metric that validation cannot give."""
    keys = possible_keys(evaluator)
    if keys is not None and metric not in keys:
        near = difflib.get_close_matches(metric, keys, n=1)
        hint = f'did you mean {near[0]!r}?' if near else f'name one of {", ".join(sorted(keys))}, or None'
        raise ValueError(f'{owner} names {metric!r}, which validation lacks; {hint}')


def possible_keys(evaluator: Evaluator) -> set[str] | None:
    """Return the keys that a validation gives, None unless all its metrics tell them.

    A metric tells by ``keys()``, without its prefix, once it knows its data set.

    Args:
        evaluator: Of the validation loop.

    Returns:
        The keys as they are logged, prefix included.
    """
    found: set[str] = set()
    for metric in evaluator.metrics:
        tell = getattr(metric, 'keys', None)
        if tell is None:
            return None
        found |= {f'{metric.prefix}/{key}' if metric.prefix else key for key in tell()}
    return found
