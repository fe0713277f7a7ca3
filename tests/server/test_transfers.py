"""Sessions as files: exported and imported over the wire, nothing left of them on the way."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import httpx
import pytest

from livingkv.memory import Memory
from livingkv.server import transfers
from livingkv.server.job_files import WORK
from livingkv.settings import Settings
from livingkv.store import require_portable
from livingkv.store.disk import Disk
from tests.server.serving import Json, Served, cached, said, serving, wait_until
from tests.server.test_jobs import BOOK, ended, ingested
from tests.server.test_sessions import HELLO, made, shown

BINARY = {"Content-Type": "application/octet-stream"}


def exported(served: Served, session: str, **query: Any) -> bytes:
    """A session's file."""
    answer = served.client.get(f"/v1/sessions/{session}/export", params={"user": served.user, **query})
    assert answer.status_code == 200, answer.text
    assert int(answer.headers["content-length"]) == len(answer.content)
    return answer.content


def sent(served: Served, data: bytes, headers: dict[str, str] | None = None, **query: Any) -> httpx.Response:
    """What an import is answered."""
    named = {"user": served.user, **query}
    return served.client.post("/v1/import", params=named, content=data, headers={**BINARY, **(headers or {})})


def left(served: Served) -> list[str]:
    """Files on their way."""
    folder = served.folder / f"default{WORK}"
    return [path.name for path in folder.iterdir() if path.name.startswith("file-")] if folder.exists() else []


def test_an_imported_conversation_goes_on(served: Served) -> None:
    first = served.chat(HELLO, session="talk")
    data = exported(served, "talk")
    taken = sent(served, data)
    assert taken.status_code == 409, taken.text  # its own name
    answer = sent(served, data, name="copy")
    assert answer.status_code == 201, answer.text
    assert answer.json()["kind"] == "conversation" and answer.json()["name"] == "copy"
    goes_on = served.chat(HELLO, said(first), "And the key?", session="copy")
    assert cached(goes_on) == first["usage"]["total_tokens"] and goes_on["livingkv"]["session"] == "copy"
    assert left(served) == []


def test_it_is_found_by_what_was_said_in_another_service(served: Served, tmp_path: Path) -> None:
    first = served.chat(HELLO, session="talk")
    data = exported(served, "talk")
    with serving(tmp_path / "stores") as other:
        assert sent(other, data).status_code == 201
        found = other.chat(HELLO, said(first), "And the key?")
        assert found["livingkv"]["session"] == "talk" and cached(found) == first["usage"]["total_tokens"]
        assert other.count("prefilled_tokens_total") == found["livingkv"]["prefilled_tokens"]


def test_text_alone_goes_too(served: Served) -> None:
    ended(served, ingested(served, BOOK * 20, session="notes"))
    whole, text = exported(served, "notes"), exported(served, "notes", kv=False)
    assert len(text) < len(whole) / 4
    answer = sent(served, text, name="again")
    assert answer.status_code == 201 and answer.json()["text_only"]
    assert served.stored("again").decode() == BOOK * 20


