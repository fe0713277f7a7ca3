"""The state of a model after some tokens, kept in RAM and on disk: for models whose state is more than keys and values.

`Snapshots` keeps and finds them, `SnapshotSession` reads a prompt from the longest kept beginning on.
"""

from livingkv.snapshots.key import SnapshotKey, fresh_cache, snapshot_key
from livingkv.snapshots.session import SnapshotSession, Turn, assistant_header, cache_argument, greedy, header_start
from livingkv.snapshots.snapshots import Restored, SnapshotCounts, Snapshots, Taken, Tier

__all__ = [
    "Restored",
    "SnapshotCounts",
    "SnapshotKey",
    "SnapshotSession",
    "Snapshots",
    "Taken",
    "Tier",
    "Turn",
    "assistant_header",
    "cache_argument",
    "fresh_cache",
    "greedy",
    "header_start",
    "snapshot_key",
]
