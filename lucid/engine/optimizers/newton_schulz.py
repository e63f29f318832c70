"""Approximate orthogonalisation by Newton-Schulz iteration, many matrices at a time.

Shape suffixes: B matrices, R rows, C columns (R <= C).
"""

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

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


def muon_directions(tensors: Sequence[Tensor], *, steps: int, dtype: torch.dtype) -> list[Tensor]:
    """Return ``0.2 * sqrt(max(A, B)) * orthogonalised(t)`` for each tensor, seen as a matrix (A, B) = (out, rest).

    The order inside ``rest`` is the logical one, whatever the strides, so that channels_last changes no bit. Tall
    matrices are transposed first.

    Args:
        tensors: Two or more dimensions each.
        steps: Newton-Schulz iterations.
        dtype: Precision of the iteration, see ``newton_schulz``.

    Returns:
        One of the shape of each tensor; they share memory with each other only.

    Source: arXiv:2502.16982, equation 4 (the factor keeps the update's RMS near AdamW's).
    """
    flat = [tensor.reshape(tensor.shape[0], -1) for tensor in tensors]
    tall = [matrix.shape[0] > matrix.shape[1] for matrix in flat]
    directions: list[Tensor] = list(flat)
    for indices in group_by_size(tensors):
        batch_BRC = torch.stack([flat[i].mT if tall[i] else flat[i] for i in indices])
        batch_BRC = newton_schulz(batch_BRC, steps=steps, dtype=dtype).mul_(0.2 * math.sqrt(batch_BRC.shape[-1]))
        for i, matrix_RC in zip(indices, batch_BRC.unbind(), strict=True):
            directions[i] = (matrix_RC.mT if tall[i] else matrix_RC).view(tensors[i].shape)
    return directions
