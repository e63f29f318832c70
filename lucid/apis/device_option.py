"""The device that a caller or a command line names."""

import argparse

import torch


def find_device(name: str | torch.device | None) -> torch.device:
    """The device of a name.

    Args:
        name: As of ``torch.device``; None is the first card, or the CPU where there is none.

    Returns:
        The device, which is there.

    Raises:
        ValueError: This machine, or lucid, has no such device.
    """
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    try:
        device = torch.device(name if name is not None else 'cuda' if cards else 'cpu')
    except RuntimeError as error:
        raise ValueError(f'device {name!r} does not exist; use cpu, cuda or cuda:N') from error
    if device.type not in ('cpu', 'cuda'):
        raise ValueError(f'device {name!r} is none that lucid runs on; use cpu, cuda or cuda:N')
    if device.type == 'cuda' and (device.index or 0) >= cards:
        raise ValueError(f'device {name!r} is not there: this machine has {cards} CUDA cards; use cpu')
    return device


def device_option(text: str) -> str:
    """The value of ``--device``, for argparse, which refuses a device that is not there before anything is measured."""
    try:
        find_device(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text
