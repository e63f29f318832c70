"""What is wrong with a data set: collected while it is read, then refused or left out."""

from collections import Counter
from typing import NamedTuple

import numpy as np
from mmengine.logging import print_log
from numpy.typing import NDArray

POLICIES = ('error', 'skip_box', 'skip_image')
SHOWN = 5


class Problem(NamedTuple):
    """One thing that is wrong.

    kind:       one word for counting, such as ``empty_box``
    image:      index of the image, -1 for none of them
    annotation: index of the annotation, -1 where the image itself is at fault
    message:    names file and annotation, and says what is wrong with it
    """

    kind: str
    image: int
    annotation: int
    message: str


class Problems:
    """The problems of one data set and what is done about them.

    Args:
        policy: ``'error'`` refuses the data set; ``'skip_box'`` leaves out bad annotations, and refuses it for bad
            images; ``'skip_image'`` leaves out every image with a problem.

    Raises:
        ValueError: Another policy.
    """

    def __init__(self, policy: str) -> None:
        if policy not in POLICIES:
            raise ValueError(f'on_bad={policy!r} is no policy; choose one of {", ".join(POLICIES)}')
        self.policy = policy
        self.found: list[Problem] = []

    def add(self, kind: str, message: str, *, image: int = -1, annotation: int = -1) -> None:
        """Note a problem; nothing is refused yet."""
        self.found.append(Problem(kind, image, annotation, message))

    def counts(self) -> dict[str, int]:
        """Number of problems per kind."""
        return dict(Counter(problem.kind for problem in self.found))

    def settle(self, source: str) -> None:
        """Refuse the data set if the policy says so; else say in the log what is left out.

        Args:
            source: The annotation file, for the message.

        Raises:
            ValueError: Names the first problems, the counts per kind, and the remedy.
        """
        if not self.found:
            return
        refused = [
            problem
            for problem in self.found
            if self.policy == 'error' or (self.policy == 'skip_box' and problem.annotation < 0)
        ]
        counts = ', '.join(f'{number} {kind}' for kind, number in sorted(self.counts().items()))
        if not refused:
            print_log(f'{source}: {self.policy} leaves out: {counts}', 'current', 30)
            return
        lines = [problem.message for problem in refused[:SHOWN]]
        if len(refused) > SHOWN:
            lines.append(f'... and {len(refused) - SHOWN} more')
        policies = "'skip_image'" if self.policy == 'skip_box' else "'skip_box' or 'skip_image'"
        raise ValueError(
            '\n  '.join([f'{source} has bad data ({counts}):', *lines])
            + f'\ncorrect the files, or set on_bad={policies} to leave out what is bad'
        )

    def bad_images(self, num_images: int) -> NDArray[np.bool_]:
        """Which images the policy leaves out."""
        bad = np.zeros(num_images, dtype=bool)
        if self.policy == 'skip_image':
            bad[[problem.image for problem in self.found if problem.image >= 0]] = True
        return bad
