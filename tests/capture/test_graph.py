"""What the CUDA graph does around a capture, on a machine without a card: torch.cuda is replaced by a recorder."""

import contextlib
import gc
import subprocess
import sys

import pytest
import torch

from lucid.capture import CudaMemory, HostReadError, RecordingError, TapeMemory, cuda_memory, quiet


class FakeCuda:
    """Keeps the order of calls; ``broken`` captures cannot be ended."""

    def __init__(self, monkeypatch):
        self.calls, self.broken, self.reserved, self.handles = [], False, 0, 0
        fake = self

        class Stream:
            def __init__(self, device=None):
                pass

            def wait_stream(self, other):
                fake.calls.append('wait')

        class Graph:
            capturing = False

            def capture_begin(self, pool=None, capture_error_mode='global'):
                assert capture_error_mode == 'thread_local'
                assert 'stream' in fake.calls
                self.capturing = True
                fake.calls.append(f'begin {pool}')
                fake.reserved += 100

            def capture_end(self):
                if fake.broken:
                    fake.broken = False
                    raise RuntimeError('capture was invalidated')
                if not self.capturing:
                    raise RuntimeError('no capture')
                self.capturing = False
                fake.calls.append('end')

            def reset(self):
                fake.calls.append('reset')

            def replay(self):
                fake.calls.append('replay')

        @contextlib.contextmanager
        def stream(_):
            fake.calls.append('stream')
            try:
                yield
            finally:
                fake.calls.append('stream left')

        def handle():
            fake.handles += 1
            return (0, fake.handles)

        real_zeros = torch.zeros
        monkeypatch.setattr(torch, 'zeros', lambda *size, device=None: real_zeros(*size))
        for name, value in {
            'Stream': Stream,
            'CUDAGraph': Graph,
            'stream': stream,
            'device': lambda _: contextlib.nullcontext(),
            'current_stream': lambda _: Stream(),
            'synchronize': lambda _: fake.calls.append('synchronize'),
            'empty_cache': lambda: None,
            'memory_reserved': lambda _: fake.reserved,
            'graph_pool_handle': handle,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(
            torch._C, '_cuda_endAllocateToPool', lambda *a: fake.calls.append(f'end allocate {a}'), raising=False
        )


@pytest.fixture
def cuda(monkeypatch):
    return FakeCuda(monkeypatch)


DEVICE = torch.device('cuda', 0)


def test_forward_and_backward_share_a_pool_unless_told_otherwise(cuda):
    for shared, handles in ((True, ['begin (0, 1)', 'begin (0, 1)']), (False, ['begin (0, 2)', 'begin (0, 3)'])):
        cuda.calls.clear()
        forward, backward = CudaMemory(DEVICE, shared=shared).graphs()
        assert forward.record(lambda: 'result') == 'result'
        backward.record(lambda: None)
        assert [call for call in cuda.calls if call.startswith('begin')] == handles


def test_a_pool_whose_graphs_are_gone_is_not_captured_into_again(cuda):
    memory = CudaMemory(DEVICE)
    forward, backward = memory.graphs()
    forward.record(lambda: None)
    backward.record(lambda: None)
    assert memory.num_bytes() == 200
    forward.release()
    forward.release()
    third, _ = memory.graphs()
    third.record(lambda: None)
    backward.release()
    assert memory.num_bytes() == 300  # what two of them took is the pool's as long as the third is there
    third.release()
    assert memory.num_bytes() == 0
    last, _ = memory.graphs()
    last.record(lambda: None)
    assert memory.num_bytes() == 100
    assert [c for c in cuda.calls if c.startswith('begin')] == ['begin (0, 1)'] * 3 + ['begin (0, 2)']


def test_a_target_that_raises_ends_its_capture_and_leaves_the_stream(cuda):
    forward, _ = CudaMemory(DEVICE).graphs()

    def body():
        raise HostReadError('a host read', 'do not')

    with pytest.raises(HostReadError):
        forward.record(body)
    assert cuda.calls[-3:] == ['end', 'reset', 'stream left']


def test_an_invalidated_capture_is_named_by_its_cause_and_healed(cuda):
    memory = CudaMemory(DEVICE)
    forward, _ = memory.graphs()

    def body():
        cuda.broken = True
        raise RuntimeError('operation not permitted when stream is capturing')

    with pytest.raises(RecordingError, match='not permitted when stream is capturing; remove what synchronizes'):
        forward.record(body)
    tail = cuda.calls[cuda.calls.index('begin (0, 1)') + 1 :]
    assert tail == ['end allocate (0, (0, 1))', 'synchronize', 'begin None', 'end', 'reset', 'stream left']
    again, _ = memory.graphs()
    assert again.record(lambda: 3) == 3


def test_a_warm_up_is_ordered_between_the_work_before_and_after(cuda):
    CudaMemory(DEVICE).warm_up(lambda: cuda.calls.append('body'))
    assert cuda.calls == ['wait', 'stream', 'body', 'stream left', 'wait']


def test_only_cuda_devices_have_cuda_memory(cuda):
    assert cuda_memory(torch.device('cpu')) is None
    assert isinstance(cuda_memory(DEVICE), CudaMemory)


def test_a_tape_needs_no_card():
    x = torch.ones(2)
    with quiet():
        forward, _ = TapeMemory().graphs()
        assert forward.record(lambda: x + 1).tolist() == [2.0, 2.0]
    assert gc.isenabled()


def test_capture_imports_torch_and_nothing_of_the_framework():
    code = (
        "import lucid.capture, sys; print([m for m in ('mmengine', 'mmcv', 'cv2', 'torchvision') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == '[]'
