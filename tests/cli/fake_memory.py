"""A small memory without a model: it keeps texts in files and finds a question's words in them.

It stands in for `livingkv.memory.Memory` in the command line's tests, with the same signatures.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from livingkv.errors import InputError, QuestionError, SourceError, StoreNotFound
from livingkv.results import Answer, Evidence, Ingested, Mode, Recall, Timings, Turn
from livingkv.settings import Settings


class Memory:
    """Keeps one JSON file per session in the store's folder."""

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self.path = path
        self.read_only = read_only

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        model: object | None = None,
        settings: Settings | None = None,
        read_only: bool = False,
        create: bool = True,
    ) -> Memory:
        """Opens the folder; makes it where allowed."""
        folder = Path(path)
        if not folder.is_dir():
            if not create:
                raise StoreNotFound(f"no store at {folder}: livingkv ingest makes one")
            folder.mkdir(parents=True)
        return cls(folder, read_only=read_only)

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: object) -> None:
        (self.path / "closed").touch()

    def ready(
        self,
        session: str = "default",
        *,
        kv: bool = True,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        """Fails for a session called "unfit"."""
        if session == "unfit":
            raise InputError("session", session, "another is needed")

    def ingest(
        self,
        source: str | Path,
        *,
        session: str = "default",
        text: bytes | None = None,
        kv: bool = True,
        encrypt: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Ingested:
        """Appends the text; the text "CRASH" makes an unexpected error, an empty one a SourceError."""
        data = Path(source).read_bytes() if text is None else text
        if not data:
            raise SourceError("source", f"{source}, which is empty", "a text is needed")
        if data == b"CRASH":
            raise RuntimeError("two\nlines")
        if progress is not None:
            progress(len(data), len(data))
        lines = self.lines(session)
        skipped = [str(source), data.decode()] in lines
        if not skipped:
            self.keep(session, [*lines, [str(source), data.decode()]])
        return Ingested(str(source), session, len(data), len(data) // 4, 1, 0.5, skipped)

    def ask(
        self,
        question: str,
        *,
        session: str | None = None,
        mode: Mode = "auto",
        max_tokens: int = 64,
        sampling: object | None = None,
        stop: Sequence[str] = (),
        on_text: Callable[[str], None] | None = None,
    ) -> Answer:
        """Answers with the first text that holds the question's last word; a question "wait" takes a minute."""
        if not question.strip():
            raise QuestionError("question", "nothing", "a question is needed")
        if question == "wait":
            print("waiting", file=sys.stderr, flush=True)
            time.sleep(60)
        word = question.split()[-1].strip("?").lower()
        hits = [line for line in self.lines(session or "default") if word in line[1].lower()]
        evidence = tuple(Evidence(text, source, "default", (64, 128), 2.5, 7.25, None) for source, text in hits[:1])
        answer = hits[0][1] if hits else "a guess"
        used: Mode = "kv" if mode == "auto" else mode
        sure = bool(hits)
        times = Timings(1000, 2, 3, 40, 1100)
        return Answer(answer, used, sure, 0.93 if sure else 0.08, evidence, 1234, 64, 9, times, "one sure passage")

    def chat(
        self,
        message: str,
        *,
        session: str = "default",
        max_tokens: int = 256,
        recall: Recall = "all",
        encrypt: bool = False,
        sampling: object | None = None,
        stop: Sequence[str] = (),
        on_text: Callable[[str], None] | None = None,
    ) -> Turn:
        """Replies with the message in capitals, in two pieces; a question is recalled from a made-up note."""
        reply = message.upper()
        if on_text is not None:
            on_text(reply[:3])
            on_text(reply[3:])
        self.keep(session, [*self.lines(session), ["chat", message]])
        turn = len(self.lines(session))
        asks = message.endswith("?") and recall != "off"
        found = (Evidence(f"A {recall}\x07 note.", "notes", "week", (64, 128), 2.5, None, None),) if asks else ()
        return Turn(reply, "kv" if asks else "resume", True, 0.9, found, 10, 5, 5, Timings(total=12), turn=turn)

    def lines(self, session: str) -> list[list[str]]:
        """Source and text of everything in the session."""
        file = self.path / f"{session}.json"
        return json.loads(file.read_text()) if file.exists() else []

    def keep(self, session: str, lines: list[list[str]]) -> None:
        """Writes the session's file."""
        (self.path / f"{session}.json").write_text(json.dumps(lines))


def fake_module() -> ModuleType:
    """A module to put in place of livingkv.memory."""
    module = ModuleType("livingkv.memory")
    module.__dict__["Memory"] = Memory
    return module


def main() -> None:
    """The command line of this process, over the fake memory."""
    sys.modules["livingkv.memory"] = fake_module()
    from livingkv.cli import main as cli_main

    cli_main()


if __name__ == "__main__":
    main()
