from __future__ import annotations

import importlib
import re

from tools import gen_api_docs


def test_the_page_has_every_public_name_once() -> None:
    page = gen_api_docs.PAGE.read_text()
    titles = re.findall(r"^### (\S+)$", page, re.MULTILINE)
    assert len(titles) == len(set(titles))
    for name in ("flash", "flash.cache_kernels", "flash.mods", "ptxgen", "ptxgen.contract"):
        module = importlib.import_module(name)
        assert {t for t in titles if t.rpartition(".")[0] == name} >= {
            f"{name}.{each}" for each in getattr(module, "__all__", ())
        }
    assert "#### AttentionKernel.launch(q, k, v=None, \\*, out=None" in page
    assert " at 0x" not in page


def test_every_link_of_the_page_has_its_heading() -> None:
    page = gen_api_docs.PAGE.read_text()
    headings = re.findall(r"^##+ (\S+)$", page, re.MULTILINE)
    anchors = {heading.replace(".", "").lower() for heading in headings}
    assert set(re.findall(r"\]\(#([^)]*)\)", page)) <= anchors
