"""Taking the calls of one method of one model."""

from collections.abc import Callable
from types import MethodType
from typing import Any

from torch import nn


class MethodSlot:
    """Takes the calls of a method; copies and pickles of the model have their own method in its place."""

    def __init__(self, model: nn.Module, name: str, call: Callable[..., Any]) -> None:
        self._model, self._name, self._call = model, name, call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Hand the call on."""
        return self._call(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return own_method(memo.get(id(self._model), self._model), self._name)

    def __reduce__(self) -> tuple[Any, ...]:
        return own_method, (self._model, self._name)


def own_method(model: Any, name: str) -> Any:
    """The method as the model's class has it, bound."""
    return MethodType(getattr(type(model), name), model)
