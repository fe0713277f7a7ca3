"""The eleven tasks of RULER that need no outside data, by name: RULER-11 without the QA tasks, never RULER.

The two question-answering tasks need SQuAD and HotpotQA and are left out. Against RULER: docstring prose instead of
essays, own word lists and own wording around the definitions, no prefix that begins the answer for the model.
"""

from __future__ import annotations

from experiments.haystack import CountTokens
from experiments.ruler.chains import chain_builder
from experiments.ruler.frequencies import common_words_builder, frequent_words_builder
from experiments.ruler.instances import Instance, Materials, fitted
from experiments.ruler.niah import NEEDLE_TASKS, needle_builder

LABEL = "RULER-11 without the QA tasks"
TASKS = (*NEEDLE_TASKS, "vt", "cwe", "fwe")
MAX_TOKENS = {**dict.fromkeys(NEEDLE_TASKS, 128), "vt": 30, "cwe": 120, "fwe": 50}
"""The longest answer of each task, in tokens."""


def make_instance(
    task: str,
    *,
    n_tokens: int,
    seed: int,
    sample: int,
    materials: Materials,
    count_tokens: CountTokens,
    example: bool = True,
) -> Instance:
    """One text and question of a task that take `n_tokens` with chat frame and answer; all follows from the arguments.

    example: vt and cwe begin with a solved small example. Raises ValueError for an unknown task, and when the materials
    or the tokens are too few.
    """
    if task not in TASKS:
        raise ValueError(f"there is no task {task}; there are {', '.join(TASKS)}")
    name = f"ruler {task} {n_tokens} {seed} {sample}"
    if task == "vt":
        build = chain_builder(name, example=example)
    elif task == "cwe":
        build = common_words_builder(materials, n_tokens, name, example=example)
    elif task == "fwe":
        build = frequent_words_builder(n_tokens, name)
    else:
        build = needle_builder(NEEDLE_TASKS[task], materials, name)
    return fitted(task, build, n_tokens=n_tokens, max_tokens=MAX_TOKENS[task], count_tokens=count_tokens)
