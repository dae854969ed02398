"""docs/migration.md: both sides of each row give the same numbers, and leave the same in their
arguments.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import flash_attn_oracle as oracle
import pytest
from flash_attn_cases import in_numpy
from newer_flash_attn import NewerFlashAttn
from other_libraries import FlashInfer, Xformers

PAGE = (Path(__file__).parents[3] / "docs" / "migration.md").read_text(encoding="utf-8")
SECTIONS = ("flash-attn", "flash-attn 3 and 4", "PyTorch", "xformers", "FlashInfer")


class Row(NamedTuple):
    """A row of a table: the code of the other library, and ours, after the section's `setup`; and whether
    the adapter refuses the other library's code.
    """

    setup: str
    theirs: str
    ours: str
    is_refused: bool


def rows() -> Iterator[Any]:
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        (setup,) = re.findall(r"^```python\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)
        name = re.split(r"\W*\n|:", section, maxsplit=1)[0]
        lines = [line for line in section.splitlines() if line.startswith("| `")]
        for number, line in enumerate(lines, 1):
            theirs, ours = re.findall(r"`([^`]+)`", line)[:2]
            is_refused = line.split(" | ")[-1].startswith("refused")
            yield pytest.param(Row(setup, theirs, ours, is_refused), id=f"{name}-{number}")


ROWS = list(rows())


def value_of(code: str, setup: str, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The value of the last statement of `code`, an expression, and all names after it."""
    names = dict(given)
    exec(setup, names)  # code of our own page
    *before, last = code.split("; ")
    exec("\n".join(before), names)
    return eval(last, names), names


def assert_same(torch: ModuleType, found: Any, wanted: Any) -> None:
    """Tensors, or tuples of tensors, are the same within the errors of float32."""
    if isinstance(wanted, tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(torch, one, other)
    else:
        torch.testing.assert_close(found, wanted)


class FlashAttnByOracle:
    """flash-attn's functions by the oracle of their tests."""

    def __init__(self, torch: ModuleType) -> None:
        self.torch = torch

    def _tensors(self, found: Any) -> tuple[Any, ...]:
        return tuple(self.torch.from_numpy(x).float() for x in found)

    def flash_attn_func(self, q: Any, k: Any, v: Any, dropout_p: float = 0.0, **how: Any) -> Any:
        assert not dropout_p
        for name in ("deterministic", "num_splits"):  # of bits and speed
            how.pop(name, None)
        wants_lse = how.pop("return_attn_probs", False)
        out, lse = self._tensors(oracle.attention(*(x.numpy() for x in (q, k, v)), **in_numpy(how)))
        return (out, lse, None) if wants_lse else out

    def flash_attn_qkvpacked_func(self, qkv: Any) -> Any:
        return self.flash_attn_func(*qkv.unbind(2))

    def flash_attn_kvpacked_func(self, q: Any, kv: Any) -> Any:
        return self.flash_attn_func(q, *kv.unbind(2))

    def flash_attn_varlen_func(self, q: Any, k: Any, v: Any, *more: Any, **how: Any) -> Any:
        table, (cu_q, cu_k) = how.pop("block_table", None), more[:2]
        if table is not None:
            lengths = cu_k.diff().tolist()
            k, v = (
                self.torch.cat(
                    [x[own.long()].flatten(0, 1)[:n] for own, n in zip(table, lengths, strict=True)]
                )
                for x in (k, v)
            )
        arrays = [x.numpy() for x in (q, k, v, cu_q, cu_k)]
        return self._tensors(oracle.attention_varlen(*arrays, **how))[0]

    def flash_attn_varlen_kvpacked_func(self, q: Any, kv: Any, *more: Any) -> Any:
        return self.flash_attn_varlen_func(q, *kv.unbind(1), *more)

    def flash_attn_with_kvcache(
        self,
        q: Any,
        k_cache: Any,
        v_cache: Any,
        k: Any = None,
        v: Any = None,
        rotary_cos: Any = None,
        rotary_sin: Any = None,
        cache_seqlens: Any = None,
        *,
        causal: bool,
        num_splits: int = 0,
        return_softmax_lse: bool = False,
        **places: Any,
    ) -> Any:
        assert num_splits >= 0
        lengths = cache_seqlens
        if isinstance(lengths, int):
            lengths = self.torch.tensor([lengths] * len(q))
        arrays = [None if x is None else x.numpy() for x in (q, k_cache, v_cache, k, v)]
        rotation = {} if rotary_cos is None else {"cos": rotary_cos.numpy(), "sin": rotary_sin.numpy()}
        items = oracle.cache_step(*arrays, cache_seqlens=lengths.numpy(), **rotation, **in_numpy(places))
        result = [self._tensors(oracle.attention(*(x[None] for x in item), causal=causal)) for item in items]
        out, lse = (self.torch.cat(parts) for parts in zip(*result, strict=True))
        return (out, lse) if return_softmax_lse else out


def libraries(torch: ModuleType, flash_attn: Any, code: str) -> list[dict[str, Any]]:
    """The names of other libraries in `code`; flash-attn's are there twice, as the adapter and by
    the oracle.
    """
    name = code.partition("(")[0]
    if name.startswith("flash_attn"):
        return [{name: getattr(library, name)} for library in (flash_attn, FlashAttnByOracle(torch))]
    if name.startswith("fa"):
        from flash.adapters.flash_attn import cute, hopper

        return [{"fa3": hopper, "fa4": cute}, {f"fa{n}": NewerFlashAttn(torch, n) for n in (3, 4)}]
    xops = Xformers(torch)
    return [{"xops": xops, "bias": xops.bias, "fi": FlashInfer(torch)}]


@pytest.mark.parametrize("row", ROWS)
def test_both_sides_of_a_row_are_the_same(torch: ModuleType, flash_attn: Any, row: Row) -> None:
    result, after = value_of(row.ours, row.setup, {})
    for arguments in libraries(torch, flash_attn, row.theirs):
        if row.is_refused and not isinstance(next(iter(arguments.values())), NewerFlashAttn):
            with pytest.raises(RuntimeError, match=r" must be (None|0), got "):
                value_of(row.theirs, row.setup, arguments)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # flex_attention warns that it is not compiled
            wanted, others = value_of(row.theirs, row.setup, arguments)
        assert_same(torch, result, wanted)
        changed = [n for n in after if n in others and isinstance(others[n], torch.Tensor) and n != "bias"]
        for name in changed:
            torch.testing.assert_close(after[name], others[name], msg=lambda said, n=name: f"{n}: {said}")


def test_every_line_of_a_table_is_a_row(torch: ModuleType) -> None:  # as the others
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    heads = [line for line in lines if line.startswith("|---")]
    assert len(heads) == len(SECTIONS)
    assert len(lines) == len(ROWS) + 2 * len(heads)
    assert {param.id.rpartition("-")[0] for param in ROWS} == {*SECTIONS}


def test_every_function_of_the_adapter_is_on_the_page(flash_attn: Any) -> None:
    missing = [name for name in flash_attn.__all__ if name not in PAGE]
    assert missing == []
