"""Case 22: capture in the middle of a busy process, and a failed capture in one that goes on."""

import gc
import threading

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from lucid.capture import CaptureError, CudaMemory, DynamicShapeError, HostReadError, RecordingError, quiet, recording
from lucid.capture.operators import Inspector


class Images(Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 64, 64, generator=generator)


def test_capturing_in_mid_epoch_succeeds_twenty_times_of_twenty(captured, kit):
    """Pin-memory threads query events and workers send batches; every capture must come through."""
    _, model = kit.pair(captured)
    training = kit.Training(model)
    on_cuda = captured.device.type == 'cuda'
    loader = DataLoader(
        Images(),
        batch_size=4,
        num_workers=2 if on_cuda else 0,
        pin_memory=on_cuda,
        prefetch_factor=4 if on_cuda else None,
    )
    threshold = gc.get_threshold()
    gc.set_threshold(50, 2, 2)  # a collection every few allocations
    try:
        captures = 0
        for batch in loader:
            region = captured.capture(model)
            cycles = [[] for _ in range(100)]
            for cycle in cycles:
                cycle.extend([cycle, torch.zeros(1000, device=captured.device)])
            del cycle, cycles
            training.micro_step(batch.to(captured.device, non_blocking=True))
            captures += region.routes.captures
            region.release()
    finally:
        gc.set_threshold(*threshold)
    assert captures == 20


