"""The five sizes of a detector."""

from typing import NamedTuple


class Scale(NamedTuple):
    """How a size changes the base layer table.

    depth:        factor on the repeats of a block
    width:        factor on the channels
    max_channels: cap on the base channels, applied before ``width``
    """

    depth: float
    width: float
    max_channels: int

    def channels(self, base: int) -> int:
        """Channels of a layer that has ``base`` in the table; truncated, not rounded."""
        return int(min(base, self.max_channels) * self.width)

    def repeats(self, base: int = 2) -> int:
        """Repeats of a block that has ``base`` in the table, at least 1."""
        return max(1, round(base * self.depth))


SCALES = {
    'n': Scale(depth=0.5, width=0.25, max_channels=1024),
    's': Scale(depth=0.5, width=0.5, max_channels=1024),
    'm': Scale(depth=0.5, width=1.0, max_channels=512),
    'l': Scale(depth=1.0, width=1.0, max_channels=512),
    'x': Scale(depth=1.0, width=1.5, max_channels=512),
}


def get_scale(name: str) -> Scale:
    """The size of that name.

    Args:
        name: ``'n'``, ``'s'``, ``'m'``, ``'l'`` or ``'x'``.

    Returns:
        Its entry of the table.

    Raises:
        ValueError: there is no such size.

    Source: arXiv:2602.14582, Fig. 1.
    """
    if name not in SCALES:
        raise ValueError(f'scale={name!r} does not exist; use one of {", ".join(map(repr, SCALES))}')
    return SCALES[name]
