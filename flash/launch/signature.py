"""The arguments of a launch that are given by name, beside those of every launch."""

from __future__ import annotations

from typing import TypedDict

from flash.operands.words import AnyArray
from flash.scores.features import LaunchScores, ScoreArrays


class SequenceArguments(TypedDict, total=False):
    """The arguments about packed sequences (varlen)."""

    cu_seqlens_q: AnyArray | None
    cu_seqlens_k: AnyArray | None
    seqused_q: AnyArray | None
    seqused_k: AnyArray | None
    block_table: AnyArray | None
    max_seqlen_q: int | None


class ExplainArguments(ScoreArrays, SequenceArguments, total=False):
    """The arrays of all features of scores and of sequences, where a config has the settings."""


class LaunchArguments(LaunchScores, SequenceArguments, total=False):
    """The arguments of all features in a launch, where a config has the settings."""
