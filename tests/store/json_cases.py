"""JSON that a file may hold instead of what it should: what is no object, and values of any type."""

from __future__ import annotations

from hypothesis import strategies as st

HUGE = 10**400
NO_OBJECTS = [b"", b"not json", b"\xff\xfe", b"[]", b"null", b"5", b"[" * 100_000, b"7" * 5000]
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([-1, HUGE, "\ud800"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def one_line(error: Exception, path: object) -> None:
    """The error names the file in one line that is not endless."""
    assert str(path) in str(error) and "\n" not in str(error) and len(str(error)) < 700
