"""Exported files changed at random, their checksums made right again: taken whole, or refused with nothing done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from livingkv.errors import FingerprintMismatch, FormatUnsupported, RecordDamaged, SessionExists
from livingkv.store import require_portable
from livingkv.store.chunk_payload import FIXED_BYTES
from tests.store.foreign_files import ForeignFile, ForeignRecord, Target, importing

REFUSALS = (RecordDamaged, FormatUnsupported, FingerprintMismatch, SessionExists)


@pytest.fixture
def target(folder: Path) -> Iterator[Target]:
    """Where files are to be imported."""
    with importing(folder) as target:
        yield target


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from([-1, 1 << 64]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
numbers = st.integers(0, 9) | st.integers(0, (1 << 32) - 1)


@st.composite
def changed(draw: st.DrawFn, good: ForeignFile) -> ForeignFile:
    """A file with up to three things changed in it."""
    file = good
    for _ in range(draw(st.integers(1, 3))):
        records = list(file.records)
        at = draw(st.integers(0, max(0, len(records) - 1)))
        what = draw(st.sampled_from(["field", "json", "twice", "gone", "swapped", "number", "type", "bytes", "cut"]))
        if what == "field":
            file = file._replace(header=draw(st.binary(max_size=9))) if not file.header.startswith(b"{") else file
            if file.header.startswith(b"{"):
                file = file.with_header({draw(st.sampled_from(sorted(good.values))): draw(json_values)})
        elif what == "json":
            file = file._replace(header=draw(st.binary(max_size=9)))
        elif records:
            file = file._replace(records=tuple(draw(changed_records(records, at, what))))
    return file


@st.composite
def changed_records(draw: st.DrawFn, records: list[ForeignRecord], at: int, what: str) -> list[ForeignRecord]:
    """Records of which one is another, or stands elsewhere."""
    one = records[at]
    if what == "twice":
        return [*records[:at], one, *records[at:]]
    if what == "gone":
        return records[:at] + records[at + 1 :]
    if what == "swapped":
        return [*records[:at], *records[at + 1 :], one]
    if what == "number":
        one = one._replace(number=draw(numbers))
    elif what == "type":
        one = one._replace(record_type=draw(st.integers(0, 9)), flags=draw(st.integers(0, 3)))
    elif what == "cut":
        one = one._replace(payload=one.payload[: draw(st.integers(0, len(one.payload)))])
    elif one.payload:
        payload = bytearray(one.payload)
        end = min(len(payload), draw(st.sampled_from([FIXED_BYTES, len(payload)])))
        payload[draw(st.integers(0, end - 1))] = draw(st.integers(0, 255))
        one = one._replace(payload=bytes(payload))
    return [*records[:at], one, *records[at + 1 :]]


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), kv=st.booleans(), encrypt=st.booleans())
def test_whatever_a_file_holds_it_is_taken_whole_or_refused(
    target: Target, data: st.DataObject, kv: bool, encrypt: bool
) -> None:
    data.draw(changed(target.good), label="file").write(target.path)
    before = target.state()
    try:
        row = target.store.import_session(target.path, kv=kv, encrypt=encrypt)
    except REFUSALS as error:
        assert "\n" not in str(error)
    else:  # what was changed can be what a session may hold
        assert len(target.store.token_ids(row.session_id, 0, row.n_tokens)) == row.n_tokens
        assert len(target.store.text(row.session_id)) == row.n_bytes
        assert len(target.store.sentences_after(None, 1 << 20)) >= row.n_sentences
        target.store.export_session(row.session_id, target.path, decrypt=True)
        require_portable(target.path)
        assert target.store.check().problems == ()
        target.store.forget_session(row.session_id)
        target.store.defrag(least_dead=0.0)
        return
    assert target.state() == before
    assert target.store.check().problems == ()