class Item(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        y = self.norm(self.linear(x))
        return y * y.sum().item()


class Mask(Item):
    def forward(self, x):
        y = self.norm(self.linear(x))
        return y[y > 0].sum()


class Written(Item):
    def forward(self, x):
        y = self.norm(self.linear(x)).clone()
        y[y > 0] = torch.ones((), device=y.device)
        return y


class ToList(Item):
    def forward(self, x):
        y = self.norm(self.linear(x))
        return y * y.detach().sum().tolist()


class Nonzero(Item):
    def forward(self, x):
        y = self.norm(self.linear(x))
        return y.sum() * torch.nonzero(y > 0).sum()


class Branch(Item):
    def forward(self, x):
        y = self.norm(self.linear(x))
        return y if (y > 0).any() else -y


class Broken(Item):
    def forward(self, x):
        return self.norm(self.linear(x)) @ torch.zeros(7, 7, device=x.device)


class ToHost(Item):
    def forward(self, x):
        y = self.norm(self.linear(x))
        return y * y.detach().sum().cpu().to(y.device)


FAILING = [
    (Item, HostReadError, 'reads a tensor on the host'),
    (Mask, DynamicShapeError, 'aten::index with a boolean index'),
    (Written, DynamicShapeError, 'aten::index_put_ with a boolean index'),
    (ToList, HostReadError, 'Tensor.tolist'),
    (Nonzero, DynamicShapeError, 'aten::nonzero'),
    (Branch, HostReadError, 'reads a tensor on the host'),
    (Broken, RecordingError, 'RuntimeError'),
]


@pytest.mark.parametrize(('module', 'error', 'message'), FAILING)
def test_a_failing_capture_is_named_and_leaves_a_process_that_trains_on(captured, kit, module, error, message):
    broken = nn.ModuleDict({'network': module()}).to(captured.device)
    region = captured.capture(broken)
    x = torch.randn(4, 3, device=captured.device)
    state = {k: v.clone() for k, v in broken.state_dict().items()}
    generator = torch.get_rng_state()
    with pytest.raises(error, match=message):
        broken['network'](x)
    assert all(torch.equal(v, state[k]) for k, v in broken.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert gc.isenabled()
    region.release()
    if module is not Broken:
        broken['network'](x).sum().backward()
    trains_and_captures(captured, kit)


class Slow(Item):
    """What it launched before it is refused still runs when the error arrives."""

    def forward(self, x):
        torch.cuda._sleep(200_000_000)  # cycles: a tenth of a second
        return super().forward(x)


@pytest.mark.cuda
def test_a_refused_warm_up_that_still_runs_on_the_card_does_not_write_the_state_after_it_was_put_back(on_cuda):
    broken = nn.ModuleDict({'network': Slow()}).to(on_cuda.device)
    on_cuda.capture(broken)
    state = {key: value.clone() for key, value in broken.state_dict().items()}
    with pytest.raises(HostReadError):
        broken['network'](torch.randn(4, 3, device=on_cuda.device))
    torch.cuda.synchronize()
    assert all(torch.equal(value, state[key]) for key, value in broken.state_dict().items())


def trains_and_captures(captured, kit):
    """A full eager and captured training with dropout still works, and they are equal."""
    reference, candidate = kit.pair(captured, kit.Detector(dropout=0.2))
    region = captured.capture(candidate)
    runs = []
    for model in (reference, candidate):
        torch.manual_seed(5)
        runs.append(kit.Training(model).run(kit.images(3)))
    found = kit.difference(*runs)
    assert found is None, str(found)
    captured.replays(region, 3)


class FromHost(Item):
    def forward(self, x):
        return self.norm(self.linear(x)) * torch.tensor([1.0, 2.0, 3.0], device=x.device)


@pytest.mark.cuda
@pytest.mark.parametrize(
    ('module', 'message'), [(ToHost, 'between the host and the device'), (FromHost, 'from host data')]
)
def test_copies_between_host_and_device_are_named(on_cuda, kit, module, message):
    test_a_failing_capture_is_named_and_leaves_a_process_that_trains_on(on_cuda, kit, module, HostReadError, message)


class Unwatched(Inspector):
    """An inspection that sees nothing: the capture itself has to fail."""

    def run(self, body):
        pass


@pytest.mark.cuda
def test_a_capture_that_cuda_breaks_off_leaves_a_process_that_trains_on(on_cuda, kit, monkeypatch):
    """Older recordings too: they share the generator with the capture that was broken off."""
    older = kit.pair(on_cuda, kit.Detector(dropout=0.2))
    region = on_cuda.capture(older[1])
    runs = [kit.Training(model).run(kit.images(2)) for model in older]
    found = kit.difference(*runs)
    assert found is None, str(found)

    class Dropped(Item):
        def forward(self, x):
            return nn.functional.dropout(super().forward(x), 0.3)

    monkeypatch.setattr(recording, 'Inspector', Unwatched)
    monkeypatch.setattr(CudaMemory, 'num_warm_ups', 1)
    for _ in range(3):
        model = nn.ModuleDict({'network': Dropped()}).to(on_cuda.device)
        x = torch.randn(4, 3, device=on_cuda.device)
        model['network'](x).sum().backward()  # the libraries start outside the capture
        broken = on_cuda.capture(model)
        stream = torch.cuda.current_stream()
        with pytest.raises(RecordingError, match='the CUDA capture failed'):
            model['network'](x)
        assert torch.cuda.current_stream() == stream
        assert not torch.cuda.is_current_stream_capturing()
        broken.release()
        nn.functional.dropout(x, 0.5).sum().item()  # the generator is out of the capture
    monkeypatch.undo()
    trains_and_captures(on_cuda, kit)
    runs = [kit.Training(model).run(kit.images(2, seed=3)) for model in older]
    found = kit.difference(*runs)
    assert found is None, str(found)
    on_cuda.replays(region, 4)


def test_garbage_collection_and_the_weight_cache_come_back_after_an_error():
    for collecting in (True, False):
        gc.enable() if collecting else gc.disable()
        try:
            with pytest.raises(KeyboardInterrupt), quiet():  # noqa: PT012
                assert not gc.isenabled()
                assert not torch.is_autocast_cache_enabled()
                raise KeyboardInterrupt
            assert gc.isenabled() is collecting
            assert torch.is_autocast_cache_enabled()
        finally:
            gc.enable()


def test_a_capture_inside_a_capture_is_refused_and_another_thread_waits():
    order = []

    def other():
        with quiet():
            order.append('other')

    thread = threading.Thread(target=other)
    with quiet():
        with pytest.raises(CaptureError, match='inside another one'), quiet():
            pass
        thread.start()
        thread.join(timeout=0.2)
        assert thread.is_alive()
        order.append('first')
    thread.join()
    assert order == ['first', 'other']
    assert gc.isenabled()  # the waiting thread restored what was before both
