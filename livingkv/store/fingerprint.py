"""What a store was written with. KV of one fingerprint means nothing to a model of another.

Knows the fields and how to compare them; refuses to know how they come about.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from livingkv.errors import FingerprintMismatch, RecordDamaged


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
    def from_json(cls, values: object) -> Fingerprint:
        """The fingerprint that `to_json` described. Raises RecordDamaged if a field is missing, unknown or mistyped."""
        names = {field.name for field in fields(cls)}
        if not isinstance(values, dict) or set(values) != names:
            raise RecordDamaged(f"fingerprint: the fields {', '.join(sorted(names))} are needed")
        for name, value in values.items():
            wanted = int if name in ("page_tokens", "format") else str
            if type(value) is not wanted:
                raise RecordDamaged(f"fingerprint: {name} is {value!r}, not of type {wanted.__name__}")
        return cls(**values)

    def differences(self, other: Fingerprint) -> tuple[str, ...]:
        """One line for each field in which `self` (the store) and `other` (the model) differ; empty if they agree."""
        return tuple(
            f"{field.name}: the store has {getattr(self, field.name)}, the model needs {getattr(other, field.name)}"
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
