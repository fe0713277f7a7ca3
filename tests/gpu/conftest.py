"""Tiny checkpoints of mixtures of experts, as for the tests on a CPU."""

from tests.experts.conftest import checkpoint_of as checkpoint_of
from tests.experts.test_coded_equal import coded_of as coded_of
from tests.snapshots.conftest import checkpoint_folder as checkpoint_folder
