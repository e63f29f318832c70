"""BatchNorm and SiLU as one operator, forward and backward."""

# ruff: noqa: ARG001 - what tells shapes alone takes the arguments of its operator

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.library import custom_op

KERNEL_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MAX_CELLS = 2**31 - 2**24  # rows are numbered in int32, up to a part and a tile past the last one


def fused_norm(x: Tensor, norm: nn.BatchNorm2d, *, silu: bool) -> Tensor:
    """``silu(norm(x))``, or ``norm(x)``, computed in float32, or float64 if ``x`` is, and rounded once.

    Statistics, running statistics and their counter are those of ``norm``, in training and in evaluation, written in
    place. Of the activations only ``x`` is kept for the backward, which computes the normalised value and the slope
    of SiLU again; ``nn.BatchNorm2d`` and ``nn.SiLU`` keep ``x`` and what is between them. No pass adds by atomics: the
    bits are the same in every run. They are not those of the two modules: those round in between, and sum in another
    order.

    On a card these are Triton kernels, two forward and two backward, which read and write 8 maps in place of 13;
    elsewhere, and in float64, torch's operators.

    Args:
        x: (B, C, H, W), channels_last or contiguous.
        norm: A plain one: see ``can_fuse``.
        silu: False leaves SiLU out.

    Returns:
        (B, C, H, W) in the dtype and the memory format of ``x``.

    Raises:
        ValueError: A channel has one value in training, as ``nn.BatchNorm2d`` says, or the map is not of the channels
            of ``norm``.
    """
    # Not left to the kernels: they would read, and write running statistics, past the end.
    if x.dim() != 4 or x.shape[1] != norm.num_features:
        raise ValueError(f'expected (B, {norm.num_features}, H, W), got input size {tuple(x.shape)}')
    if not x.numel():  # has no statistics: the modules leave the running ones alone
        return nn.functional.silu(norm(x)) if silu else norm(x)
    if norm.training and x.numel() == x.shape[1]:
        raise ValueError(f'Expected more than 1 value per channel when training, got input size {tuple(x.shape)}')
    result: Tensor = _FusedNorm.apply(
        x,
        norm.weight,
        norm.bias,
        norm.running_mean,
        norm.running_var,
        norm.num_batches_tracked if norm.training else None,
        norm.momentum,
        norm.eps,
        silu,
    )
    return result


def can_fuse(norm: nn.Module) -> bool:
    """Whether ``fused_norm`` computes what ``norm`` does: BatchNorm itself, with weights and running statistics.

    These must be dense: the kernels count on one number after the other.
    """
    if type(norm) is not nn.BatchNorm2d or norm.momentum is None or not norm.track_running_stats:
        return False
    state = norm.weight, norm.bias, norm.running_mean, norm.running_var
    return all(tensor is not None and tensor.is_contiguous() for tensor in state)


class _FusedNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor,
        running_var: Tensor,
        num_batches: Tensor | None,
        momentum: float,
        eps: float,
        silu: bool,
    ) -> Tensor:
        x = _dense(x)
        if num_batches is not None:
            y, mean, rstd = train_op(x, weight, bias, running_mean, running_var, num_batches, momentum, eps, silu)
        else:
            y, rstd = eval_op(x, weight, bias, running_mean, running_var, eps, silu)
            mean = running_mean
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        ctx.training, ctx.silu = num_batches is not None, silu
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        sums = ctx.training or any(ctx.needs_input_grad[1:3])
        dx, dweight, dbias = backward_op(dy, *ctx.saved_tensors, ctx.training, sums, ctx.silu)
        found = (dx, dweight, dbias)
        return *(g if needed else None for g, needed in zip(found, ctx.needs_input_grad, strict=False)), *(None,) * 6


