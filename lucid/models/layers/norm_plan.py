"""How the work on a map is divided among the programs of the kernels of BatchNorm with SiLU, and how the map lies.

The sizes go by the shape of a map alone, so that two runs sum in the same order. A kernel is compiled for each set of
sizes, which takes longer than thousands of launches: they are few.
"""

from typing import NamedTuple

from torch import Tensor

# Tuned by hand for one H200, of 132 multiprocessors: what it showed is in docs/records/2026-11-30-gpu-time.md.
TILE = 8192  # cells of a tile of one map; half of it where a kernel reads two maps
COLUMNS = 32  # of a tile, at most: 64 bytes of a bf16 row
PROGRAMS = 256  # of a pass that sums; the next pass reads as many partial sums
WRITERS = 512  # programs of a pass that writes
WARPS = 8


class Rows(NamedTuple):
    """How a map lies.

    last:   channels_last
    stride: elements from one row to the next if so, else from one image to the next
    """

    last: bool
    stride: int


class Plan(NamedTuple):
    """How the rows are divided among the programs of a kernel, and of one pass its grid."""

    block_r: int
    block_c: int
    rows_per_program: int
    num_programs: int
    num_blocks: int  # of columns

    @property
    def grid(self) -> tuple[int, int]:
        """Programs along the rows and along the columns."""
        return self.num_programs, self.num_blocks


def plan(num_rows: int, num_columns: int, *, last: bool, num_maps: int, num_programs: int) -> Plan:
    """Divide the rows into parts of whole tiles, about ``num_programs`` over all columns.

    Args:
        num_rows: Cells of the map.
        num_columns: Channels.
        last: Whether the map is channels_last; else a tile has one column, along which memory runs.
        num_maps: How many maps the kernel reads.
        num_programs: Aim, for the whole grid.

    Returns:
        The plan; its ``num_programs`` is that along the rows.
    """
    block_c = min(_power_of_two(num_columns), COLUMNS) if last else 1
    block_r = TILE // num_maps // block_c
    num_blocks = -(-num_columns // block_c)
    tiles = -(-num_rows // block_r)
    tiles_per_program = -(-tiles // max(1, num_programs // num_blocks))
    rows_per_program = tiles_per_program * block_r
    return Plan(block_r, block_c, rows_per_program, -(-num_rows // rows_per_program), num_blocks)


def rows_of(x: Tensor) -> Rows | None:
    """How ``x`` (B, C, H, W) lies, a slice of the channels of a larger map too; None where no kernel can read it so."""
    batch, channels, height, width = x.shape
    image, _, row, cell = x.stride()
    spatial = height * width
    # The stride of a dimension of size 1 may be anything.
    apart = cell if width > 1 else row if height > 1 else image if batch > 1 else channels

    def lies(*strides: int) -> bool:
        return all(n == 1 or a == b for n, a, b in zip(x.shape, x.stride(), strides, strict=True))

    if apart >= channels and lies(spatial * apart, 1, width * apart, apart):
        return Rows(True, apart)
    if lies(image, spatial, width, 1):
        return Rows(False, image if batch > 1 else channels * spatial)
    return None


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def room_of(num_parts: int, num_columns: int) -> int:
    """Room for the parts of a pass that sums, in the next one: a power of two, of which there are few.

    Where 16 does not divide the columns it is the largest alone: such maps are small in the networks, and as many of
    their programs fit on a multiprocessor as with the smallest.
    """
    return _power_of_two(PROGRAMS if num_columns % 16 else max(64, num_parts))
