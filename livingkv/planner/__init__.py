"""What runs where, at what context, how fast, and what it would take: from laws with units, never by guessing.

Knows configs, sizes and prices that were given; knows no catalogue of hardware, no language model and no network.
"""
