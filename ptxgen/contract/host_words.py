"""Names, comments and strings of a contract in C and Rust: keywords of the language are renamed, and no text
can end the comment or the string that it is in.
"""

from __future__ import annotations

import re
from typing import Final

from ptxgen.contract import C
from ptxgen.errors import ConfigError, shown

# Of C and C++ together, because a header is for both: words, and then macros of the headers that it includes
# and of the compilers themselves.
_OF_C: Final = """
alignas alignof and and_eq asm assert auto bitand bitor bool break case catch char char16_t char32_t char8_t
class co_await co_return co_yield compl concept const const_cast consteval constexpr constinit continue
decltype default delete do double dynamic_cast else enum explicit export extern false float for friend goto
if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected
public register reinterpret_cast requires restrict return short signed sizeof static static_assert
static_cast struct switch template this thread_local throw true try typedef typeid typename typeof union
unsigned using virtual void volatile wchar_t while xor xor_eq
BUFSIZ EOF EXIT_FAILURE EXIT_SUCCESS FILENAME_MAX FOPEN_MAX L_tmpnam MB_CUR_MAX NULL RAND_MAX SEEK_CUR
SEEK_END SEEK_SET TMP_MAX errno linux offsetof stderr stdin stdout unix CUDAAPI CUDA_CB CUDA_VERSION
"""
_C_WORDS: Final = frozenset(_OF_C.split())
# Reserved names, limits and formats of <stdint.h> and <inttypes.h>, constants of cuda.h, and guards of stubs.
_C_MACRO: Final = re.compile(
    r"_[_A-Z].*|U?INT\w*_(MAX|MIN|C)_*|(PTRDIFF|SIZE|SIG_ATOMIC|WCHAR|WINT)_(MAX|MIN)_*|(PRI|SCN)[diouxX]\w*"
    r"|_?IO[FLN]BF_*|CU_\w*|PTXGEN_\w*",
    re.ASCII,
)
_OF_RUST: Final = """
abstract as async await become box break const continue do dyn else enum extern false final fn for gen if
impl in let loop macro match mod move mut override priv pub ref return static struct trait true try type
typeof unsafe unsized use virtual where while yield
"""
_RUST_WORDS: Final = frozenset(_OF_RUST.split())
_NEVER_RAW: Final = frozenset(("Self", "crate", "self", "super", ""))  # which Rust has not as r#word either

# What stubs define already, after the prefix in C; `t`, because <stdint.h> has int8_t and size_t.
_OF_C_STUB: Final = (
    "H PTX_BYTES SHARED_BYTES THREADS args check dense_strides grid kernel launch load ptx t unload"
)
_OF_RUST_STUB: Final = "check clone default dense_strides fmt grid tensors"
_C_FUNCTIONS: Final = frozenset(_OF_C_STUB.split())
_RUST_FUNCTIONS: Final = frozenset(_OF_RUST_STUB.split())

_UNWRITABLE: Final = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]"
)


class Words:
    """Makes names of C or Rust from the names of a contract, in C with a prefix. Different names stay
    different.

    Raises `ConfigError` for a prefix that is no identifier.
    """

    def __init__(self, language: str, prefix: str) -> None:
        is_name = re.fullmatch(r"[A-Za-z]\w{0,254}", str(prefix), re.ASCII)
        if not is_name or prefix in _C_WORDS or prefix.lower() == "ptxgen":
            raise ConfigError(
                f"stub: the prefix must be a name in C that begins with a letter, and neither a word of the "
                f"language nor ptxgen, got {shown(prefix)}; give another prefix"
            )
        self._is_c = language == C
        self._guard = f"{prefix.upper()}_H"

    def member(self, name: str) -> str:
        """The name in C or Rust of a member of the structure of arguments."""
        plain = name.rstrip("_")  # one more _ for a word with any number of them: no two names get the same
        if self._is_c:
            is_taken = plain in _C_WORDS or plain in ("", self._guard) or _C_MACRO.fullmatch(name)
            return f"{name}_" if is_taken else name
        if plain in _NEVER_RAW:
            return f"{name}_"
        return f"r#{name}" if name in _RUST_WORDS else name

    def function(self, name: str) -> str:
        """The name in C or Rust of a function of the stub, in C without the prefix."""
        if name.rstrip("_") in (_C_FUNCTIONS if self._is_c else _RUST_FUNCTIONS):
            return f"{name}_"
        return name if self._is_c else self.member(name)


def remark(text: str, language: str) -> str:
    """One line of text in a comment of C, which it can neither end nor begin, or of the documentation of
    Rust, where brackets would be links.
    """
    if language == C:
        return re.sub(r"\?(?=\?)", "? ", re.sub(r"\*(?=/)|/(?=\*)", r"\g<0> ", text))
    return text.replace("[", "\\[").replace("]", "\\]")


def c_string(text: str) -> str:
    """A text as a string of C. A question mark is escaped: two of them would begin a trigraph."""
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "?": "\\?"}
    return '"' + "".join(escapes.get(c, c if c.isascii() else _octal(c)) for c in text) + '"'


def _octal(character: str) -> str:
    """The octal escapes of a character's bytes, so that a string does not depend on a compiler's source
    encoding.
    """
    return "".join(f"\\{byte:03o}" for byte in character.encode())


def unwritable(line: str) -> str:
    """The first character of a line of text that a string of C or Rust cannot have as it is, "" if none:
    control characters but tabs, those of the direction of text, and halves of surrogate pairs.
    """
    match = _UNWRITABLE.search(line)
    return match[0] if match else ""
