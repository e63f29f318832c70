"""What is wrong with a data set: collected while it is read, then refused or left out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from mmengine.logging import print_log
from numpy.typing import NDArray

from lucid.datasets.images import ImageError

POLICIES = ('error', 'skip_box', 'skip_image')
REPORT = 'report'
"""Policy of tools that look at bad data: nothing is refused, bad images stay; no word for training."""
SHOWN = 5
MISSING_LABEL = 'missing_label'
"""Kind of an image without label file, which may be meant."""


class Problem(NamedTuple):
    """One thing that is wrong.

    kind:       one word for counting, such as ``empty_box``
    place:      file, and line or annotation in it, such as ``train.json: annotation 7 of image a.jpg``
    text:       what is wrong there
    image:      index of the image in its file or list, -1 for none of them
    annotation: index of the annotation, -1 where an image or a label file as a whole is at fault
    box:        what the annotation states, xyxy, pixels, to be drawn; None where it states no four numbers
    """

    kind: str
    place: str
    text: str
    image: int
    annotation: int
    box: tuple[float, float, float, float] | None = None

    @property
    def message(self) -> str:
        """Place and text in one line."""
        return f'{self.place}: {self.text}'

    def refused_by(self, policy: str) -> bool:
        """Whether a data set with this problem is refused under a policy."""
        return policy == 'error' or (policy == 'skip_box' and self.annotation < 0)


class DataError(ValueError):
    """A data set that its policy refuses.

    problems: all that was found, those that the policy would leave out included
    policies: those under which the data set would pass
    """

    def __init__(self, message: str, problems: Sequence[Problem] = (), policies: Sequence[str] = ()) -> None:
        self.what = message
        self.problems = tuple(problems)
        self.policies = tuple(policies)
        super().__init__(self.told("{}='{}'"))

    def told(self, form: str) -> str:
        """The message, with the remedy as its reader can type it.

        Args:
            form: How an argument is set: its name and its value come in the place of ``{}``.

        Returns:
            What is wrong, and what to do.
        """
        if not self.policies:
            return self.what
        words = ' or '.join(form.format('on_bad', policy) for policy in self.policies)
        text = f'{self.what}\ncorrect the files, or set {words} to leave out what is bad'
        if any(problem.kind == MISSING_LABEL for problem in self.problems):
            text += f'; if images without labels show no objects, set {form.format("missing_labels", "background")}'
        return text


class Problems:
    """The problems of one data set and what is done about them; ``found`` lists them all, in the order of discovery.

    Args:
        policy: ``'error'`` refuses the data set; ``'skip_box'`` leaves out bad annotations, and refuses it for bad
            images; ``'skip_image'`` leaves out every image with a problem; ``'report'`` is for tools.

    Raises:
        ValueError: Another policy.
    """

    def __init__(self, policy: str) -> None:
        if policy not in (*POLICIES, REPORT):
            raise ValueError(f'on_bad={policy!r} is no policy; choose one of {", ".join(POLICIES)}')
        self.policy = policy
        self.found: list[Problem] = []

    def add(
        self,
        kind: str,
        text: str,
        *,
        place: str,
        image: int = -1,
        annotation: int = -1,
        box: tuple[float, float, float, float] | None = None,
    ) -> None:
        """Note a problem; nothing is refused yet."""
        self.found.append(Problem(kind, place, text, image, annotation, box))

    def add_images(self, errors: Mapping[int, ImageError], files: Sequence[str]) -> None:
        """Note what is wrong with image files.

        Args:
            errors: By index of the image.
            files: Paths of all images.
        """
        for index, error in errors.items():
            self.add(error.kind, str(error).removeprefix(f'{files[index]}: '), place=files[index], image=index)

    def counts(self) -> dict[str, int]:
        """Number of problems per kind."""
        return dict(Counter(problem.kind for problem in self.found))

    def settle(self, source: str, cost: str = '') -> None:
        """Refuse the data set if the policy says so; else say in the log what is left out.

        Args:
            source: The annotation file, and the split where it does not tell, for the message.
            cost: What is left out with it though nothing is wrong with it, for the log.

        Raises:
            DataError: Names the first problems, the counts per kind, and the remedy.
        """
        if not self.found or self.policy == REPORT:
            return
        refused = [problem for problem in self.found if problem.refused_by(self.policy)]
        counts = ', '.join(f'{number} {kind}' for kind, number in sorted(self.counts().items()))
        if not refused:
            print_log(f'{source}: {self.policy} leaves out{cost}: {counts}', 'current', 30)
            return
        lines = [problem.message for problem in refused[:SHOWN]]
        if len(refused) > SHOWN:
            lines.append(f'... and {len(refused) - SHOWN} more')
        # Those alone that let it pass: no box is at fault where an image or a label file is missing or damaged.
        passing = [word for word in POLICIES if not any(problem.refused_by(word) for problem in self.found)]
        raise DataError('\n  '.join([f'{source} has bad data ({counts}):', *lines]), self.found, passing)

    def bad_images(self, num_images: int) -> NDArray[np.bool_]:
        """Which images the policy leaves out."""
        bad = np.zeros(num_images, dtype=bool)
        if self.policy == 'skip_image':
            bad[[problem.image for problem in self.found if problem.image >= 0]] = True
        return bad
