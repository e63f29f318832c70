import pytest
from mmengine.config import Config

from lucid.apis import ConfigError, batch
from lucid.apis.batch import settle_batch


def config(wanted: int | None, *, size: int = 4, counts: int | None = None) -> Config:
    wrapper = {} if counts is None else {'accumulative_counts': counts}
    cfg = Config({'train_dataloader': {'batch_size': size}, 'optim_wrapper': wrapper}, filename=None)
    if wanted is not None:
        cfg.effective_batch_size = wanted
    return cfg


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> int:
    monkeypatch.setattr(batch, 'get_world_size', lambda: request.param)
    return request.param


@pytest.mark.parametrize(
    ('processes', 'wanted', 'counts'),
    [(1, 64, 16), (2, 64, 8), (8, 64, 2), (16, 64, None), (1, 4, None), (1, None, None)],
    indirect=['processes'],
)
def test_the_micro_batches_follow(processes: int, wanted: int | None, counts: int | None) -> None:
    cfg = config(wanted)
    settle_batch(cfg)
    assert cfg.optim_wrapper.get('accumulative_counts') == counts


def test_a_stated_number_that_agrees_is_fine() -> None:
    settle_batch(config(8, counts=2))
    settle_batch(config(4, counts=1))


@pytest.mark.parametrize(('wanted', 'counts', 'needs'), [(8, 3, 2), (8, 1, 2), (4, 2, 1)])
def test_a_stated_number_that_disagrees_is_an_error(wanted: int, counts: int, needs: int) -> None:
    message = f'accumulative_counts is {counts}, but effective_batch_size {wanted} needs {needs} .*state one of the two'
    with pytest.raises(ConfigError, match=message):
        settle_batch(config(wanted, counts=counts))


@pytest.mark.parametrize(
    ('processes', 'wanted', 'size', 'message'),
    [
        (1, 50, 16, r'50, no multiple of 16 .*the nearest are 48 and 64, or set train_dataloader.batch_size=10$'),
        (2, 50, 16, r'50, no multiple of 32 .*on 2 processes\); the nearest are 32 and 64, or set .*batch_size=5$'),
        (1, 8, 16, r'8, no multiple of 16 .*on 1 process\); the nearest is 16, or set .*batch_size=8$'),
        (4, 3, 2, r'3, no multiple of 8 .*the nearest is 8$'),
    ],
    indirect=['processes'],
)
def test_a_number_that_does_not_divide_names_the_nearest_that_do(
    processes: int, wanted: int, size: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        settle_batch(config(wanted, size=size))
