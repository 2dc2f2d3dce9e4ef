"""A method that is called on an object, or on its class with an id: `box.kill()`, `Box.kill(id)`."""

from __future__ import annotations

import functools
from typing import Any, Callable, Generic, Optional, Type, TypeVar

T = TypeVar("T")


class either(Generic[T]):
    """Decorates the method; `by_id` then decorates what the class does."""

    def __init__(self, method: Callable[..., T]) -> None:
        self.method = method
        self._by_id: Optional[Callable[..., T]] = None
        self.__doc__ = method.__doc__

    def by_id(self, function: Callable[..., T]) -> Callable[..., T]:
        """The function gets the class, the id and the other arguments."""
        self._by_id = function
        return function

    def __get__(self, instance: Optional[object], owner: Type[Any]) -> Callable[..., T]:
        if instance is not None:
            return functools.partial(self.method, instance)
        assert self._by_id is not None
        return functools.partial(self._by_id, owner)
