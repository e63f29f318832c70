"""Drawing beside the step that the card still works on."""

from collections import deque

import torch
from torch import Tensor

from lucid.models.data_preprocessors.drawing import draw_pictures
from lucid.structures.image_pool import ImagePool
from lucid.structures.pictures import PictureBatch

AHEAD = 4
"""Steps that the host may be ahead of the card; each batch that is drawn in advance takes memory."""


class SideStreams:
    """Draws batches on streams of its own, so that they do not wait for the step before, nor it for them.

    - ``drawing`` moves recipes, reads images and draws. Images in the pool are read on it alone.
    - ``decoding`` owns the memory of decoded images, and nothing is done on it: see ``decoding.fetch_images``.
    - The current stream of the caller waits for ``drawing`` before it reads a batch, and its reading is recorded on the
      batch, so that the memory is given away after it.
    - The host waits once where another's streams used the pool before, as in a comparison of two models.
    - The host waits where it is more than ``AHEAD`` calls ahead of the caller's stream: otherwise it would draw batch
      after batch while the card works on the first.

    Args:
        device: A CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.drawing = torch.cuda.Stream(device)
        self.decoding = torch.cuda.Stream(device)
        self._reached: deque[torch.cuda.Event] = deque()

    def draw(self, batch: PictureBatch) -> Tensor:
        """Draw a batch.

        Args:
            batch: On the host, pinned where that should not wait; with its pool.

        Returns:
            uint8 (B, H, W, 3), RGB, fresh, ready on the caller's current stream.

        Raises:
            ImageError: A ValueError: a file that cannot be read, by name.
        """
        assert batch.pool is not None, 'the loader says where decoded images are kept'
        current = torch.cuda.current_stream(self.device)
        self._keep_pace(current)
        self._take_over(batch.pool)
        with torch.cuda.stream(self.drawing):
            drawn = draw_pictures(batch, batch.pool, self.device, decoding=self.decoding)
        current.wait_stream(self.drawing)
        drawn.record_stream(current)
        return drawn

    def _take_over(self, pool: ImagePool) -> None:
        """Wait until whoever used the pool before has drawn: its streams and these know nothing of each other."""
        if pool.stream not in (None, self.drawing):
            pool.stream.synchronize()
        pool.stream = self.drawing

    def _keep_pace(self, stream: torch.cuda.Stream) -> None:
        """Wait for what was asked of a stream ``AHEAD`` calls ago."""
        reached = torch.cuda.Event(blocking=True)
        reached.record(stream)
        self._reached.append(reached)
        if len(self._reached) > AHEAD:
            self._reached.popleft().synchronize()
