"""A writer or a reader of a store at work until it is killed: prints a line for everything that was acknowledged.

python -m tests.memory.at_work STORE MODEL write|read|tell
"""

from __future__ import annotations

import sys
from itertools import count

from livingkv import Memory, Settings

SETTINGS = Settings(window_tokens=256, block_tokens=64, commit_tokens=64)


def note(number: int) -> bytes:
    """What the writer ingests as its `number`th note."""
    return b"".join(b"Door %d of house %d opens with %d. " % (door, number, number * 100 + door) for door in range(9))


def said(number: int) -> list[dict[str, object]]:
    """The messages that the writer adds as its `number`th conversation."""
    turns = [("user", f"Tell me about house {number}."), ("assistant", note(number).decode())] * 2
    return [{"role": role, "content": content} for role, content in turns]


def main() -> None:
    """See the module."""
    store, model, task = sys.argv[1:]
    with Memory.open(store, model=model, settings=SETTINGS, read_only=task == "read") as memory:
        for number in count():
            if task == "write":
                memory.ingest(f"note {number}", text=note(number))
            elif task == "tell":
                memory.add_messages(said(number))
            else:
                answer = memory.ask("What opens door 5 of house 0?", mode="kv", max_tokens=4)
                assert answer.mode == "kv" and answer.reused_tokens > 0
            print(number, flush=True)


if __name__ == "__main__":
    main()