def test_a_file_is_private_on_its_way(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.chat(HELLO, session="talk")
    modes: list[int] = []
    whole = require_portable

    def look(path: Path) -> str:
        modes.extend(each.stat().st_mode & 0o777 for each in (path, path.parent))
        return whole(path)

    monkeypatch.setattr(transfers, "require_portable", look)
    assert sent(served, exported(served, "talk"), name="copy").status_code == 201
    assert modes == [0o600, 0o700] and left(served) == []


@pytest.mark.parametrize("change", ["cut", "changed", "empty", "another"])
def test_a_file_that_is_none_is_refused(served: Served, change: str) -> None:
    served.chat(HELLO, session="talk")
    data = exported(served, "talk")
    middle = len(data) // 2
    wrong = {
        "cut": data[:middle],
        "changed": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        "empty": b"",
        "another": b"PK\x03\x04" * 100,
    }[change]
    answer = sent(served, wrong, name="copy")
    assert answer.status_code == 400, answer.text
    told = answer.json()["error"]
    assert (
        told["code"] == "file_damaged"
        and told["message"].startswith("the file")
        and str(served.folder) not in answer.text
    )
    assert left(served) == []
    names = served.client.get("/v1/sessions", params={"user": served.user}).json()["sessions"]
    assert [each["name"] for each in names] == ["talk"]


def test_a_file_of_another_codec_is_refused_with_the_difference(served: Served, tmp_path: Path) -> None:
    with serving(tmp_path / "stores", settings=Settings(codec="lossless", window_tokens=1024)) as other:
        other.chat(HELLO, session="talk")
        data = exported(other, "talk")
    answer = sent(served, data)
    assert answer.status_code == 409 and answer.json()["error"]["code"] == "fingerprint_mismatch"
    assert "codec" in answer.json()["error"]["message"] and "/" not in answer.json()["error"]["message"]
    assert sent(served, data, kv=False).status_code == 201


def test_a_file_may_not_be_too_long_nor_a_name_wrong(tmp_path: Path) -> None:
    with serving(tmp_path / "stores", max_import_bytes=2048) as served:
        parts = iter([bytes(1024)] * 3)
        streamed = served.client.post("/v1/import", content=parts, headers=BINARY)
        assert streamed.status_code == 413 and "2048" in streamed.text
        assert sent(served, bytes(4096)).status_code == 413
        assert sent(served, b"x", name="a/b").status_code == 400
        assert (
            served.client.post("/v1/import", content=b"{}", headers={"Content-Type": "application/json"}).status_code
            == 415
        )
        assert left(served) == []


def test_a_full_disk_is_told(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.chat(HELLO, session="talk")
    data = exported(served, "talk")
    write = Disk.write

    def full(self: Disk, descriptor: int, parts: Any, offset: int) -> None:
        if "file-" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, descriptor, parts, offset)

    monkeypatch.setattr(Disk, "write", full)
    answer = served.client.get("/v1/sessions/talk/export", params={"user": served.user})
    assert answer.status_code == 507 and answer.json()["error"]["code"] == "storage_full"

    def no_room(path: Path) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(transfers, "_opened_new", no_room)
    assert sent(served, data, name="copy").status_code == 507
    assert left(served) == []


def test_an_encrypted_session_leaves_only_when_that_is_meant(served: Served) -> None:
    made(served, "secret", encrypt=True)
    ended(served, ingested(served, BOOK * 4, session="secret"))
    refused = served.client.get("/v1/sessions/secret/export", params={"user": served.user})
    assert refused.status_code == 400 and "encrypted" in refused.text
    answer = sent(served, exported(served, "secret", decrypt=True), name="open")
    assert answer.status_code == 201 and not answer.json()["encrypted"]


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    folder = tmp_path / "stores" / f"default{WORK}"
    folder.mkdir(parents=True)
    (folder / "file-0123.tmp").write_bytes(b"half of a session")
    with serving(tmp_path / "stores") as served:
        wait_until(lambda: left(served) == [])  # a service is ready before it


def test_the_same_import_is_done_once(served: Served) -> None:
    served.chat(HELLO, session="talk")
    data, key = exported(served, "talk"), {"Idempotency-Key": "import-1"}
    first = sent(served, data, key, name="copy")
    assert first.status_code == 201
    assert sent(served, data, key, name="copy").json() == first.json()
    served.chat("Quite another talk.", session="else")
    other = sent(served, exported(served, "else"), key, name="copy")
    assert other.status_code == 409 and other.json()["error"]["code"] == "idempotency_key_reused"
    assert shown(served, "copy")["turns"] == 1


def names_of(served: Served) -> list[Json]:
    """All sessions."""
    return list(served.client.get("/v1/sessions", params={"user": served.user}).json()["sessions"])


def test_a_whole_memory_reads_what_came(tmp_path: Path) -> None:
    with serving(tmp_path / "stores") as served:
        ended(served, ingested(served, BOOK * 20, session="notes"))
        assert sent(served, exported(served, "notes"), name="copy").status_code == 201
        assert {each["name"] for each in names_of(served)} == {"notes", "copy"}
    with Memory.open(tmp_path / "stores" / "default", read_only=True) as memory:
        assert memory.text("copy").decode() == BOOK * 20 and memory.check().problems == ()
