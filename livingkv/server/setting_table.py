"""Every setting of `livingkv serve`, once: its name, flag, variable, kind, unit, default and meaning.

Knows what settings are called and what they mean; knows no file, no environment and no command line. docs/SERVE.md has
the same table, and a test compares them.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, Literal

from livingkv.server.options import ServerOptions
from livingkv.server.setting_kinds import LIMIT, NUMBER, PATH, SECONDS, SIZE, SWITCH, TEXT, TEXTS, WHOLE, Kind, one_of
from livingkv.settings import Settings

PREFIX = "LIVINGKV_SERVE_"
CONFIG_VARIABLE = f"{PREFIX}CONFIG"
Group = Literal["service", "model", "memory"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. name: its key in a settings file, and the field of ServerOptions, Settings or ModelChoice that it
    becomes, by its group. flag: on the command line; STORE_DIR is the argument."""

    group: Group
    name: str
    flag: str
    kind: Kind
    unit: str
    meaning: str

    @property
    def variable(self) -> str:
        """In the environment. Two are other verbs' as well."""
        return _SHARED.get(self.name, f"{PREFIX}{self.name.upper()}")

    @property
    def default(self) -> Any:
        """In force where nobody says anything; None for none."""
        known = _DEFAULTS.get((self.group, self.name))
        return None if known is None or known.default is MISSING else known.default


_SHARED = {"model": "LIVINGKV_MODEL", "key_folder": "LIVINGKV_KEY_FOLDER"}
_DEFAULTS: dict[tuple[str, str], Field[Any]] = {
    (group, field.name): field
    for group, kind in (("service", ServerOptions), ("memory", Settings))
    for field in fields(kind)
}

_SERVICE = (
    ("folder", "STORE_DIR", PATH, "", "Holds a store for each tenant."),
    ("host", "--host", TEXT, "", "Address to listen on; another than this machine's own needs keys_file."),
    ("port", "--port", WHOLE, "", "0 takes any free one."),
    ("keys_file", "--keys", PATH, "", "API keys, made by keys add."),
    ("allowed_hosts", "--allow-host", TEXTS, "", "Names in Host headers besides the service's own."),
    ("allowed_origins", "--allow-origin", TEXTS, "", "Web pages from there may ask (CORS)."),
    ("n_side_by_side", "--parallel", WHOLE, "requests", "Requests side by side, each with a hot window."),
    ("max_batch", "--batch", WHOLE, "replies", "Replies that share a forward pass; 1: none, bit for bit."),
    ("n_waiting", "--queue", WHOLE, "requests", "Of each tenant may wait; one more is answered 429."),
    ("context_tokens", "--context", WHOLE, "tokens", "Longest prompt and reply; left out: the model's."),
    ("default_new_tokens", "--default-tokens", WHOLE, "tokens", "A reply that says no limit is at most this long."),
    ("max_new_tokens", "--max-tokens", WHOLE, "tokens", "A request may ask for this long a reply."),
    ("max_body_bytes", "--max-body", SIZE, "bytes", "A longer body is answered 413."),
    ("max_ingest_bytes", "--max-ingest", SIZE, "bytes", "The same for a text to ingest."),
    ("max_import_bytes", "--max-import", SIZE, "bytes", "The same for a file to import."),
    ("max_uploads", "--max-uploads", WHOLE, "requests", "Bodies that may come at once; one more is answered 503."),
    ("max_upload_bytes", "--max-upload", SIZE, "bytes", "What they may hold together, in memory; then 503."),
    ("max_sessions", "--max-sessions", WHOLE, "sessions", "Conversations of each tenant."),
    ("max_tenant_bytes", "--tenant-quota", SIZE, "bytes", "Disk space of each tenant; then 507. Left out: no limit."),
    ("requests_per_minute", "--rate", WHOLE, "requests", "Of each key in a minute; then 429. Left out: no limit."),
    (
        "state_ram_bytes",
        "--state-ram",
        SIZE,
        "bytes",
        "Of each tenant: states of a model without memory, in RAM.",
    ),
    ("state_disk_bytes", "--state-disk", SIZE, "bytes", "The same on disk, for after a restart."),
    ("idle_s", "--idle", SECONDS, "seconds", "After so long without work, sessions leave device memory and RAM."),
    ("stop_s", "--stop-after", SECONDS, "seconds", "Streams may go on for so long after SIGTERM."),
    ("log_format", "--log-format", one_of("text", "json"), "", "A line of text for each request, or of JSON."),
)
_WEIGHTS = ("bf16", "fp32", "int8", "int4", "8bit", "4bit")
_MODEL = (
    ("model", "--model", TEXT, "", "A folder, GGUF file, hub id or short name; left out: the default model."),
    ("weights", "--weights", one_of(*_WEIGHTS), "", "How weights are loaded; left out: bf16, on a CPU int8."),
    ("backend", "--backend", one_of("whole", "experts"), "", "experts: read from the model's files; left out: whole."),
    ("ram_gb", "--ram-gb", NUMBER, "10^9 bytes", "Experts may take this much memory; it goes with backend experts."),
    ("pack", "--pack", TEXT, "", "Experts are read from this pack; off: from the model's files; left out: as found."),
    ("dual_chunk", "--dual-chunk", SWITCH, "", "The model's dual-chunk positions, or none; left out: as it has them."),
)
_MEMORY = (
    ("window_tokens", "--window", WHOLE, "tokens", "Newest tokens of a conversation that are attended."),
    ("ram_budget_bytes", "--ram-budget", SIZE, "bytes", "Stored pages of each tenant may take this much memory."),
    ("disk_budget_bytes", "--disk-budget", LIMIT, "bytes", "Then each store drops KV of its coldest pages, no text."),
    ("key_folder", "--key-folder", PATH, "", "Keys of encrypted sessions; left out: in the store."),
    ("recall_tokens", "--recall", WHOLE, "tokens", "Budget of recalled passages in front of a question."),
    ("n_candidates", "--candidates", WHOLE, "sentences", "Hits that the model itself ranks."),
    ("exact_limit_s", "--exact-limit", SECONDS, "seconds", "Mode auto may read a session again for so long."),
    ("block_tokens", "--block", WHOLE, "tokens", "One forward pass; left out: by device, 64 on a CPU."),
    (
        "commit_tokens",
        "--commit",
        WHOLE,
        "tokens",
        "A long ingest is durable about every so many; on a CPU at most 512.",
    ),
    ("max_line_bytes", "--max-line", SIZE, "bytes", "A longer line is refused as not being prose."),
    ("placement", "--placement", one_of("compact", "absolute", "dual_chunk"), "", "Where recalled keys are put."),
    ("codec", "--codec", one_of("int8", "lossless"), "", "Pages of new stores; left out: int8."),
    ("span_tokens", "--span", WHOLE, "tokens", "How far documents of new stores look back; left out: 128."),
    ("embedder", "--embedder", TEXT, "", "The dense channel of new stores: tokens, states, minilm, a model's name."),
)

SETTINGS: tuple[Setting, ...] = (
    *(Setting("service", *row) for row in _SERVICE),
    *(Setting("model", *row) for row in _MODEL),
    *(Setting("memory", *row) for row in _MEMORY),
)


def setting_called(name: str) -> Setting | None:
    """The setting of this name, None if there is none."""
    return next((each for each in SETTINGS if each.name == name), None)
