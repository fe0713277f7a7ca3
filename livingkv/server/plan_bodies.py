"""The body of /v1/plan, checked. Knows fields and ranges; knows no law.

A model is named or described, never looked for under a path: what a service can read is no caller's business.
"""

from __future__ import annotations

import json
from typing import Annotated, Self

from pydantic import Field, model_validator

from livingkv.server.schemas import Json, Lenient, Number, Text

_MOST_CONFIG = 1 << 16
_MOST_INPUTS = 128
Written = Annotated[Text, Field(max_length=80)]
Name = Annotated[Text, Field(min_length=1, max_length=200)]


class Priced(Lenient):
    """Where prices are from."""

    date: Written
    region: Name
    source: Name
    currency: Written


class PlanBody(Lenient):
    """model: the served model's name, a short name, or a hub id in the local cache. config: what a config.json holds,
    instead. Neither: the served model. inputs: by symbol, a number in its own unit, a text such as 24GiB, or for
    cloud_allowed a yes or no."""

    model: Annotated[Name | None, Field(description="The served model where left out, or a cached hub id.")] = None
    config: Annotated[dict[str, Json] | None, Field(description="The content of a config.json, instead.")] = None
    inputs: dict[Name, bool | Number | Written] = Field(
        default_factory=dict,
        max_length=_MOST_INPUTS,
        description="By symbol: numbers in its unit, or texts such as 24GiB, 8.2GB/s.",
    )
    priced: Annotated[Priced | None, Field(description="Needed where a price is among the inputs.")] = None

    @model_validator(mode="after")
    def _is_one_model(self) -> Self:
        if self.model is not None and self.config is not None:
            raise ValueError("at most one of model and config is allowed")
        if self.config is not None and len(json.dumps(self.config)) > _MOST_CONFIG:
            raise ValueError(f"config: at most {_MOST_CONFIG:,} characters are allowed")
        return self
