"""Whether Triton's kernels can be used here, and what their making can raise.

Knows the library's errors; imports it only when asked.
"""

from __future__ import annotations

from importlib.util import find_spec
from subprocess import CalledProcessError


def has_triton() -> bool:
    """True where the library is installed; whether it can compile is seen at the first kernel."""
    return find_spec("triton") is not None


def kernel_failures() -> tuple[type[Exception], ...]:
    """What a kernel raises that cannot be compiled or launched here: no compiler, an old GPU, too little memory."""
    if not has_triton():
        return (RuntimeError, OSError, CalledProcessError)
    from triton.errors import TritonError

    return (TritonError, RuntimeError, OSError, CalledProcessError)


def first_line(error: Exception) -> str:
    """What is said of it: the first line of its text, else its name."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
