"""Mixture-of-experts models larger than memory: experts are read from the model's own files when tokens need them.

`load_streamed` is the door. What is computed is what transformers computes with its eager experts, bit for bit.
"""

from livingkv.experts.counts import LayerCounts, StreamCounts
from livingkv.experts.emulated_source import EmulatedSource
from livingkv.experts.formats import Format, PlainFormat
from livingkv.experts.index import ExpertIndex, IndexReport
from livingkv.experts.keys import ExpertKey, PartName
from livingkv.experts.loading import StreamedModel, load_streamed
from livingkv.experts.packing import PackReport, pack
from livingkv.experts.row_loading import OpenTables, RowSettings
from livingkv.experts.row_stage import RowCounts
from livingkv.experts.source import Source, SourceCounts
from livingkv.experts.stream import Asked, ExpertStream

__all__ = [
    "Asked",
    "EmulatedSource",
    "ExpertIndex",
    "ExpertKey",
    "ExpertStream",
    "Format",
    "IndexReport",
    "LayerCounts",
    "OpenTables",
    "PackReport",
    "PartName",
    "PlainFormat",
    "RowCounts",
    "RowSettings",
    "Source",
    "SourceCounts",
    "StreamCounts",
    "StreamedModel",
    "load_streamed",
    "pack",
]
