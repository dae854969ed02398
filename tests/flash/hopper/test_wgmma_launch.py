"""Which launches get the kernel for Hopper, and what they and its contract say of tensor maps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_arrays import without_assembler
from fake_gpu import Machine
from host_programs import Hosts, ran
from kernel_runs import Problem, assert_no_spill, nightly
from numpy.lib.stride_tricks import as_strided

from flash import AttentionConfig, AttentionKernel, DecodeKernel
from flash.contract.catalogue import build
from flash.families.wgmma import WGMMA, WgmmaTiling
from flash.launch.checks import check
from flash.launch.kernel_choice import kernel_of
from flash.launch.tile_lengths import _CAUSAL, _FULL
from flash.problem.tensor_maps import maps_of
from ptxgen.arrays.views import view
from ptxgen.contract import schema
from ptxgen.contract.stub import stub
from ptxgen.errors import ConfigError
from ptxgen.runtime.assembler import Assembler
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.runtime.plan import LaunchPlan, ParamSlot, pack
from ptxgen.target import target
from ptxgen.tensormap import TensorMap

SMALL: dict[str, Any] = {"dtype": "f16", "tile": 16, "block_q": 64}


def arrays(seq_q: int = 40, seq_k: int = 50, dim: int = 16, heads: int = 2, kv_heads: int = 1) -> Any:
    problem = Problem(seq_q, seq_k, dim, dim, heads=heads, kv_heads=kv_heads)
    return problem.arrays(dtype=np.float16)


# ------------------------------------------------------------------------------------------
# the choice


def below_the_diagonal(batch: Any, head: Any, query: Any, key: Any) -> Any:
    del batch, head
    return query >= key


def why_not(config: AttentionConfig, *, on: str = "sm_90a", alignment: int | None = None) -> str:
    said = WGMMA.why_not(config.tile_request, target(on), alignment)
    kernel = config.kernel(on, alignment)
    assert isinstance(kernel.tiling, WgmmaTiling) == (not said)
    assert ("wgmma" in kernel.name) == (not said)
    assert bool(maps_of(kernel)) == (not said)
    return said


def test_the_table_of_the_choice() -> None:
    def config(head_dim: int = 64, head_dim_v: int | None = None, **how: Any) -> AttentionConfig:
        return AttentionConfig(head_dim, head_dim_v, **{"dtype": "f16", **how})

    assert why_not(config()) == ""
    assert (
        why_not(config(256, 256, dtype="bf16", causal=True, bias="f32", dropout=0.1, stages=3, tile=16)) == ""
    )
    assert why_not(config(), on="sm_90") == "wgmma is of sm_90a alone"
    assert why_not(config(), on="sm_100") == "wgmma is of sm_90a alone"
    of_f32 = "wgmma multiplies f16 and bf16 here, and pairs of f16 for 'f32_grade'"
    assert why_not(config(dtype="f32")) == of_f32
    assert why_not(config(varlen=True, pack_gqa=True, mask_mod=below_the_diagonal)) == ""
    assert why_not(config(varlen=True, page_size=48)) == ""
    assert why_not(config(varlen=True, page_size=24)) == ""
    assert why_not(config(100)) == "tensor maps take rows of multiples of 16 bytes"
    assert why_not(config(), alignment=8) == "tensor maps take rows of multiples of 16 bytes"
    assert why_not(config(64, 256)) == ""
    wide = "head_dim_v is above 256, so that its columns are dealt to several CTAs"
    assert why_not(config(256, 512)) == wide
    assert why_not(config(block_q=32)) == "block_q=32: a warpgroup has 64 rows"
    too_large = "tile=128, block_q=128 with stages=2 does not fit shared memory"
    assert why_not(config(192, tile=128, block_q=128)) == too_large
    many = "tile=128, block_q=64 with stages=2 does not fit registers"
    assert why_not(config(64, 256, tile=128, block_q=64)) == many


def test_default_tiles_are_the_largest_that_fit() -> None:
    def tile(head_dim: int, head_dim_v: int | None = None) -> int:
        return AttentionConfig(head_dim, head_dim_v, dtype="f16", target="sm_90a").kernel().tiling.tile

    assert [tile(d) for d in (40, 64, 96, 128, 192, 256)] == [128, 128, 96, 128, 112, 80]
    assert [tile(192, 128), tile(256, 128)] == [128, 96]
    assert [tile(64, 128), tile(64, 256), tile(128, 192), tile(128, 256), tile(192, 256)] == [
        128,
        96,
        112,
        80,
        48,
    ]


def test_narrow_heads_have_blocks_of_192_queries_where_a_large_tile_fits() -> None:
    def sizes(*dims: int, **how: Any) -> tuple[int, int]:
        tiling = AttentionConfig(*dims, dtype="f16", target="sm_90a", **how).kernel().tiling
        return tiling.block_q, tiling.tile

    assert [sizes(d) for d in (40, 64, 72, 96)] == [(192, 128), (192, 128), (192, 96), (192, 96)]
    assert [sizes(*dims) for dims in ((128,), (64, 128))] == [(128, 128), (128, 128)]
    assert [sizes(64, tile=n) for n in (64, 80, 176)] == [(128, 64), (192, 80), (128, 176)]
    assert sizes(64, varlen=True, page_size=16) == (128, 128)  # the producer needs registers
    assert sizes(64, stages=4) == (192, 128)


@pytest.mark.parametrize(("size", "known"), [("tile", 112), ("tile", 176), ("block_q", 192)])
def test_other_targets_have_fewer_tiles(size: str, known: int) -> None:
    arguments: dict[str, Any] = {"dtype": "f16", size: known}
    assert getattr(AttentionConfig(64, target="sm_90a", **arguments).kernel().tiling, size) == known
    with pytest.raises(ConfigError, match=f"{size} must be one of [0-9, ]*64, 128, 'auto', got {known}"):
        AttentionConfig(64, target="sm_90", **arguments)


def test_three_warpgroups_have_no_registers_to_spare() -> None:
    def tile(**how: Any) -> int:
        config = AttentionConfig(64, dtype="f16", target="sm_90a", block_q=192, **how)
        assert isinstance(config.kernel().tiling, WgmmaTiling)
        return config.kernel().tiling.tile

    assert (tile(), tile(causal=True, window=(9, 0)), tile(softcap=5.0)) == (128, 128, 112)


@pytest.mark.sample(2, gate=3)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda q, k, v: (q, k, v), ""),
        (lambda q, k, v: (q, k[:, :, :0], v[:, :, :0]), "there are no keys"),
        (lambda q, k, v: (q, k[:, :, ::-1], v), "a stride of K is -16 elements"),
        (lambda q, k, v: (q, k, np.broadcast_to(v[:, :, :1], v.shape)), "a stride of V is 0 elements"),
        (lambda q, k, v: (q[:, :, :3], k, v), ""),  # packed
    ],
)
def test_launches_say_why_they_do_not_use_it(change: Any, reason: str) -> None:
    kernel = AttentionKernel(AttentionConfig(16, target="sm_90a", **SMALL))
    arguments = change(*arrays())
    said = kernel.explain(*arguments, backend="interpreter")
    wanted = f"mma.sync: {reason}" if reason else "wgmma, with tiles copied by TMA"
    assert f"products: {wanted}\n" in said
    out, wanted_out = (kernel.launch(*arguments, backend=backend) for backend in ("interpreter", "cpu"))
    np.testing.assert_allclose(out.astype(np.float32), wanted_out.astype(np.float32), atol=4e-3)
    other = AttentionKernel(AttentionConfig(16, target="sm_90", **SMALL))
    assert "products:" not in other.explain(*arguments, backend="interpreter")


@pytest.mark.sample(1, gate=3)
@pytest.mark.parametrize(
    ("how", "change", "reason", "tiles"),
    [
        (
            {"head_dim": 128, "window": (None, 0), "sink": True, "block_q": 192, "tile": 48},
            lambda k: k[:, :, :0],
            "there are no keys",
            "128 queries by 48 keys, 128 threads; block_q=192 is for wgmma",
        ),
        (
            {"head_dim": 40, "block_q": 192, "tile": 112},
            lambda k: np.concatenate((k[..., :1], k), axis=-1)[..., 1:],
            "tensor maps take rows of multiples of 16 bytes",
            "128 queries by 112 keys, 128 threads; block_q=192 is for wgmma",
        ),
        (
            {"head_dim": 16, "dtype": "f32", "precision": "f32_grade", "tile": 48},
            lambda k: np.broadcast_to(k[:, :, :1], k.shape),
            "a stride of K is 0 elements",
            "128 queries by 32 keys, 128 threads; tile=48 is for wgmma",
        ),
    ],
)
def test_sizes_that_wgmma_alone_has_are_left_open_where_arrays_do_not_go_with_it(
    how: dict[str, Any], change: Any, reason: str, tiles: str
) -> None:
    config = AttentionConfig(**{"dtype": "bf16", "target": "sm_90a", "return_lse": True, **how})
    assert isinstance(config.kernel().tiling, WgmmaTiling)
    dim = config.head_dim
    q, k, v = Problem(40, 50, dim, dim).arrays(dtype=config.element.numpy)
    k = change(k)
    arguments: tuple[Any, ...] = (q, k, v[:, :, : k.shape[2]])
    kernel, sink = AttentionKernel(config), {"sink": np.ones(1, np.float32)} if config.sink else {}
    said = kernel.explain(*arguments, backend="interpreter", **sink)
    assert f"products: mma.sync: {reason}\n" in said
    assert f"tiles:    {tiles}\n" in said
    result, wanted = (kernel.launch(*arguments, backend=name, **sink) for name in ("interpreter", "cpu"))
    for one, other in zip(result, wanted, strict=True):
        np.testing.assert_allclose(one.astype(np.float32), other.astype(np.float32), atol=2e-2)


@pytest.mark.slow
def test_decoding_leaves_sizes_that_wgmma_alone_has_open_too() -> None:
    config = AttentionConfig(64, dtype="f16", target="sm_90a", block_q=192, tile=128)
    q, k, v = arrays(seq_q=40, dim=64)
    k = k[:, :, ::-1]
    used = {"seqused_k": np.array([50], np.int32)}
    out, wanted = (
        DecodeKernel(config).launch(q, k, v, **used, backend=name) for name in ("interpreter", "cpu")
    )
    np.testing.assert_allclose(out.astype(np.float32), wanted.astype(np.float32), atol=4e-3)


def test_decoding_of_few_queries_does_not_use_it() -> None:
    kernel = DecodeKernel(AttentionConfig(16, dtype="f16", target="sm_90a"))
    q, k, v = arrays(seq_q=1)
    out = kernel.launch(q, k, v, seqused_k=np.array([50], np.int32), backend="interpreter")
    wanted = AttentionKernel(AttentionConfig(16, dtype="f16")).launch(q, k, v, backend="cpu")
    np.testing.assert_allclose(out.astype(np.float32), wanted.astype(np.float32), atol=4e-3)


# ------------------------------------------------------------------------------------------
# launches


@pytest.mark.sample(1, gate=2)
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_a_gpu_gets_the_tensor_maps_of_the_arrays(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without_assembler(monkeypatch)
    machine = Machine()
    config = AttentionConfig(16, target="sm_90a", causal=True, return_lse=True, **SMALL)
    kernel = AttentionKernel(config, cuda=CudaBackend(machine), cache=ModuleCache(None))
    q, k, v = arrays(dim=16)
    if layout == "bshd":
        q, k, v = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v))
    for scale in (1, 2):  # the second launch has the plan of the first
        out, lse = kernel.launch(scale * q, k, v, backend="cuda", layout=layout)
        wanted, wanted_lse = kernel.launch(scale * q, k, v, backend="interpreter", layout=layout)
        np.testing.assert_array_equal(out, wanted)
        np.testing.assert_array_equal(lse, wanted_lse)
    first = TensorMap.decode(machine.structures["Q_map"])
    assert (first.dims, first.box, first.swizzle) == ((16, 40, 2, 1), (64, 64, 1, 1), "128B")
    assert first.strides[:2] == ((32, 40 * 32) if layout == "bhsd" else (64, 32))


def test_maps_are_encoded_once_for_each_address() -> None:
    class Counting(Machine):
        encoded = 0

        def cuTensorMapEncodeTiled(self, *given: Any) -> Any:
            self.encoded += 1
            return super().cuTensorMapEncodeTiled(*given)

    driver = Counting()
    backend = CudaBackend(driver)
    of = TensorMap(1 << 20, (8, 4), "f16", (8, 4), (16,))
    assert backend.encode(of, 0) == backend.encode(of.at(1 << 20), 0) == of.encode(1 << 20)
    assert driver.encoded == 1
    assert backend.encode(of.at(1 << 21), 0) == of.encode(1 << 21)
    assert driver.encoded == 2
    with pytest.raises(ConfigError, match="must begin at a multiple of 16 bytes, got the address 0x8"):
        of.at(8)


def test_a_plan_moves_its_maps_with_the_pointers() -> None:
    of = TensorMap(1 << 20, (8, 4), "f16", (8, 4), (16,))
    slots = (ParamSlot("X", "u64", 0, 8), ParamSlot("n", "u32", 8, 4), ParamSlot("X_map", "b8", 64, 128))
    plan = LaunchPlan("k", (1, 1, 1), (1, 1, 1), 0, slots, (1 << 20, 3, of), maps=((2, 0),))
    moved = plan.with_pointers([1 << 21])
    assert moved.values[0] == 1 << 21
    assert pack(moved)[64:] == of.encode(1 << 21)
    assert pack(plan)[64:] == of.encode(1 << 20)


# ------------------------------------------------------------------------------------------
# other hosts

STRIDES = """#include "hopper.h"
int main(void)
{
    hopper_args a = {0};
    char why[200];
    a.seq_q = a.seq_k = 9, a.heads = a.kv_heads = 2, a.group = a.batch = 1;
    hopper_dense_strides(&a);
    a.Q = a.K = a.V = a.O = 4096;
    if (hopper_check(&a, why, sizeof why)) return 2;
    a.K_head_stride = -64;
    if (!hopper_check(&a, why, sizeof why)) return 1;
    return strcmp(why, "hopper: K_head_stride must be from 0 to 549755813887, got -64") ? 3 : 0;
}
"""


def test_the_contract_says_what_to_encode() -> None:
    built = build(AttentionConfig(96, 64, dtype="bf16", target="sm_90a").kernel())
    contract = built.contract
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(contract, schema())
    maps = {p["name"]: p for p in contract["parameters"] if p["kind"] == "tensor_map"}
    assert list(maps) == ["Q_map", "K_map", "V_map", "O_map"]
    assert [maps[name]["array"] for name in maps] == ["Q", "K", "V", "O"]
    of = maps["V_map"]["tensor_map"]
    assert (of["dtype"], of["address"], of["swizzle"]) == ("bf16", "V", "128B")
    assert of["dims"] == [64, "seq_k", "kv_heads", "batch"]
    assert of["strides"] == [{"times": [2, f"V_{dim}_stride"]} for dim in ("row", "head", "batch")]
    strides = {p["name"] for p in contract["parameters"] if p["kind"] == "stride"}
    assert {one["times"][1] for one in of["strides"]} <= strides
    assert (of["box"], of["access"]) == ([64, 128, 1, 1], ["load"])
    assert maps["O_map"]["tensor_map"]["access"] == ["store"]
    assert contract["sizes"]["seq_k"]["least"] == 1
    assert any("below 2**40 bytes, as tensor maps take them" in line for line in contract["constraints"])


def test_a_stub_refuses_strides_that_no_tensor_map_has(cc: Hosts, tmp_path: Path) -> None:
    built = build(AttentionConfig(64, dtype="f16", target="sm_90a").kernel())
    (tmp_path / "hopper.h").write_text(stub(built.contract, built.text, "c", "hopper"))
    main = tmp_path / "main.c"
    main.write_text(STRIDES)
    ended, _ = ran(cc.c(main))
    assert ended.code == 0
    (tmp_path / "main.c").write_text(STRIDES.replace("K_head_stride = -64", "K_head_stride = 64"))
    assert ran(cc.c(main))[0].code == 1


# ------------------------------------------------------------------------------------------
# tiles by length


def tiles_of(
    length: int, keys: int | None = None, alignment: int = 16, heads: int = 99, **how: Any
) -> tuple[int, int]:
    config = AttentionConfig(**{"head_dim": 128, "dtype": "f16", **how})
    d = config.head_dim
    q, k = (
        view(as_strided(np.zeros(d, np.float16), (1, heads, n, d), (n * d * 2, n * d * 2, d * 2, 2)), "array")
        for n in (length, keys or length)
    )
    tiling = kernel_of(config, check(config, q, k, k, None), target("sm_90a"), alignment).tiling
    return tiling.block_q, tiling.tile


def test_tiles_of_a_launch_are_those_for_its_length() -> None:
    lengths = (512, 2047, 2048, 8191, 8192, 16384)
    assert [tiles_of(n) for n in lengths] == [(128, 128)] * 2 + [(192, 80)] * 4
    assert [tiles_of(n, causal=True) for n in lengths] == [(128, 128)] * 4 + [(192, 80)] * 2
    assert [tiles_of(n, head_dim=40, causal=True) for n in lengths] == [(128, 128)] * 2 + [(192, 128)] * 4
    assert [tiles_of(n, head_dim=256) for n in lengths] == [(128, 64)] * 5 + [(128, 80)]
    wide = [tiles_of(n, head_dim=192) for n in (512, 1024, 4096)]
    assert wide == [(128, 64), (128, 80), (128, 112)]
    # 22 blocks of 192 rows for each head, of which 132 run at once.
    assert [tiles_of(4096, heads=n) for n in (35, 36)] == [(128, 128), (192, 80)]
    # The fewer of queries and keys count.
    assert [tiles_of(300, 9999), tiles_of(9999, 300)] == [(128, 128)] * 2


def test_tiles_that_were_not_measured_are_the_defaults() -> None:
    assert tiles_of(9999, tile=64) == (128, 64)
    assert tiles_of(9999, stages=3, head_dim=192) == tiles_of(99, stages=3, head_dim=192)
    for how in ({"softcap": 2.0}, {"window": (99, 99)}, {"sink": True}):
        assert tiles_of(9999, **how) == tiles_of(99, **how) == (128, 128)
    assert tiles_of(9999, alignment=4) == tiles_of(99, alignment=4) == (128, 64)  # without wgmma


@pytest.mark.nightly
@pytest.mark.ptxas
@pytest.mark.parametrize("causal", [nightly(False), True])
def test_no_kernel_of_a_length_spills(causal: bool, assembler: Assembler) -> None:
    for most, by_length in (_CAUSAL if causal else _FULL).items():
        for block_q, tile in filter(None, by_length.values()):
            for scheduler in ("grid", "mirrored" if causal else "static"):
                how = {"tile": tile, "block_q": block_q, "scheduler": scheduler, "return_lse": True}
                config = AttentionConfig(most, dtype="bf16", target="sm_90a", causal=causal, **how)
                assert_no_spill(config, assembler)
