"""Tiers of pages below device memory: RAM within a budget, disk, and the seam for a remote one.

Knows no tensor: what comes out is verified bytes. `open_pages` is the door.
"""

from livingkv.tiers.arena import Register
from livingkv.tiers.counts import LowerCounts, TierCounts
from livingkv.tiers.pages import TieredPages, open_pages
from livingkv.tiers.ram import RamTier, budget_for
from livingkv.tiers.ram_entry import RamCounts
from livingkv.tiers.tier import KeepingTier, PageKey, Tier

__all__ = [
    "KeepingTier",
    "LowerCounts",
    "PageKey",
    "RamCounts",
    "RamTier",
    "Register",
    "Tier",
    "TierCounts",
    "TieredPages",
    "budget_for",
    "open_pages",
]
