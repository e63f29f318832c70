"""What kind of work a kernel does, read off its name."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from lucid.apis.gpu_time import KernelTime

KINDS = (
    'convolution, matmul',
    'BatchNorm',
    'element-wise',
    'reduction',
    'copy, fill',
    'optimizer, foreach',
    'index, sort, scan',
    'other',
)
MATMUL, NORM, POINTWISE, REDUCTION, COPY, OPTIMIZER, INDEX, OTHER = KINDS

# The first that is found anywhere in a name, in any case, decides. The order matters: names of templates hold those of
# their arguments, such as the copy in an element-wise kernel or the index in a convolution.
_SIGNS = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        (COPY, r'^mem(cpy|set)\b'),
        # Inductor puts its heuristic's first letters before the operators that it fused.
        (POINTWISE, r'^triton_poi_'),
        (REDUCTION, r'^triton_(red|per)_'),
        (MATMUL, r'^triton_tem_'),
        (OPTIMIZER, r'multi_tensor_apply|lpnorm_cleanup|^triton_for_'),
        (NORM, r'batch_?norm|(?<![a-z])bn_'),
        (MATMUL, r'gemm|gemv|nvjet|cutlass|xmma|fprop|dgrad|wgrad|conv(?!ert)|winograd|split_?k|im2col|col2im'),
        (MATMUL, r'fft2d|dot_kernel|fmha|flash'),
        (INDEX, r'index(_|ing|func|select|put)|gather|scatter|sort|top_?k|scan|cumsum|nonzero|unique'),
        (COPY, r'copy|nchwtonhwc|nhwctonchw|converttensor|fillfunctor|transpose'),
        (REDUCTION, r'reduce|softmax|_norm_|rowwisemoments'),
        (POINTWISE, r'elementwise|pointwise'),
    )
)


class KindTime(NamedTuple):
    """The kernels of one kind: milliseconds and launches, added up, and ``share`` of the milliseconds of all kinds."""

    kind: str
    ms: float
    num_launches: float
    share: float
    kernels: list[KernelTime]


def kind_of(name: str) -> str:
    """The one of ``KINDS`` that a kernel is of, by its name as the profiler gives it.

    It says what a kernel does, not for whom: MuSGD's products are matmuls, and foreach kernels are those of gradient
    sums, of the clip and of averages too. A kernel that Inductor fused is a reduction if it reduces, whatever else it
    does; BatchNorm is in these then.
    """
    return next((kind for kind, sign in _SIGNS if sign.search(name)), OTHER)


def by_kind(kernels: Iterable[KernelTime]) -> list[KindTime]:
    """Kernels by kind, the longest kind first, and the longest kernel first in it; a kind without any is left out."""
    ranked = sorted(kernels, key=lambda kernel: -kernel.ms)
    groups: dict[str, list[KernelTime]] = {}
    for kernel in ranked:
        groups.setdefault(kind_of(kernel.name), []).append(kernel)
    total = sum(kernel.ms for kernel in ranked) or 1.0
    found = [
        KindTime(kind, ms := sum(one.ms for one in group), sum(one.num_launches for one in group), ms / total, group)
        for kind, group in groups.items()
    ]
    return sorted(found, key=lambda each: -each.ms)


def short_name(name: str) -> str:
    """A name without what most have in common: the namespaces of torch, and the void that a template returns."""
    return re.sub(r'^void |\(anonymous namespace\)::|\b(at::)?native::|\b(at|c10)::', '', name)
