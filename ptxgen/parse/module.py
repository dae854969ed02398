"""Reads modules: the header, variables, kernels and functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any, Final

from ptxgen.errors import did_you_mean
from ptxgen.ir import Function, Kernel, Module, Param, Reg, Region, Variable
from ptxgen.parse.aliases import without_other_names
from ptxgen.parse.body import Bodies
from ptxgen.parse.locations import Locations, Sources, files_of
from ptxgen.parse.outline import Block, between, blocks, first_of, may_wait
from ptxgen.parse.unread import Body, unread
from ptxgen.records import dataclass
from ptxgen.tokens import comment
from ptxgen.types import TYPES

_VERSION: Final = re.compile(r"(\d+)\.(\d+)", re.ASCII)
# Bytes: the alignment that `text.render` gives every dynamic shared array, so it is not recorded.
_DYNAMIC_ALIGN: Final = 16
_LINKAGES: Final = (".visible", ".extern", ".weak", ".common")
_SPACES: Final = (".global", ".const", ".shared", ".local")
# PTX ISA, section ".target": options after the target that change nothing that is modelled.
_PLATFORM: Final = ("debug", "texmode_unified", "texmode_independent", "map_f64_to_f32")
# Directives of a kernel or a function that are kept as text, and whether an integer follows.
_AS_TEXT: Final[Mapping[str, bool]] = {
    ".maxnreg": True,
    ".maxclusterrank": True,
    ".explicitcluster": False,
    ".blocksareclusters": False,
    ".abi_preserve": True,
    ".abi_preserve_control": True,
}
_EXTENTS: Final = (".maxntid", ".reqntid", ".reqnctapercluster")
_RIVALS: Final = {
    ".maxntid": ".reqntid",
    ".reqntid": ".maxntid",
    ".reqnctapercluster": ".maxclusterrank",
    ".maxclusterrank": ".reqnctapercluster",
}


@dataclass(slots=True)
class _Directives:
    """The directives between the parameters and the body of a kernel or a function."""

    threads: int = 0
    min_ctas: int = 0
    reqntid: tuple[int, ...] = ()
    cluster: tuple[int, ...] = ()
    others: list[str] = field(default_factory=list)
    noreturn: bool = False


class Modules(Bodies):
    """Reads one module; with `on_use`, the bodies of its kernels when they are first used, if there are
    several kernels and nothing else depends on their bodies.
    """

    def __init__(self, text: str, sources: Sources | None = None, *, on_use: bool = False) -> None:
        every = list(blocks(text))
        waiting = [b for b in every if on_use and ".alias" not in text and may_wait(text, b)]
        if len(waiting) < 2:  # the mistakes of an only kernel are seen at once
            waiting = []
        skipped = [block for block in every if block.kind == "section" or block in waiting]
        super().__init__(text, Locations(sources), between(skipped, len(text)))
        self._sources = sources
        inside = zip(self.cuts, skipped, strict=True)
        self._waiting = {token: block for token, block in inside if block.kind == "entry"}
        self._files = files_of(self) if waiting else {}
        self.kernels: list[Kernel] = []
        self.functions: dict[str, Function] = {}
        self.globals: list[Variable] = []

    def module(self) -> Module:
        """Read the whole text as one module."""
        header = self._header()
        self.want(".version")
        version = _VERSION.fullmatch(self.peek())
        if version is None:
            self.fail(f"wanted a version such as 7.0, got {self.shown(self.peek())}")
        self.at += 1
        target = self._target()
        self.want(".address_size")
        if self.count("64") != 64:
            self.fail("only 64-bit addresses are read; wanted 64", self.at - 1)
        while self.peek():
            self._item_of_module()
        variables = (*self._spare_arrays(), *self.globals, *self.hoisted)
        module = Module(
            (int(version[1][:9]), int(version[2][:9])),
            target,
            tuple(self.kernels),
            header,
            tuple(self.functions.values()),
            variables,
        )
        return without_other_names(module)

    def _header(self) -> tuple[str, ...]:
        lines = []
        while self.words[self.at][:2] == "//":
            lines.append(comment(self.words[self.at]))
            self.at += 1
        # `text.render` prints an empty comment line above and below the header.
        if len(lines) > 2 and not lines[0] and not lines[-1]:
            lines = lines[1:-1]
        return tuple(lines)

    def _target(self) -> str:
        self.want(".target")
        target = self.name("a target such as sm_80")
        while self.skip(","):
            word = self.name("a platform option")
            if word not in _PLATFORM:
                hint = did_you_mean(word, _PLATFORM)
                self.fail(f"wanted one of {', '.join(_PLATFORM)}, got {word!r}{hint}", self.at - 1)
        return target

    def _item_of_module(self) -> None:
        word = self.peek()
        linkage = ""
        if word in _LINKAGES:
            self.at += 1
            linkage = word[1:]
            word = self.peek()
        reader = _ITEMS.get(word)
        if word in _SPACES:
            self._variables(linkage)
        elif word == ".entry":
            self._kernel(linkage)
        elif word == ".func":
            self._function(linkage)
        elif reader is not None and not linkage:
            reader(self)
        else:
            self.refuse_opaque(word)
            known = (".entry", ".func", *_SPACES)
            hint = did_you_mean(word, (*known, *_LINKAGES, *_ITEMS))
            self.fail(f"wanted {', '.join(known)} at module level, got {self.shown(word)}{hint}")

    # ---------------------------------------------------------------------------------- variables

    def _variables(self, linkage: str) -> None:
        space = self.next()[1:]
        for variable in self.declared(space, linkage, lambda name, _: name):
            if space == "shared" and linkage == "extern" and not variable.nbytes:
                self.arrays[variable.name] = variable.align
            else:
                self.globals.append(variable)

    def _spare_arrays(self) -> list[Variable]:
        """The dynamic shared arrays that are not `dynamic_shared` of any kernel."""
        taken = {kernel.dynamic_shared for kernel in self.kernels}
        return [
            Variable("shared", name, 0, align, linkage="extern")
            for name, align in self.arrays.items()
            if name not in taken
        ]

    def _file(self) -> None:
        """Read a directive such as `.file 1 "name", 1234, 5678`, which `.loc` looks up."""
        self.at += 1
        self.count("a file's number")
        self.string("kernel.cu")
        while self.skip(","):
            self.count("a time or a size")

    def _alias(self) -> None:
        """Read a directive such as `.alias other, f;`: `other`, which is only declared, is `f`."""
        self.at += 1
        token = self.at
        name = self.name("the function's other name")
        self.want(",")
        to = self.at
        function = self.name("a function")
        self.want(";")
        for wanted, at in ((name, token), (function, to)):
            if wanted not in self.functions:
                hint = did_you_mean(wanted, self.functions)
                self.fail(f"no function {wanted!r} is declared above{hint}", at)
        declared = self.functions[name]
        if declared.body is not None:
            self.fail(f"function {name!r} is defined, so it is no other name of {function!r}", token)
        if declared.alias:
            self.fail(f"function {name!r} is declared to be {declared.alias!r} already", token)
        self.functions[name] = replace(declared, alias=function)

    def _section(self) -> None:
        """Read and skip a `.section` of debugging data."""
        self.at += 1
        self.next()  # its name
        self.want("{")
        while not self.skip("}"):
            if not self.next():
                self.fail("wanted '}' after a section, got the end of the text")

    # ---------------------------------------------------------------------------------- bodies

    def _kernel(self, linkage: str) -> None:
        self.want(".entry")
        self.new_body()
        name = self.name("the kernel's name")
        params = self.params() if self.peek() == "(" else ()
        self._refuse_registers(params)
        directives = self._directives(kernel=True)
        if self.skip(";"):  # declared only
            return
        self.want("{")
        waiting = self._waiting.get(self.at)
        if waiting is None:
            self.body()
            dynamic = self._dynamic_shared()
        else:
            self.want("}")
            dynamic = first_of(self.arrays, self.text, waiting)
        regions = self.regions
        if dynamic and self.arrays[dynamic] > max([_DYNAMIC_ALIGN, *(r.align for r in regions)]):
            # An empty region preserves an alignment greater than that of all other regions.
            regions.append(Region(dynamic, 0, 0, self.arrays[dynamic]))
        head: dict[str, Any] = {
            "name": name,
            "params": params,
            "threads": directives.threads,
            "min_ctas": directives.min_ctas,
            "dynamic_shared": dynamic,
            "regions": tuple(regions),
            "reqntid": directives.reqntid,
            "cluster": directives.cluster,
            "directives": tuple(directives.others),
            "linkage": linkage,
        }
        self.kernels.append(
            Kernel(**head, **self.parts()._asdict())
            if waiting is None
            else unread(self._reader(waiting), **head)
        )

    def _reader(self, block: Block) -> Callable[[], Body]:
        """A function that reads a kernel's body later, with the `.file` names and shared arrays known at this
        point.
        """
        text, sources, files, arrays = self.text, self._sources, self._files, dict(self.arrays)

        def read() -> Body:
            bodies = Bodies(text, Locations(sources, files), [(block.opens, block.closes + 1)])
            bodies.arrays = arrays
            bodies.want("{")
            bodies.body()
            return bodies.parts()

        return read

    def _refuse_registers(self, params: tuple[Param, ...]) -> None:
        for param in params:
            if param.register:
                self.fail(f"parameter {param.name!r} of a kernel must be in .param", self.at - 1)

    def _dynamic_shared(self) -> str:
        """The first dynamic shared array that the last body uses, or the empty string."""
        if not self.mentioned and self.regions and self.arrays:
            return min(self.arrays)
        return self.mentioned[0] if self.mentioned else ""

    def _function(self, linkage: str) -> None:
        self.want(".func")
        self.new_body()
        if self.peek() == ".attribute":
            self._attribute()
        results = self.params() if self.peek() == "(" else ()
        token = self.at
        name = self.name("the function's name")
        params = self.params() if self.peek() == "(" else ()
        directives = self._directives(kernel=False)
        known = self.functions.get(name)
        if self.skip(";"):
            noreturn = directives.noreturn
            declared = Function(name, results, params, linkage=linkage, noreturn=noreturn)
            self.functions.setdefault(name, declared)
            return
        if known is not None and known.body is not None:
            self.fail(f"function {name!r} is defined twice", token)
        if known is not None and known.alias:
            self.fail(f"function {name!r} is another name of {known.alias!r}, so it has no body", token)
        self.want("{")
        for param in (*results, *params):
            if param.register:
                self.names[param.name] = Reg(param.name, TYPES[param.type].register)
        self.body()
        noreturn = directives.noreturn or (known is not None and known.noreturn)
        self.functions[name] = Function(
            name, results, params, *self.parts(), linkage=linkage, noreturn=noreturn
        )

    def _directives(self, *, kernel: bool) -> _Directives:
        directives, words = _Directives(), list[str]()
        known = (*_EXTENTS, ".minnctapersm", *_AS_TEXT, ".pragma") if kernel else _OF_FUNCTIONS
        while self.peek() not in ("{", ";"):
            word = self.peek()
            if word not in known:
                hint = did_you_mean(word, known)
                such = f"a directive such as {known[0]}, or {{"
                self.fail(f"wanted {such}, got {self.shown(word)}{hint}")
            rival = _RIVALS.get(word)
            if rival in words:
                self.fail(f"{word} and {rival} exclude each other; remove one")
            if word == ".pragma":
                directives.others += [f'.pragma "{text}";' for text in self.pragma()]
                continue
            if word in _ONCE:
                self.once(word, words)
            else:
                self.at += 1
                words.append(word)
            self._directive(word, directives)
        return directives

    def _directive(self, word: str, directives: _Directives) -> None:
        if word == ".noreturn":
            directives.noreturn = True
        elif word == ".minnctapersm":
            directives.min_ctas = self.count("a number of CTAs")
        elif word == ".maxntid":
            directives.threads = 1
            for extent in self.counts("a number of threads"):
                directives.threads *= extent
        elif word == ".reqntid":
            directives.reqntid = self.counts("a number of threads")
        elif word == ".reqnctapercluster":
            directives.cluster = self.counts("a number of CTAs")
        elif _AS_TEXT[word]:
            directives.others.append(f"{word} {self.count('a number')}")
        else:
            directives.others.append(word)


_ONCE: Final = (".noreturn", ".abi_preserve", ".abi_preserve_control")
_OF_FUNCTIONS: Final = (*_ONCE, ".pragma")
_ITEMS: Final[Mapping[str, Callable[[Modules], object]]] = {
    ".pragma": Modules.pragma,
    ".file": Modules._file,
    ".loc": Modules.location,
    ".section": Modules._section,
    ".alias": Modules._alias,
}
