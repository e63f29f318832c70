"""The tables of a benchmark, with what one H200 showed."""

from io import StringIO

import pytest
from rich.console import Console

from lucid.apis.benchmark_floor import Floor
from lucid.apis.benchmark_loading import Loading
from lucid.apis.benchmark_result import Benchmark, Timing
from lucid.apis.benchmark_table import print_benchmark, print_profile
from lucid.apis.gpu_time import GpuTime, KernelTime

KERNELS = [
    KernelTime('void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int)', 1.0, 4.0),
    KernelTime('void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> > [clone .kd]', 1.0, 4.0),
    *(
        KernelTime(f'sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_{i}', 2.0, 2.5)
        for i in range(5)
    ),
]
STEPS = [
    Timing('eager', 1, [155.1427, 137.0692, 124.2046], GpuTime(21.9317, 4258), 2490, 13.37, host=140.0),
    Timing('step', 1, [23.462, 23.4758, 23.5247], GpuTime(22.1294, 4271), 2804, 1.6, host=1.256, kernels=KERNELS),
    Timing('step:compiled', 1, [18.3474, 18.4104, 18.4165], GpuTime(17.1227, 3709), 2686, 12.24, host=1.5),
    Timing('eager', 2, [136.8151, 135.5694, 121.239], GpuTime(19.9392, 3682), 2542, 0.26, host=139.0),
    Timing('step', 2, [21.06, 21.1034, 21.14], GpuTime(19.8931, 3510), 2860, 2.49, host=1.0),
    Timing('step:compiled', 2, [15.9416, 16.0009, 16.004], GpuTime(14.8586, 2948), 2686, 2.49, host=1.1),
]
ALONE = [Timing('eager', 1, [91.6724], GpuTime(14.7945, 2229), 2246, 0.11, host=90.0)]
FLOOR = Floor(16 * 474_000_000, 16 * 474_000_000, 4.3e12)  # 1.764 ms
LOADING = Loading(8, 24, [390.0, 400.0, 420.0], [380.0, 395.0, 400.0])
H200 = Benchmark('mine.py', 'network', 'bf16', 16, (480, 640), 'NVIDIA H200', STEPS, ALONE, FLOOR, LOADING)


def printed(found: Benchmark, *, profile: bool = False) -> str:
    out = StringIO()
    (print_profile if profile else print_benchmark)(found, console=Console(file=out, width=80))
    return out.getvalue()


def rows(text: str, variant: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.split()[:1] == [variant]]


def test_a_step_is_told_by_the_clock_by_the_card_and_by_the_floor() -> None:
    first, second, *_ = rows(printed(H200), 'step:compiled')
    # 18.4104 ms, 16 images, 137.0692 / 18.4104, busy, 18.4104 / 17.1227, 17.1227 / 1.7637, host
    assert first == ['step:compiled', '1', '18.4', '±0.0', '869', '7.45', '17.1', '1.075', '9.7', '1.50']
    # 14.8586 / 1.7637; times as fast as eager in windows of two
    assert second == ['step:compiled', '2', '16.0', '±0.0', '1000', '8.47', '14.9', '1.077', '8.4', '1.10']


def test_a_micro_batch_and_the_end_of_a_window_are_apart_beside_what_is_not_compiled() -> None:
    text = printed(H200)
    compiled = rows(text, 'step:compiled')[2]
    # 2 * 16.0009 - 18.4104, beside eager 2 * 135.5694 - 137.0692 and step 2 * 21.1034 - 23.4758; busy likewise
    assert compiled == ['step:compiled', '13.6', '±0.1', '9.86', '1.38', '12.6', '1.40', '4.8', '±0.1', '4.5']
    # Nothing to be compared with: dashes
    assert rows(text, 'step')[2] == ['step', '18.7', '±0.1', '7.16', '-', '17.7', '-', '4.7', '±0.1', '4.5']


def test_costs_and_the_module_alone_and_the_loader_are_told_too() -> None:
    text = printed(H200)
    assert rows(text, 'step:compiled')[3] == ['step:compiled', 'step', '1', '3709', '2686', '12', 's']
    assert rows(text, 'eager')[3] == ['eager', '1', '91.7', '±0.0', '175', '1.00', '14.8', '6.196', '8.4', '90.00']
    words = ' '.join(text.split())
    assert 'mine.py, batch 16, 640x480 px, bf16, NVIDIA H200' in words
    assert 'floor: 1.764 ms, 7.584 GB' in words
    assert 'at 4300 GB/s' in words
    assert '8 workers, rounds of 24 batches: 400 ±15 img/s loaded, 395 ±10 img/s prepared' in words


@pytest.mark.parametrize('profile', [False, True])
def test_no_line_is_cut_at_eighty_columns_but_names_of_kernels(profile: bool) -> None:
    lines = printed(H200, profile=profile).splitlines()
    assert max(map(len, lines)) <= 80
    cut = [line for line in lines if '…' in line]
    assert all('sm90' in line or 'kernel<' in line for line in cut)
    assert bool(cut) == profile


def test_the_profile_has_kinds_and_their_longest_kernels() -> None:
    text = printed(H200, profile=True)
    assert 'training step, step, acc 1' in ' '.join(text.split())
    shown = [line.split() for line in text.splitlines()]
    kind = shown.index(['10.000', '83.3%', '12', 'convolution,', 'matmul'])
    assert [row[:3] for row in shown[kind + 1 : kind + 4]] == [['2.000', '16.7%', '2']] * 3
    assert shown[kind + 4][3:] == ['copy,', 'fill']  # three kernels of five
    assert any('  vectorized_elementwise_kernel<4, FillFunctor<float>' in line for line in text.splitlines())
    assert any('ReduceOp<float> > [clone' in line for line in text.splitlines()), 'brackets are no markup'


def test_without_a_card_there_are_dashes_and_no_profile() -> None:
    timings = [Timing('eager', 1, [2.0], None, 0, 0.0), Timing('step', 1, [4.0], None, 0, 0.0)]
    found = Benchmark('mine.py', 'network', 'bf16', 16, (64, 64), 'cpu', timings, [])
    text = printed(found)
    assert 'its times say nothing about a card' in ' '.join(text.split())
    assert rows(text, 'step')[0] == ['step', '1', '4.0', '±0.0', '4000', '0.50', '-', '-', '-', '-']
    assert 'GB/s' not in text
    assert 'apart' not in text
    assert 'the CPU runs no kernels' in printed(found, profile=True)


def test_the_loader_alone_has_no_table() -> None:
    found = Benchmark('mine.py', 'network', 'bf16', 16, (64, 64), 'cpu', [], [], None, LOADING)
    assert printed(found).startswith('data loader alone')
    assert 'variant' not in printed(found)
