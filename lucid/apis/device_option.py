"""The device that a command line names."""

import argparse

import torch


def device_option(text: str) -> str:
    """The value of ``--device``, for argparse, which refuses a device that is not there before anything is measured."""
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    try:
        device = torch.device(text)
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(f'{text!r} does not exist; use cpu, cuda or cuda:N') from error
    if device.type not in ('cpu', 'cuda'):
        raise argparse.ArgumentTypeError(f'{text!r} is none that lucid runs on; use cpu, cuda or cuda:N')
    if device.type == 'cuda' and (device.index or 0) >= cards:
        raise argparse.ArgumentTypeError(f'{text!r} is not there: this machine has {cards} CUDA cards; use cpu')
    return text
