"""Runs the kernels of the fused norm in Triton's interpreter, which must be on before Triton is imported.

Called by test_fused_norm.py: reads cases from the first path, writes what the kernels gave to the second. Ends with 77
where the interpreter cannot run a loop at all: that of Triton 3.6 cannot beside NumPy 2.5.
"""

import os
import sys

os.environ['TRITON_INTERPRET'] = '1'

import torch
import triton
import triton.language as tl

from lucid.models.layers import norm_launches, norm_plan

# Small tiles, so that small maps have several of them, several parts, and tails.
norm_plan.TILE, norm_plan.COLUMNS, norm_plan.PROGRAMS, norm_plan.WRITERS = 64, 8, 6, 4


@triton.jit
def probe(x, count):
    for i in range(tl.load(count)):
        tl.store(x + i, i)


try:
    probe[(1,)](torch.zeros(4, dtype=torch.int32), torch.full((1,), 4, dtype=torch.int32))
except triton.runtime.errors.InterpreterError as error:
    sys.stderr.write(str(error))
    sys.exit(77)


def run(case: dict) -> dict:
    args = [case[name] for name in ('x', 'weight', 'bias')]
    mean, var, count = case['running_mean'].clone(), case['running_var'].clone(), torch.zeros((), dtype=torch.int64)
    training, silu = case['training'], case['silu']
    y, used, rstd = norm_launches.launch_forward(
        *args, mean, var, count if training else None, momentum=0.1, eps=1e-5, silu=silu
    )
    dx, dweight, dbias = norm_launches.launch_backward(
        case['dy'], *args, used, rstd, training=training, sums=case['sums'], silu=silu
    )
    return {
        'y': y,
        'dx': dx,
        'dweight': dweight,
        'dbias': dbias,
        'running_mean': mean,
        'running_var': var,
        'num_batches_tracked': count,
    }


torch.save([run(case) for case in torch.load(sys.argv[1])], sys.argv[2])
