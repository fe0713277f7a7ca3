"""What the tests of the index share: files in memory, as they sync a lot."""

from tests.in_memory import tmp_path as tmp_path
