"""Files of the Hugging Face hub, through its own client and cache. HF_HUB_OFFLINE, HF_ENDPOINT and HF_TOKEN hold.

What is complete in the local hub cache is used without asking the network. A hub that cannot be reached is found out in
a few seconds. Knows nothing of what the files are for.
"""

from __future__ import annotations

import errno
import io
import logging
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from livingkv.errors import ModelDamaged, ModelNotFound
from livingkv.fingerprints import weight_files
from livingkv.model_loading import first_line, has_tokenizer

ShowBytes = Callable[[int, int], None]

_REACH_TIMEOUT_S = 4.0
_MODEL_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "merges.txt", "vocab.txt"]
_OTHER_FILES = ["*/*", "consolidated*", "*.gguf"]


def hub_file(repo: str, name: str, show: ShowBytes | None = None) -> Path:
    """The path of one file of a repository in the hub's cache, fetched if it is not there. Raises ModelNotFound."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    cached = try_to_load_from_cache(repo, name)
    if isinstance(cached, str):
        return Path(cached)
    _check_reachable(repo)
    with _hub_errors(repo):
        return Path(hf_hub_download(repo, name, tqdm_class=_bar(show)))


def hub_folder(repo: str, check: Callable[[Path], None], show: ShowBytes | None = None) -> Path:
    """The folder of a repository's config, tokenizer and safetensors weights in the hub's cache, fetched where needed.

    `check` is called with the folder when only its config is there and may raise, before any weights are fetched.
    Raises ModelNotFound.
    """
    from huggingface_hub import snapshot_download

    folder = hub_file(repo, "config.json").parent
    check(folder)
    if _is_complete(folder):
        return folder
    _check_reachable(repo)
    with _hub_errors(repo):
        folder = Path(
            snapshot_download(
                repo, allow_patterns=_MODEL_FILES, ignore_patterns=_OTHER_FILES, tqdm_class=_bar(show), max_workers=4
            )
        )
    if not _is_complete(folder):
        raise ModelNotFound(f"{repo}: the hub has no safetensors weights with a tokenizer under this id")
    return folder


def _is_complete(folder: Path) -> bool:
    try:
        files = weight_files(folder)
    except ModelDamaged:
        return False
    return bool(files) and all(file.is_file() for file in files) and has_tokenizer(folder)


def _check_reachable(repo: str) -> None:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise ModelNotFound(f"{repo}: not in the local hub cache, and HF_HUB_OFFLINE is set")
    if not _reachable(constants.ENDPOINT):
        raise ModelNotFound(f"{repo}: {constants.ENDPOINT} cannot be reached; check the network or give a local folder")


def _reachable(endpoint: str) -> bool:
    """Whether anything answers at the endpoint in time. A thread, because looking up a name obeys no timeout."""
    answered = threading.Event()

    def ask() -> None:
        request = urllib.request.Request(endpoint, method="HEAD", headers={"user-agent": "livingkv"})
        try:
            with urllib.request.urlopen(request, timeout=_REACH_TIMEOUT_S):
                answered.set()
        except urllib.error.HTTPError as error:
            error.close()
            answered.set()
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLError):  # the hub's client may know certificates that Python does not
                answered.set()
        except (OSError, ValueError):
            return

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_REACH_TIMEOUT_S + 1)
    return answered.is_set()


@contextmanager
def _hub_errors(repo: str) -> Iterator[None]:
    """Silences the hub's log and turns its errors, and those of the network under it, into ModelNotFound."""
    from huggingface_hub import errors
    from huggingface_hub.utils import logging as hub_logging

    level = hub_logging.get_verbosity()
    hub_logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    except errors.GatedRepoError as error:
        raise ModelNotFound(f"{repo}: access must be asked for on the hub; then log in with `hf auth login`") from error
    except errors.RepositoryNotFoundError as error:
        raise ModelNotFound(f"{repo}: no such model on the hub (a private one needs `hf auth login`)") from error
    except errors.EntryNotFoundError as error:
        raise ModelNotFound(f"{repo}: the hub has no such file, or it could not be fetched; try again") from error
    except (errors.HTTPError, errors.HFValidationError, OSError) as error:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ModelNotFound(f"{repo}: could not be fetched from the hub ({first_line(error)})") from error
    finally:
        hub_logging.set_verbosity(level)


def _bar(show: ShowBytes | None) -> Any:
    """A tqdm class for the hub's client that draws nothing and tells `show` the bytes."""
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*args, **{**options, "file": io.StringIO(), "disable": False})

        def display(self, *_: Any, **__: Any) -> None:
            if show and self.unit == "B":
                show(int(self.n), int(self.total or 0))

    return Bar
