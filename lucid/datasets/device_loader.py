"""A loader whose images are drawn on the device."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, Dataset, get_worker_info

from lucid.datasets.collate import detection_collate
from lucid.datasets.detection import DetectionDataset
from lucid.datasets.file_reader import FileReader
from lucid.datasets.packing import Packer
from lucid.datasets.parcel import Parcel
from lucid.structures.image_pool import ImagePool


class DeviceLoader(DataLoader):
    """torch's loader, but ``inputs`` of a batch is a ``PictureBatch``: recipes, and the files that the device lacks.

    Samplers, workers, order, resuming, errors and shutting down are torch's. Workers are processes, because recipes and
    targets are Python, of which the threads of one process run one at a time. The pool belongs to the loader, lives in
    the process that iterates it and is used by whoever draws; its memory is on that one's device.

    Attributes: ``gives_what_it_asks``, see ``batch_stream.streams``.

    Args:
        dataset: One that reads image files.
        collate_fn: ``detection_collate``, or it with options of its own.
        pool_mb: Megabytes of decoded images that stay on the device.
        jpeg: Whether the device decodes JPEG files; else all are decoded in the workers.
        **options: Of torch's loader.

    Raises:
        ValueError: The data set or ``collate_fn`` cannot leave its images undrawn.
    """

    gives_what_it_asks = True

    def __init__(
        self,
        dataset: Dataset,
        *,
        collate_fn: Callable[..., Any] = detection_collate,
        pool_mb: int = 2048,
        jpeg: bool = True,
        **options: Any,
    ) -> None:
        if not isinstance(dataset, DetectionDataset):
            raise ValueError(
                f'device_images draws pictures of one data set of image files, not of {type(dataset).__name__}; '
                'set device_images=False, or name such a data set'
            )
        if getattr(collate_fn, 'func', collate_fn) is not detection_collate:
            raise ValueError(
                "device_images needs collate_fn=dict(type='detection_collate'); set it, or no device_images"
            )
        files = FileReader() if jpeg else None
        self.pool = ImagePool(
            len(dataset),
            budget_mb=pool_mb,
            read=dataset.read_image,
            content=None if files is None else partial(_content, dataset, files),
        )
        packer = Packer(self.pool.resident, files=files)
        super().__init__(dataset, collate_fn=_Posting(partial(collate_fn, draw=packer)), **options)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return map(self._with_pool, super().__iter__())

    def _with_pool(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.pool.counts.update(batch['inputs'].counts)
        return {**batch, 'inputs': replace(batch['inputs'], pool=self.pool)}


def _content(dataset: DetectionDataset, files: FileReader, place: int) -> bytes | None:
    """The file of an image that the device can decode; None where it cannot."""
    source = dataset.read(place).picture.source
    assert source is not None, 'an image that no transform has touched is its file'
    (content,) = files.read([source])
    return None if content is None or files.obstacle(place, content, source.size) else content


class _Posting:
    """A collate function whose batches leave a worker as parcels."""

    def __init__(self, collate: Callable[..., Any]) -> None:
        self.collate = collate

    def __call__(self, samples: Any) -> Any:
        batch = self.collate(samples)
        return batch if get_worker_info() is None else Parcel(batch)
