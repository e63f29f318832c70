"""Approximate orthogonalisation by Newton-Schulz iteration, many matrices at a time.

Shape suffixes: B matrices, R rows, C columns (R <= C).
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from lucid.streams import side_by_side

QUINTIC = (3.4445, -4.7750, 2.0315)


def newton_schulz(matrices_BRC: Tensor, *, steps: int = 5, dtype: torch.dtype = torch.float32) -> Tensor:
    """Move the singular values of each matrix towards 1, keeping its singular vectors.

    The quintic map does not converge: from 5 steps on, values that were not tiny end between about 0.7 and 1.2.
    A zero matrix stays zero.

    Args:
        matrices_BRC: Floating point, at most as many rows as columns.
        steps: Iterations.
        dtype: Precision of the iteration; float32 means the larger of float32 and the input's. The norm is never
            taken in less than float32.

    Returns:
        Fresh memory, in the shape and dtype of the input.

    Source: K. Jordan, Muon (2024); arXiv:2502.16982, section 2.
    """
    a, b, c = QUINTIC
    wide = torch.promote_types(matrices_BRC.dtype, torch.float32)
    x_BRC = matrices_BRC.to(wide)
    x_BRC = x_BRC / (torch.linalg.vector_norm(x_BRC, dim=(-2, -1), keepdim=True) + 1e-7)
    x_BRC = x_BRC.to(wide if dtype == torch.float32 else dtype)
    for _ in range(steps):
        gram_BRR = x_BRC @ x_BRC.mT
        polynomial_BRR = torch.baddbmm(gram_BRR, gram_BRR, gram_BRR, beta=b, alpha=c)
        x_BRC = torch.baddbmm(x_BRC, polynomial_BRR, x_BRC, beta=a)
    return x_BRC.to(matrices_BRC.dtype)


def group_by_size(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Indices of ``tensors`` that iterate together: equal (rows, columns) once wide, dtype and device."""
    groups: dict[tuple, list[int]] = defaultdict(list)
    for index, tensor in enumerate(tensors):
        rows, columns = tensor.shape[0], math.prod(tensor.shape[1:])
        groups[min(rows, columns), max(rows, columns), tensor.dtype, tensor.device].append(index)
    return list(groups.values())


def muon_directions(tensors: Sequence[Tensor], *, steps: int, dtype: torch.dtype, lanes: int = 1) -> list[Tensor]:
    """Return ``0.2 * sqrt(max(A, B)) * orthogonalised(t)`` for each tensor, seen as a matrix (A, B) = (out, rest).

    The order inside ``rest`` is the logical one, whatever the strides, so that channels_last changes no bit. Tall
    matrices are transposed first.

    Args:
        tensors: Two or more dimensions each.
        steps: Newton-Schulz iterations.
        dtype: Precision of the iteration, see ``newton_schulz``.
        lanes: On a card, streams that the groups of equal sizes take in turn; the bits are the same.

    Returns:
        One of the shape and, where these are dense, the strides of each tensor, without which ``torch._foreach_*``
        takes a kernel per tensor; they share memory with each other only.

    Source: arXiv:2502.16982, equation 4 (the factor keeps the update's RMS near AdamW's).
    """
    groups = group_by_size(tensors)
    calls = [partial(_directions, [tensors[i] for i in group], steps=steps, dtype=dtype) for group in groups]
    directions = list(tensors)
    for group, found in zip(groups, side_by_side(calls, lanes=lanes), strict=True):
        for i, direction in zip(group, found, strict=True):
            directions[i] = direction
    return directions


def _directions(tensors: Sequence[Tensor], *, steps: int, dtype: torch.dtype) -> list[Tensor]:
    """``muon_directions`` of tensors that iterate together."""
    alike: dict[tuple[torch.Size, tuple[int, ...]], list[int]] = defaultdict(list)
    for i, tensor in enumerate(tensors):
        alike[tensor.shape, tensor.stride()].append(i)
    parts = [_stack([tensors[i] for i in members]) for members in alike.values()]
    batch_BRC = torch.cat([_as_wide(part) for part in parts]) if len(parts) > 1 else _as_wide(parts[0]).contiguous()
    batch_BRC = newton_schulz(batch_BRC, steps=steps, dtype=dtype)
    factor = 0.2 * math.sqrt(batch_BRC.shape[-1])
    directions = list(tensors)
    for members, part, matrices in zip(
        alike.values(), parts, batch_BRC.split([len(part) for part in parts]), strict=True
    ):
        tall = part.shape[1] > math.prod(part.shape[2:])
        shaped = (matrices.mT if tall else matrices).unflatten(-1, part.shape[2:])
        for i, direction in zip(members, torch.mul(shaped, factor, out=torch.empty_like(part)).unbind(), strict=True):
            directions[i] = direction
    return directions


def _stack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of one shape and stride as one with a dimension more, which lies as they do; one kernel if dense."""
    first = tensors[0]
    if not (first.is_contiguous() or (first.ndim == 4 and first.is_contiguous(memory_format=torch.channels_last))):
        return torch.stack(list(tensors))
    memory = torch.stack([tensor.as_strided((tensor.numel(),), (1,)) for tensor in tensors])
    return memory.as_strided((len(tensors), *first.shape), (first.numel(), *first.stride()))


def _as_wide(stacked: Tensor) -> Tensor:
    """A stack (B, A, ...) as matrices with at most as many rows as columns, in the logical order."""
    matrices = stacked.flatten(2)
    return matrices.mT if matrices.shape[1] > matrices.shape[2] else matrices
