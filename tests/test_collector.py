"""Objects are made without Python's garbage collector, which is then as it was before."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ptxgen import collector
from ptxgen.check.verify import require_valid
from ptxgen.collector import uncollected
from ptxgen.errors import ParseError
from ptxgen.interpreter import launch, run
from ptxgen.interpreter.program import blocks
from ptxgen.parse import parse

TEXT = """.version 8.0
.target sm_80
.address_size 64
.visible .entry stored(.param .u64 out)
{
    .reg .b64 %o;
    ld.param.u64 %o, [out];
    st.global.u32 [%o], 3;
    ret;
}
"""


@pytest.fixture(autouse=True)
def _enabled() -> Iterator[None]:
    before = gc.isenabled()
    yield
    (gc.enable if before else gc.disable)()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_before_also_after_an_error(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            pass
        assert not gc.isenabled()
    assert gc.isenabled() is enabled
    with pytest.raises(ParseError), uncollected():
        parse("nothing")
    assert gc.isenabled() is enabled


@pytest.mark.parametrize("frozen", [True, False])
def test_new_objects_count_as_old_afterwards_unless_the_process_has_frozen_some(
    frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "_FROZEN", [])
    gc.enable()
    gc.unfreeze()  # what commands in this process have frozen
    if frozen:
        gc.freeze()
    before = gc.get_freeze_count()
    with uncollected():
        new = [[n] for n in range(10_000)]
    oldest = any(one is new for one in gc.get_objects(generation=2))
    assert oldest is not frozen
    assert [True] * frozen == collector._FROZEN
    assert gc.get_freeze_count() == before
    gc.unfreeze()


def test_a_program_is_made_without_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.enable()
    seen: dict[str, set[bool]] = {}

    def noted(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def called(*arguments: Any, **options: Any) -> Any:
            seen.setdefault(name, set()).add(gc.isenabled())
            return function(*arguments, **options)

        monkeypatch.setattr(owner, name, called)

    noted(launch, "link")
    noted(blocks, "segments")
    noted(blocks, "Writer")
    out = np.zeros(1, np.uint32)
    run(parse(TEXT), grid=1, block=1, args=[out])
    assert out.tolist() == [3]
    assert seen == {"link": {False}, "segments": {False}, "Writer": {False}}
    assert gc.isenabled()


def test_nothing_of_a_verified_module_waits_for_the_collector() -> None:
    module = parse(TEXT)
    require_valid(module)
    gc.collect()
    gc.disable()
    require_valid(module)
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        waiting = {type(x).__qualname__ for x in gc.garbage if type(x).__module__.startswith("ptxgen")}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert not waiting
