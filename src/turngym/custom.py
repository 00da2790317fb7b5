"""Parts of the user's own: named in settings, imported from the working folder or a package."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from pydantic import BaseModel, Field, JsonValue

from turngym.config import StrictModel
from turngym.errors import ConfigError, TrainingError, TurnGymError
from turngym.faults import describe
from turngym.plugins import import_attribute


class CustomPart(StrictModel):
    """Names a function or a class of the user's own, and what it is called with."""

    part: ClassVar[str]
    """What it is, for messages, for example ``"custom reward"``."""
    given: ClassVar[int] = 1
    """Arguments by place that a function, or a class, is called with."""
    may_wait: ClassVar[bool] = False
    """Whether it may be ``async``."""

    function: str
    """``module:attribute`` or ``path.py:attribute``."""
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """More arguments, by name."""

    @property
    def named(self) -> str:
        """What it is and where it lies, for messages."""
        return f"{self.part} {self.function!r}"

    def imported(self) -> Any:  # of the user's own making
        """Return the function or the class.

        Raises:
            ConfigError: There is none, or it does not take the settings.
        """
        found = import_attribute(self.part, self.function)
        if not callable(found):
            raise ConfigError(
                f"{self.named}: wanted a function or a class, found a {type(found).__name__}"
            )
        if self.waits(found) and not self.may_wait:
            raise ConfigError(f"{self.named}: wanted a plain function, found an 'async def'")
        try:
            inspect.signature(found).bind(*[None] * self.given, **self.settings)
        except TypeError as error:
            raise ConfigError(f"{self.named}, settings: {error}") from None
        except ValueError:  # some of C do not say what they take
            pass
        return found

    @staticmethod
    def waits(found: Any) -> bool:  # of the user's own making
        """Return whether a function, or what a class reads rewards with, is ``async``."""
        return inspect.iscoroutinefunction(getattr(found, "read", found))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Name what the user's code raises inside the block in one line, with its place.

        Raises:
            TrainingError: It raised something.
        """
        try:
            yield
        except TurnGymError:
            raise
        except (Exception, SystemExit) as error:
            raise TrainingError(f"{self.named}: {describe(error)}") from error

    def made(self, contract: type, *given: object) -> Any:  # of the user's own making
        """Return an object of the user's class.

        Args:
            contract: Class or protocol whose public methods it must have.
            given: Arguments by place.

        Raises:
            ConfigError: It lacks a method.
            TrainingError: It cannot be made.
        """
        wanted = (name for name in vars(contract) if not name.startswith("_"))
        with self.running():
            made = self.imported()(*given, **self.settings)
            missing = [name for name in wanted if not hasattr(made, name)]
        if missing:
            raise ConfigError(
                f"{self.named}: lacks {', '.join(missing)} of "
                f"{contract.__module__}.{contract.__name__}"
            )
        return made

    def checked(self, found: Any, wanted: type, method: str) -> Any:  # whatever it returned
        """Return what the user's code gave.

        Args:
            found: What it gave.
            wanted: Its type.
            method: What gave it, for the message.

        Raises:
            ConfigError: It is not a ``wanted``.
        """
        if not isinstance(found, wanted):
            raise ConfigError(
                f"{self.named}: {method} gave a {type(found).__name__}, wanted a {wanted.__name__}"
            )
        return found


def custom_parts(settings: object) -> Iterator[CustomPart]:
    """Yield every part of the user's own that ``settings`` name, however deep."""
    if isinstance(settings, CustomPart):
        yield settings
    elif isinstance(settings, BaseModel):
        for name in type(settings).model_fields:
            yield from custom_parts(getattr(settings, name))
    elif isinstance(settings, tuple):
        for each in settings:
            yield from custom_parts(each)
