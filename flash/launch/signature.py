"""The arguments of a launch that are given by name, beside those of every launch."""

from __future__ import annotations

from typing import TypedDict

from flash.scores.features import LaunchScores, ScoreArrays


class SequenceArguments(TypedDict, total=False):
    """The arguments about packed sequences (varlen)."""

    cu_seqlens_q: object
    cu_seqlens_k: object
    seqused_q: object
    seqused_k: object
    block_table: object
    max_seqlen_q: int | None


class ExplainArguments(ScoreArrays, SequenceArguments, total=False):
    """The arrays of all features of scores and of sequences, where a config has the settings."""


class LaunchArguments(LaunchScores, SequenceArguments, total=False):
    """The arguments of all features in a launch, where a config has the settings."""
