"""What a store was written with. KV of one fingerprint means nothing to a model of another.

Knows the fields and how to compare them; refuses to know how they come about.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from livingkv.errors import FingerprintMismatch, RecordDamaged
from livingkv.json_fields import FieldError, Fields

_MOST_PAGE_TOKENS = 1 << 20


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Everything that stored KV depends on. Two stores are interchangeable exactly when all fields are equal.

    `rope` describes positions (theta, scaling); `format` is the version of the page bytes, not of the store's files.
    """

    model: str
    tokenizer: str
    rope: str
    dtype: str
    quantization: str
    codec: str
    page_tokens: int = 64
    format: int = 1

    def to_json(self) -> dict[str, Any]:
        """The fields as plain JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: object, what: str = "fingerprint") -> Fingerprint:
        """The fingerprint that `to_json` described.

        Raises RecordDamaged, naming `what`, if a field is missing, unknown, mistyped or out of its range.
        """
        names = {field.name for field in fields(cls)}
        try:
            given = Fields(values)
            if given.names != names:
                raise FieldError(f"the fields {', '.join(sorted(names))} are needed")
            texts = {name: given.text(name, stray_bytes=True) for name in names - {"page_tokens", "format"}}
            page_tokens = given.integer("page_tokens", lo=1, hi=_MOST_PAGE_TOKENS)
            return cls(**texts, page_tokens=page_tokens, format=given.integer("format"))
        except FieldError as error:
            raise RecordDamaged(f"{what}: {error}") from error

    def differences(self, other: Fingerprint) -> tuple[str, ...]:
        """One line for each field in which `self` (the store) and `other` (the model) differ; empty if they agree."""
        return tuple(
            f"{field.name}: the store has {_shown(self, field.name)}, the model needs {_shown(other, field.name)}"
            for field in fields(self)
            if getattr(self, field.name) != getattr(other, field.name)
        )

    def require(self, wanted: Fingerprint, path: object) -> None:
        """Raise FingerprintMismatch unless the store's fingerprint (`self`) is the wanted one."""
        differences = self.differences(wanted)
        if differences:
            raise FingerprintMismatch(
                f"{path} cannot be used with this model: {'; '.join(differences)}; "
                "open it with the model and settings that wrote it, or choose another store path"
            )


def _shown(fingerprint: Fingerprint, name: str) -> str:
    """A field's value for a message of one line."""
    value = str(getattr(fingerprint, name))
    return value if value.isprintable() else repr(value)
