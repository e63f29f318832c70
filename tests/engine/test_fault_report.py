import json
from multiprocessing import get_context
from pathlib import Path

import torch
from mmengine.dist import get_rank

from lucid.engine.fault_report import Iteration, describe, joined, split_windows
from lucid.engine.optim_wrappers.faults import Faults


def iteration(number: int, *, bad: tuple[str, ...] = (), ended: bool = True, failed: bool = False) -> Iteration:
    return Iteration(iter=number, files=[f'{number}.jpg'], bad=bad, ended=ended, failed=failed)


def test_iterations_are_split_at_the_ends_of_windows() -> None:
    rows = [
        iteration(0, ended=False),
        iteration(1),
        iteration(2, ended=False),
        iteration(3, failed=True),
        iteration(4, ended=False),
    ]
    failed, still_open = split_windows(rows)
    assert [[each.iter for each in window] for window in failed] == [[2, 3]]
    assert [each.iter for each in still_open] == [4]


def test_the_micro_batch_whose_loss_is_bad_is_named_alone() -> None:
    window = [iteration(4, ended=False), iteration(5, bad=('loss_box', 'loss'), failed=True)]
    text = describe(window, max_iters=10, epoch=2)
    assert text == 'loss_box, loss not finite in iteration 6 of 10 (epoch 2), images 5.jpg'


def test_if_no_loss_is_bad_all_are_named() -> None:
    text = describe([iteration(4, ended=False), iteration(5, failed=True)], max_iters=10, epoch=2)
    assert text == 'gradients, but no loss, not finite in iterations 5, 6 of 10 (epoch 2), images 4.jpg, 5.jpg'


def test_one_process_has_nothing_to_join() -> None:
    windows = [[iteration(0, failed=True)]]
    assert joined(windows) is windows


def judge_in_a_process_of_two(rank: int, folder: Path) -> None:
    torch.distributed.init_process_group('gloo', init_method=f'file://{folder}/meet', rank=rank, world_size=2)
    faults = Faults(torch.device('cpu'))
    verdicts = []
    for window in range(3):
        faults.note(torch.tensor(float('nan') if window == get_rank() == 1 else 1.0))
        verdicts.append(bool(faults.judge(torch.tensor(False))))
    bad = ('loss',) if get_rank() == 1 else ()
    windows = joined([[Iteration(iter=1, files=[f'{get_rank()}.jpg'], bad=bad, ended=True, failed=True)]])
    text = describe(windows[0], max_iters=3, epoch=1)
    (folder / f'{get_rank()}.json').write_text(json.dumps([verdicts, text]))
    torch.distributed.destroy_process_group()  # or its threads may still run when the interpreter ends, which aborts


def test_processes_share_the_verdict_and_name_the_images_of_the_one_with_the_fault(tmp_path: Path) -> None:
    context = get_context('fork')
    both = [context.Process(target=judge_in_a_process_of_two, args=(rank, tmp_path)) for rank in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
        process.kill()  # one that waits for the other in vain
    assert [process.exitcode for process in both] == [0, 0]
    expected = [[False, True, False], 'loss not finite in iteration 2 of 3 (epoch 1), images 1.jpg']
    assert [json.loads((tmp_path / f'{rank}.json').read_text()) for rank in range(2)] == [expected, expected]
