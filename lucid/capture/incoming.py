"""The gradients that come into a replayed backward from outside, and the layouts that they come in."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lucid.capture.layout import Layout, alignment_of, dense_strides, layout_of, place, span

# Relearning for ever would spend the run on capturing; a backward that a recording cannot serve runs eager instead.
MAX_LEARNED = 3


class IncomingGradients:
    """Static buffers for the gradients of a recording's differentiable outputs.

    Which layout a gradient comes in, only a backward tells, after the recording was made: by the first guess it is that
    of its output. A backward recorded for one layout may round otherwise than eager for another, so that a replay
    needs exactly the recorded one; ``learned`` is what the recording should be made anew for.

    ``matter`` is off for code that brings its gradients into a layout of its own, as torch.compile does.
    """

    def __init__(self) -> None:
        self.buffers: list[Tensor] = []
        self.learned: list[Layout] | None = None
        self.matter = True
        self._given: list[Layout] | None = None
        self._num_learned = 0
        self._spans: list[Tensor | None] = []  # of those buffers that are not dense
        self._checked: list[tuple[int, tuple[int, ...], int, int]] = []  # position, strides, alignment, bytes past it
        self.fitted = False  # at least once
        self._last: list[Layout] | None = None  # what came and did not fit, with nothing that fitted since

    def follow(self, other: 'IncomingGradients') -> None:
        """Take the layouts that ``other`` has learned in place of a guess."""
        self._given, self._num_learned = other.learned, other._num_learned + 1

    def make(self, outputs: Sequence[Tensor]) -> None:
        """Make the buffers for the gradients of ``outputs``."""
        likes = [output.detach() for output in outputs]
        if self._given is None:
            self.buffers = [torch.zeros_like(like) for like in likes]
        else:
            self.buffers = [place(like, layout) for like, layout in zip(likes, self._given, strict=True)]
        self._spans = [None if b.stride() == dense_strides(b) else span(b) for b in self.buffers]
        if self.matter:  # the layout of one element says nothing
            self._checked = [
                (i, buffer.stride(), alignment_of(buffer), buffer.data_ptr() % alignment_of(buffer))
                for i, buffer in enumerate(self.buffers)
                if buffer.numel() > 1
            ]

    @property
    def may_differ(self) -> bool:
        """Whether a gradient can come in another layout than the recorded one."""
        return bool(self._checked)

    def fit(self, grads: Sequence[Tensor | None]) -> bool:
        """Whether ``grads``, one for each buffer, come in the layouts of the buffers; None fits."""
        for i, strides, alignment, past in self._checked:
            grad = grads[i]
            if grad is not None and (grad.stride() != strides or grad.data_ptr() % alignment != past):
                return False
        self.fitted, self._last = True, None
        return True

    def learn(self, grads: Sequence[Tensor | None]) -> None:
        """Note the layouts of ``grads``, which do not fit.

        The recording is to be made anew for them if none ever fitted, or if they come so for the second time in a row:
        the one batch that has an odd loss is not worth a capture.
        """
        pairs = zip(grads, self.buffers, strict=True)
        found = [layout_of(buffer if grad is None else grad) for grad, buffer in pairs]
        if (not self.fitted or found == self._last) and self._num_learned < MAX_LEARNED:
            self.learned = found
        self._last = found

    def fill(self, grads: Sequence[Tensor | None]) -> None:
        """Copy ``grads`` in, zeros for None; gradients must be off."""
        for buffer, memory, grad in zip(self.buffers, self._spans, grads, strict=True):
            if grad is None:
                buffer.zero_() if memory is None else memory.zero_()
            elif memory is None:
                buffer.copy_(grad)
            else:
                memory.copy_(span(grad))
