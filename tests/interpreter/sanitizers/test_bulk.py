"""What fences of the asynchronous proxy and waits for bulk groups order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from interpreter.programs import at, ptx
from interpreter.reported import messages, reports

from ptxgen.tensormap import TensorMap


@pytest.mark.parametrize(
    ("fence", "found"), [("", 1), ("async.shared::cta", 0), ("async", 0), ("async.global", 1), ("alias", 1)]
)
def test_a_fence_of_the_asynchronous_proxy_shows_what_its_space_says(fence: str, found: int) -> None:
    text = (Path(__file__).parents[2] / "ptx" / "bugs" / "missing_proxy_fence.ptx").read_text()
    after = "st.shared.u32 [%r2], %r0;"
    if fence:
        text = text.replace(after, f"{after}\n    fence.proxy.{fence};")
    how = {"entry": "send_tile", "block": 128, "sanitize": "proxy"}
    proxy = reports(text, [np.zeros(128, np.uint32)], **how)
    assert [(r.kind, r.threads) for r in proxy] == [("proxy", (0, 0))] * found
    assert all(r.message.endswith("no fence.proxy.async lets asynchronous operations see it") for r in proxy)


SENT_TWICE = """
    ld.param.u64 %rd0, [y];
    mov.u32 %r1, buf;
    st.shared.v4.u32 [%r1], {%r0, %r0, %r0, %r0};
    st.shared.v4.u32 [%r1+16], {%r0, %r0, %r0, %r0};
    fence.proxy.async;
    cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1], 16;
    cp.async.bulk.commit_group;
    cp.async.bulk.global.shared::cta.bulk_group [%rd0+16], [%r1+16], 16;
    cp.async.bulk.commit_group;
    WAIT
    st.shared.u32 [%r1+AT], 7;
    cp.async.bulk.wait_group 0;
"""


@pytest.mark.parametrize(
    ("wait", "place", "found"),
    [
        ("cp.async.bulk.wait_group.read 1;", 0, 0),
        ("cp.async.bulk.wait_group.read 1;", 16, 1),
        ("cp.async.bulk.wait_group.read 0;", 16, 0),
        ("cp.async.bulk.wait_group 1;", 0, 0),
        ("cp.async.bulk.wait_group 1;", 16, 1),
        ("cp.async.bulk.wait_group.read 0; cp.async.bulk.wait_group 1;", 16, 0),
    ],
)
def test_a_wait_for_bulk_groups_is_for_all_but_the_newest(wait: str, place: int, found: int) -> None:
    body = SENT_TWICE.replace("WAIT", wait).replace("AT", str(place))
    text = ptx("mov.u32 %r0, 1;\n" + body, shared=32)
    assert len(messages(text, [np.zeros(8, np.uint32)], block=1)) == found


@pytest.mark.parametrize(
    ("wait", "found"),
    [
        ("cp.async.bulk.wait_group.read 0;", 1),
        ("cp.async.bulk.wait_group 0;", 0),
        ("cp.async.bulk.wait_group.read 0; cp.async.bulk.wait_group 0;", 0),
    ],
)
def test_what_a_bulk_copy_writes_is_there_after_a_wait_for_more_than_its_reads(wait: str, found: int) -> None:
    body = SENT_TWICE.replace("WAIT", wait).replace("st.shared.u32 [%r1+AT], 7;", "")
    load = "    fence.proxy.async;\n    ld.global.u32 %r2, [%rd0];\n    cp.async.bulk.wait_group 0;"
    body = body.removesuffix("    cp.async.bulk.wait_group 0;\n") + load
    text = ptx("mov.u32 %r0, 1;\n" + body, "u64 y", shared=32)
    assert len(messages(text, [np.zeros(8, np.uint32)], block=1)) == found


SENT_BY_ALL = """
    mov.u32 %r0, %tid.x;
    and.b32 %r0, %r0, 31;
    mov.u32 %r1, buf;
    mad.lo.u32 %r2, %r0, 8, %r1;
    mov.u32 %r3, 7;
    st.shared.v2.u32 [%r2], {%r3, %r3};
    fence.proxy.async;
    bar.sync 0;
    MORE
    ld.param.u64 %rd0, [y];
    mov.b64 %rd1, map;
    cvta.param.u64 %rd1, %rd1;
    mov.u32 %r4, 0;
    SEND
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 0;
"""
ROWS = "cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1], 16;"
BOXES = "cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%rd1, {%r4}], [%r1];"
ONE_OF_TWO = "and.b32 %r0, %r0, 1; mad.lo.u32 %r1, %r0, 128, %r1;"


@pytest.mark.parametrize("send", [ROWS, BOXES])
@pytest.mark.parametrize(("more", "block", "second"), [("", 32, None), (ONE_OF_TWO, 32, 1), ("", 64, 32)])
def test_lanes_of_a_warp_may_store_the_same_source_to_one_place(
    send: str, more: str, block: int, second: int | None
) -> None:
    body = SENT_BY_ALL.replace("MORE", more).replace("SEND", send)
    params = "u64 y, align 64 .b8 map[128]"
    text = ptx(body, params, shared=256)
    y = np.zeros(4, np.uint32)
    result = messages(text, [y, TensorMap(y, box=(4,))], block=block)
    assert y.tolist() == [7] * 4
    if second is None:
        assert result == []
        return
    assert len(result) == 1
    assert result[0].startswith(at(text, send, second) + "pending: global address")
