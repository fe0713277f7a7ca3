"""Asks /health again and again from a process of its own, and prints how long each answer took.

    python experiments/health_probe.py URL SECONDS [TIMES_A_SECOND]

Milliseconds from the moment at which an answer was due to be asked for: one that is late makes the next ones late, too.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from urllib.parse import urlsplit


def main(url: str, seconds: float, hertz: float) -> None:
    """Print {"ms": [...], "faults": [...]}."""
    parts = urlsplit(url)
    assert parts.hostname is not None and parts.port is not None, "a service has both"
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
    took: list[float] = []
    faults: list[str] = []
    first = time.perf_counter()
    while (due := first + len(took) / hertz) < first + seconds:
        time.sleep(max(0.0, due - time.perf_counter()))
        try:
            connection.request("GET", "/health")
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                faults.append(f"answered {answer.status}")
        except (OSError, http.client.HTTPException) as error:
            faults.append(f"{type(error).__name__}: {error}")
            connection.close()
        took.append(round(1000 * (time.perf_counter() - due), 3))
    json.dump({"ms": took, "faults": faults[:20]}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 10.0)
