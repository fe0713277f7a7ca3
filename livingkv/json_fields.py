"""JSON objects as they are read from files: each field is taken with its type and range, or refused by its name.

Knows JSON and plain types; refuses to know which file it was and what its fields mean.
"""

from __future__ import annotations

import json
from reprlib import repr as short

LARGEST = (1 << 63) - 1


class FieldError(ValueError):
    """What is wrong, in a few words on one line that name the field. The caller says where."""


class Fields:
    """The fields of one JSON object. Every method raises FieldError for a field that is missing or not as wanted.

    within: what stands before a field's name in errors, for an object inside another.
    """

    def __init__(self, values: object, *, within: str = "") -> None:
        if not isinstance(values, dict):
            raise FieldError("it is not a JSON object")
        self._values: dict[str, object] = values
        self._within = within

    @classmethod
    def read(cls, data: bytes | str) -> Fields:
        """The fields of an object's JSON."""
        try:
            values = json.loads(data)
        except RecursionError as error:
            raise FieldError("it is nested too deep") from error
        except ValueError as error:  # bad UTF-8 and endless numbers are some, too
            raise FieldError(f"it is not JSON ({error})") from error
        return cls(values)

    @property
    def names(self) -> set[str]:
        """The names of all fields."""
        return set(self._values)

    def has(self, name: str) -> bool:
        """True if the field is there and not null."""
        return self._values.get(name) is not None

    def value(self, name: str) -> object:
        """A field of any type."""
        if name not in self._values:
            raise FieldError(f"{self._within}{name} is missing")
        return self._values[name]

    def integer(self, name: str, *, lo: int = 0, hi: int = LARGEST) -> int:
        """A whole number from `lo` to `hi`, both included. true and false are none."""
        value = self.value(name)
        if type(value) is not int or not lo <= value <= hi:
            raise FieldError(f"{self._within}{name} is {short(value)}, not a whole number from {lo} to {hi}")
        return value

    def flag(self, name: str) -> bool:
        """true or false."""
        value = self.value(name)
        if not isinstance(value, bool):
            raise FieldError(f"{self._within}{name} is {short(value)}, not true or false")
        return value

    def text(self, name: str, *, stray_bytes: bool = False) -> str:
        """A string that UTF-8 can hold; `stray_bytes` allows those of file names and cut text (`surrogateescape`)."""
        value = self.value(name)
        if not isinstance(value, str) or not _is_text(value, stray_bytes=stray_bytes):
            raise FieldError(f"{self._within}{name} is {short(value)}, not text")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings, stray bytes allowed."""
        value = self.value(name)
        if not isinstance(value, list) or not all(isinstance(each, str) and _is_text(each) for each in value):
            raise FieldError(f"{self._within}{name} is {short(value)}, not a list of texts")
        return tuple(value)

    def rows(self, name: str, highest: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """A list of lists of whole numbers from 0 on, each number up to its column's `highest`."""
        value = self.value(name)
        rows = value if isinstance(value, list) else [value]
        for row in rows:
            if not isinstance(row, list) or len(row) != len(highest):
                raise FieldError(f"{self._within}{name} has {short(row)}, not {len(highest)} whole numbers")
            if not all(type(each) is int and 0 <= each <= hi for each, hi in zip(row, highest, strict=True)):
                raise FieldError(f"{self._within}{name} has {short(row)}, with a number out of its range")
        return tuple(map(tuple, rows))

    def fields(self, name: str) -> Fields:
        """The fields of an object inside this one."""
        try:
            return Fields(self.value(name), within=f"{self._within}{name}.")
        except FieldError as error:
            raise FieldError(f"{name}: {error}") from error


def _is_text(value: str, *, stray_bytes: bool = True) -> bool:
    try:
        value.encode("utf-8", "surrogateescape" if stray_bytes else "strict")
    except UnicodeEncodeError:
        return False
    return True
