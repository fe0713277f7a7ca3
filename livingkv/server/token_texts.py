"""Single tokens as OpenAI's logprobs show them: a text and its bytes, whole characters or not.

Knows byte-level and byte-fallback tokenizers; knows no logits.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenText(NamedTuple):
    """What a token stands for. In `text`, bytes that are no whole character are written as escapes."""

    text: str
    raw: bytes


class TokenTexts:
    """The tokens of one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._added = {token_id: str(token) for token_id, token in self._backend.get_added_tokens_decoder().items()}
        self._byte_of = _byte_alphabet()
        self._is_byte_level = "ByteLevel" in repr(self._backend.decoder)

    def of(self, token_id: int) -> TokenText:
        """One token."""
        raw = self._bytes(token_id)
        return TokenText(raw.decode("utf-8", "backslashreplace"), raw)

    def _bytes(self, token_id: int) -> bytes:
        token = str(self._backend.id_to_token(token_id) or "")
        if token_id in self._added:
            return token.encode()
        if self._is_byte_level:
            return b"".join(self._byte_of.get(char, char.encode()) for char in token)
        found = _BYTE.fullmatch(token)
        return bytes([int(found[1], 16)]) if found else token.replace("\u2581", " ").encode()


def _byte_alphabet() -> dict[str, bytes]:
    """GPT-2's printable stand-in for every byte: printable Latin-1 as it is, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    found = {chr(byte): bytes([byte]) for byte in printable}
    return found | {chr(0x100 + n): bytes([byte]) for n, byte in enumerate(others)}
