"""The process-wide generators are what is tested, numpy's legacy one included."""
# ruff: noqa: NPY002

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from lucid.engine import checkpoint as files
from lucid.engine.generators import random_state, restore_random_state


def draw(device: torch.device) -> list[float]:
    return [random.random(), float(np.random.rand()), torch.rand(()).item(), torch.rand((), device=device).item()]


def test_generators_go_on_where_they_were_after_a_trip_through_a_file(device: torch.device, tmp_path: Path) -> None:
    files.save({'state_dict': {}, 'meta': {}, 'rng': random_state()}, tmp_path / 'a.pth')
    expected = draw(device)
    other = draw(device)
    restore_random_state(files.load(tmp_path / 'a.pth')['rng'])
    assert draw(device) == expected
    assert other != expected


def test_a_cached_normal_number_comes_too() -> None:
    np.random.randn()
    state = random_state()
    expected = np.random.randn()
    restore_random_state(state)
    assert np.random.randn() == pytest.approx(expected, abs=0)
