"""docs/dsl.md and docs/hopper.md have every word of the DSL."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from dsl.kernels import builder

from ptxgen.dsl import (
    Fragment,
    KernelBuilder,
    Matrix,
    PackedTile,
    Pointer,
    RegisterTile,
    SharedTile,
    StagedTile,
    SwizzledTile,
    TilePointer,
    Value,
    Var,
)
from ptxgen.dsl.blackwell import Accumulator as Sums
from ptxgen.dsl.blackwell import Scales, TensorMemory, TensorOperand, TensorRing, TensorStage
from ptxgen.dsl.hopper import (
    Accumulator,
    AsyncStores,
    BoxTile,
    Cluster,
    NamedBarrier,
    PingPong,
    Ring,
    Role,
    Stage,
    TensorParameter,
    TileScheduler,
    Tma,
    WarpgroupBarrier,
    Wgmma,
)
from ptxgen.dsl.values import Vectors
from ptxgen.isa.table import rows

DOCS = Path(__file__).parents[2] / "docs"
PAGES = "".join((DOCS / name).read_text(encoding="utf-8") for name in ("dsl.md", "hopper.md", "blackwell.md"))
WORDS = set(re.findall(r"\.(\w+)", PAGES))  # k.loop, P.at, …
OF_BUILDER = (
    "add_role_user append arrive_in_cluster at_end block_depth block_path check_registers cluster_barrier "
    "dealt divided emit end_roles flight fresh innermost_loop is_in_block note_write ordered origin placed "
    "present_role refuse_breaks refuse_predicated remainder repeat_until require_all_threads "
    "require_branch require_lanes require_predicate require_present require_role require_roles_entered "
    "require_warps require_whole_role role_block scratch set_registers take_barriers warp_index"
)
RING = {"advance", "barrier", "enter", "leave", "origin", "prepare", "wait"}
INNER = {  # what the parts of the DSL use of each other
    KernelBuilder: set(OF_BUILDER.split()),
    type(builder().warp): {"extremes", "joined", "operands", "reduced", "scanned"},
    type(builder().atomic): set(),
    Vectors: set(),
    type(builder().block): set(),
    Pointer: {"address", "value"},
    TilePointer: {"address", "value"},
    SharedTile: {"row_bytes"},
    Value: set(),
    Var: set(),
    Fragment: set(),
    Accumulator: {"touch"},
    AsyncStores: set(),
    BoxTile: {"extent", "owner", "slab", "over"},
    Cluster: set(),
    NamedBarrier: set(),
    WarpgroupBarrier: set(),
    Ring: RING | {"arrive", "copied", "of_pair", "tile"},
    Role: {"begin", "enter", "has"},
    Stage: {"arrival", "close", "note_load", "use"},
    TensorParameter: {"fix"},
    TileScheduler: {"origin"},
    Tma: {"boxes"},
    PingPong: set(),
    Wgmma: set(),
    Matrix: {"element", "rows_bytes"},
    StagedTile: {"kind", "require_arrived"},
    SwizzledTile: {"chunk", "chunk_pointer", "panel_of", "stage_bytes"},
    RegisterTile: {"row_elements"},
    PackedTile: {"kind", "operand", "row_elements"},
    TensorMemory: {
        *("address", "commit", "enter", "group", "is_even", "issuing", "leave", "of_even_cta", "origin"),
        *("prepare", "require_issuing", "take"),
    },
    TensorRing: RING | {"arrive", "copied", "matrix", "names", "of_pair", "tile"},
    TensorStage: {"close", "is_of_products", "require_side", "use"},
    Sums: {"use_by_products", "use_by_threads"},
    TensorOperand: {"dtype", "fp8", "use_by_products", "use_by_threads"},
    Scales: {"columns", "of_cell"},
}


@pytest.mark.parametrize("kind", INNER, ids=lambda kind: kind.__name__)
def test_the_pages_have_every_word(kind):
    fields = {name for part in kind.__mro__ for name in getattr(part, "__slots__", ())}
    words = {word for word in dir(kind) if not word.startswith("_")} - fields - set(rows())
    assert words - INNER[kind] <= WORDS
