"""Finds and compiles the templates of generated text; the only file that imports jinja2."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ptxgen.errors import PtxGenError, did_you_mean

if TYPE_CHECKING:
    import jinja2

# In a wheel the templates are the package ptxgen.templates; in a checkout, and therefore in an
# editable install, they are in the folder templates/ next to ptxgen/.
_CHECKOUT_FOLDER: Final = Path(__file__).parents[1] / "templates"


def load_template(name: str) -> jinja2.Template:
    """The compiled template `name`, such as `"report.html.j2"`; compiled once per process.

    A variable that the template uses but its caller does not pass is an error (`StrictUndefined`);
    values are escaped in HTML (`.html.j2`) and nowhere else; a template line that holds only a block
    statement prints nothing. Raises `PtxGenError` for an unknown name.
    """
    import jinja2

    environment = _environment()
    try:
        return environment.get_template(name)
    except jinja2.TemplateNotFound:
        known = environment.list_templates(extensions=["j2"])
        hint = did_you_mean(name, known) or "."
        raise PtxGenError(
            f"no template {name!r}{hint} Templates found: {', '.join(known) or 'none'}"
        ) from None


@cache
def _environment() -> jinja2.Environment:
    # Imported on first use: a program that emits PTX does not pay the import time of jinja2.
    import jinja2

    loader: jinja2.BaseLoader
    try:
        loader = jinja2.PackageLoader("ptxgen", "templates")
    except ValueError:  # ptxgen/ has no folder templates/, so this is a checkout
        loader = jinja2.FileSystemLoader(_CHECKOUT_FOLDER)
    return jinja2.Environment(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # PTX, Python and Markdown: HTML escapes would corrupt them.
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        auto_reload=False,
    )