@custom_op('lucid::norm_train', mutates_args=('running_mean', 'running_var', 'num_batches'))
def train_op(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    num_batches: Tensor,
    momentum: float,
    eps: float,
    silu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Result, mean and 1 / standard deviation of a dense map by its own statistics; the running ones are updated."""
    if _has_kernels(x):
        from lucid.models.layers.norm_launches import launch_forward

        with torch.cuda.device_of(x):
            return launch_forward(
                x, weight, bias, running_mean, running_var, num_batches, momentum=momentum, eps=eps, silu=silu
            )
    wide = _wide(x)
    var, mean = torch.var_mean(wide, dim=(0, 2, 3), correction=0)
    num_rows = x.numel() // x.shape[1]
    running_mean.mul_(1 - momentum).add_(mean, alpha=momentum)
    running_var.mul_(1 - momentum).add_(var, alpha=momentum * num_rows / (num_rows - 1))
    num_batches.add_(1)
    rstd = (var + eps).rsqrt()
    return _apply(wide, weight, bias, mean, rstd, silu).to(x.dtype), mean, rstd


@custom_op('lucid::norm_eval', mutates_args=())
def eval_op(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, eps: float, silu: bool
) -> tuple[Tensor, Tensor]:
    """Result and 1 / standard deviation of a dense map by given statistics."""
    if _has_kernels(x):
        from lucid.models.layers.norm_launches import launch_forward

        with torch.cuda.device_of(x):
            y, _, rstd = launch_forward(x, weight, bias, mean, var, None, momentum=0.0, eps=eps, silu=silu)
        return y, rstd
    wide = _wide(x)
    rstd = (_wide(var) + eps).rsqrt()
    return _apply(wide, weight, bias, mean, rstd, silu).to(x.dtype), rstd


@custom_op('lucid::norm_backward', mutates_args=())
def backward_op(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    rstd: Tensor,
    training: bool,
    sums: bool,
    silu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the map, of weight and of bias; the last two are empty without ``sums``, which training needs."""
    if _has_kernels(x):
        from lucid.models.layers.norm_launches import launch_backward

        with torch.cuda.device_of(x):
            return launch_backward(dy, x, weight, bias, mean, rstd, training=training, sums=sums, silu=silu)
    hat = (_wide(x) - _column(mean)) * _column(rstd)
    du = _wide(dy)
    if silu:
        u = hat * _column(weight) + _column(bias)
        s = u.sigmoid()
        du = du * (s * (1 + u * (1 - s)))
    dweight = dbias = weight.new_empty(0)
    if sums:
        dweight, dbias = (du * hat).sum((0, 2, 3)), du.sum((0, 2, 3))
    if training:
        num_rows = x.numel() // x.shape[1]
        du = du - (_column(dbias) + hat * _column(dweight)) / num_rows
    dx = torch.empty_like(x).copy_(du * _column(rstd * weight))
    return dx, dweight.to(weight.dtype), dbias.to(bias.dtype).clone()


@train_op.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    num_batches: Tensor,
    momentum: float,
    eps: float,
    silu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    mean = torch.empty_like(running_mean, dtype=_wide_dtype(x))
    return torch.empty_like(x), mean, torch.empty_like(mean)


@eval_op.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, eps: float, silu: bool
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(var, dtype=_wide_dtype(var))


@backward_op.register_fake
def _(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    rstd: Tensor,
    training: bool,
    sums: bool,
    silu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    dweight, dbias = (torch.empty_like(p) if sums else p.new_empty(0) for p in (weight, bias))
    return torch.empty_like(x), dweight, dbias


def _has_kernels(x: Tensor) -> bool:
    # Not on AMD's cards, which torch calls cuda too: the kernels hold NVIDIA's assembly.
    return x.is_cuda and torch.version.hip is None and x.dtype in KERNEL_DTYPES and x.numel() < MAX_CELLS


def _dense(x: Tensor) -> Tensor:
    if x.is_contiguous(memory_format=torch.channels_last) or x.is_contiguous():
        return x
    return x.contiguous(memory_format=torch.channels_last)


def _wide_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _wide(x: Tensor) -> Tensor:
    return x.to(_wide_dtype(x))


def _column(values_C: Tensor) -> Tensor:
    return values_C[:, None, None]


def _apply(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, rstd: Tensor, silu: bool) -> Tensor:
    u = (x - _column(mean)) * _column(rstd * weight) + _column(bias)
    return u * u.sigmoid() if silu else u
