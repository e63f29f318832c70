"""What timings say about the parts of a step."""

import json

import pytest

from lucid.apis.benchmark_floor import Floor
from lucid.apis.benchmark_loading import Loading
from lucid.apis.benchmark_result import Benchmark, Estimate, Timing, plain_variant, splits
from lucid.apis.gpu_time import GpuTime, KernelTime


def timing(variant: str, accumulate: int, *rounds: float, busy: float | None = None) -> Timing:
    gpu = None if busy is None else GpuTime(busy, 100)
    return Timing(variant, accumulate, list(rounds), gpu, 200, 1.5)


def test_two_lengths_of_window_tell_a_micro_batch_from_the_end_of_a_window() -> None:
    # 10 ms each, and 6 at the end of a window: (10 + 6) / 1 and (20 + 6) / 2; of these the card works 8 and 3.
    (found,) = splits([timing('step', 1, 15.0, 16.0, 17.0, busy=11.0), timing('step', 2, 12.75, 13.0, 13.25, busy=9.5)])
    # 2 t(2) - t(1) and 2 (t(1) - t(2)), with all errors against us: 2 * 0.25 + 1 and 2 * (1 + 0.25).
    assert found.micro_batch == Estimate(10.0, 1.5)
    assert found.window_end == Estimate(6.0, 2.5)
    assert found.busy == (8.0, 3.0)


def test_more_lengths_than_two_are_fitted_and_a_card_is_not_needed() -> None:
    (found,) = splits([timing('step', n, 10.0 + 6.0 / n) for n in (4, 1, 2)])
    assert found.micro_batch.ms == pytest.approx(10.0)
    assert found.window_end.ms == pytest.approx(6.0)
    assert found.micro_batch.spread == 0.0
    assert found.busy is None


def test_one_length_tells_nothing_apart() -> None:
    assert splits([timing('eager', 2, 5.0), timing('step', 2, 4.0)]) == []
    assert splits([timing('eager', 1, 5.0), timing('eager', 1, 5.0)]) == []
    found = splits([timing('eager', 1, 5.0), timing('step', 1, 4.0), timing('step', 2, 3.0)])
    assert [split.variant for split in found] == ['step']


def test_the_figures_of_an_h200_give_the_ratio_that_compiling_is_judged_by() -> None:
    steps = [
        timing('step', 1, 23.4758, busy=22.1294),
        timing('step:compiled', 1, 18.4104, busy=17.1227),
        timing('step', 2, 21.1034, busy=19.8931),
        timing('step:compiled', 2, 16.0009, busy=14.8586),
    ]
    plain, compiled = splits(steps)
    assert plain.micro_batch.ms / compiled.micro_batch.ms == pytest.approx(18.731 / 13.5914)  # 1.378
    assert plain.busy is not None
    assert compiled.busy is not None
    assert plain.busy[0] / compiled.busy[0] == pytest.approx(17.6568 / 12.5945)  # 1.402


def test_what_is_compiled_has_a_plain_counterpart() -> None:
    assert plain_variant('network:compiled+loss:compiled, adopted') == 'network+loss, adopted'
    assert plain_variant('step') == 'step'


def test_json_has_the_floor_the_kinds_and_the_parts_of_a_step() -> None:
    kernels = [KernelTime('Memset (Device)', 1.0, 2.0), KernelTime('nvjet_tst', 3.0, 1.0)]
    steps = [
        Timing('eager', 1, [4.0, 6.0, 8.0], GpuTime(6.0, 3), 1, 2.0, host=5.0, kernels=kernels),
        timing('eager', 2, 5.0, busy=4.0),
    ]
    floor, loading = Floor(4_000_000, 2_000_000, 2e9), Loading(2, 4, [10.0, 30.0, 20.0], [5.0])
    found = Benchmark('c.py', 'network', 'bf16', 2, (64, 64), 'Card', steps, [steps[1]], floor, loading)
    read = json.loads(json.dumps(found.to_json()))
    first = read['steps'][0]
    assert (first['median'], first['spread'], first['host'], first['gpu']['busy']) == (6.0, 2.0, 5.0, 6.0)
    assert first['busy_over_floor'] == 3.0  # 4 MB at 2 GB/s are 2 ms
    assert read['parts'][0]['busy_over_floor'] == 4.0
    assert [(kind['kind'], kind['ms'], kind['share']) for kind in first['kernels']] == [
        ('convolution, matmul', 3.0, 0.75),
        ('copy, fill', 1.0, 0.25),
    ]
    assert first['kernels'][1]['kernels'] == [{'name': 'Memset (Device)', 'ms': 1.0, 'num_launches': 2.0}]
    assert read['splits'][0]['micro_batch'] == {'ms': 4.0, 'spread': 2.0}
    assert (read['floor']['step_ms'], read['loading']['loaded_median']) == (2.0, 20.0)
    assert read['environment']['torch']


def test_json_of_a_part_alone_says_none_of_the_rest() -> None:
    found = Benchmark('c.py', 'network', 'bf16', 2, (64, 64), 'cpu', [timing('eager', 1, 5.0)], [])
    read = json.loads(json.dumps(found.to_json()))
    assert (read['floor'], read['loading'], read['splits'], read['parts']) == (None, None, [], [])
    assert read['steps'][0]['busy_over_floor'] is None
