import json
import os
import subprocess
import sys
from pathlib import Path

from lucid.engine.fault_report import Iteration, describe, joined, split_windows

SCRIPT = """
import json
import sys
from pathlib import Path
import torch
from mmengine.dist import get_rank
from lucid.engine.fault_report import Iteration, describe, joined
from lucid.engine.optim_wrappers.faults import Faults

torch.distributed.init_process_group('gloo')
faults = Faults(torch.device('cpu'))
verdicts = []
for window in range(3):
    faults.note(torch.tensor(float('nan') if window == get_rank() == 1 else 1.0))
    verdicts.append(bool(faults.judge(torch.tensor(False))))
bad = ('loss',) if get_rank() == 1 else ()
windows = joined([[Iteration(iter=1, files=[f'{get_rank()}.jpg'], bad=bad, ended=True, failed=True)]])
text = describe(windows[0], max_iters=3, epoch=1)
Path(sys.argv[1], f'{get_rank()}.json').write_text(json.dumps([verdicts, text]))
torch.distributed.destroy_process_group()  # or its threads may still run when the interpreter ends, which aborts
"""


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


def test_processes_share_the_verdict_and_name_the_images_of_the_one_with_the_fault(tmp_path: Path) -> None:
    script = tmp_path / 'script.py'
    script.write_text(SCRIPT)
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', '2', str(script)]
    done = subprocess.run(
        [*command, str(tmp_path)],
        env={**os.environ, 'OMP_NUM_THREADS': '1', 'CUDA_VISIBLE_DEVICES': ''},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    expected = [[False, True, False], 'loss not finite in iteration 2 of 3 (epoch 1), images 1.jpg']
    assert [json.loads((tmp_path / f'{rank}.json').read_text()) for rank in range(2)] == [expected, expected]
