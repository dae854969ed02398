"""What C++ calls the symbols of a text, and which types its kernels point to."""

from __future__ import annotations

import ctypes.util

import pytest

from ptxgen.frontends.cpp_names import Names, cpp_names, demangled

# Asked of the system, so that no mistake in what is tested skips its tests.
HAS_LIBRARY = any(ctypes.util.find_library(name) for name in ("stdc++", "c++abi"))
pytestmark = pytest.mark.skipif(not HAS_LIBRARY, reason="there is no C++ runtime library")

PLAIN = "_ZN2ns5plainEPKyP6__halfPvPPfPNS_1SEPVsd"
OF_FLOAT, OF_DOUBLE = "_ZN2ns5scaleIfEEvPT_PKfi", "_ZN2ns5scaleIdEEvPT_PKfi"
OF_FUNCTION = "_Z6withfnILi3EEvPFfiEPf"
SOURCE = """
namespace ns {
struct S { int x; };
template <typename T>
__global__ void __launch_bounds__(256, 2) scale(T *x, const float *__restrict__ y, int n) { }
__global__ void plain(const unsigned long long *a, __half *h, void *p, float **pp, S *s,
                      short volatile *v, double d) { }
}
extern "C" __global__ void bare(float *x, /* four, of them */ const int y[4], int n = 3) { }
template <int N> __global__ void withfn(float (*f)(int), float *x) { }
__global__ void twice(float *a) { }
__global__ void twice(double *b) { }
// __global__ void gone(float *a) { }
__global__ void fewer(float *a) { }
__global__ void map_of(std::map<int, float> m, float *x) { }
"""


def text_of(entries: dict[str, int], *others: str) -> str:
    """A text with kernels of so many parameters, and other symbols."""
    lines = [f".shared .align 4 .b8 {symbol}[128];" for symbol in others]
    for entry, count in entries.items():
        params = ", ".join(f".param .u64 {entry}_param_{n}" for n in range(count))
        lines.append(f".visible .entry {entry}({params}) {{ ret; }}")
    return "\n".join(lines)


def names_of(entries: dict[str, int], *others: str) -> Names:
    return cpp_names(text_of(entries, *others), SOURCE)


def types_of(found: Names, symbol: str) -> dict[int, str]:
    return {n: to.type for n, to in found.pointees[symbol].items()}


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        (OF_FLOAT, "ns::scale<float>"),
        (PLAIN, "ns::plain"),
        (OF_FUNCTION, "withfn<3>"),
        ("_ZZN2ns5scaleIdEEvPT_PKfiE3buf", "buf"),
        ("_ZZN2ns5plainEPKyP6__halfPvPPfPNS_1SEPVsdE5tiles", "tiles"),
        ("_ZN2ns6hiddenE", "ns::hidden"),
        ("_ZN12_GLOBAL__N_16hiddenE", "(anonymous namespace)::hidden"),
        ("_ZN12_GLOBAL__N_13runEPf", "(anonymous namespace)::run"),
        ("_Z3addB5cxx11Pf", "add"),
        ("_Z4pairISt4pairIifEEvPT_", "pair<std::pair<int, float> >"),
        ("_ZN1AplERKS_", "A::operator+"),
    ],
)
def test_a_symbol_has_its_name_in_cpp_without_types_of_parameters(symbol: str, name: str) -> None:
    assert names_of({}, symbol).of_symbols == {symbol: name}


def test_a_symbol_that_is_none_of_cpp_keeps_its_name() -> None:
    result = names_of({}, "buf", "_Zx", "x_Z1fv", "$_Z1fv")
    assert result == Names({}, {})
    assert demangled("saxpy") == ""
    assert demangled("i") == ""  # which names a type in Itanium's scheme
    assert demangled(PLAIN) == (
        "ns::plain(unsigned long long const*, __half*, void*, float**, ns::S*, short volatile*, double)"
    )


def test_parameters_have_the_names_of_the_source_and_the_types_of_the_symbol() -> None:
    result = names_of({PLAIN: 7, OF_FLOAT: 3, OF_DOUBLE: 3})
    assert [result.of_symbols[f"{PLAIN}_param_{n}"] for n in range(7)] == ["a", "h", "p", "pp", "s", "v", "d"]
    assert [result.of_symbols[f"{OF_DOUBLE}_param_{n}"] for n in range(3)] == ["x", "y", "n"]
    assert types_of(result, PLAIN) == {0: "unsigned long long*", 1: "__half*", 5: "short*"}
    assert types_of(result, OF_FLOAT) == {0: "float*", 1: "float*"}
    assert types_of(result, OF_DOUBLE) == {0: "double*", 1: "float*"}
    assert result.pointees[PLAIN][0].dtypes == ("uint64", "int64")


def test_a_kernel_of_c_has_the_types_of_the_source() -> None:
    result = names_of({"bare": 3})
    assert result.of_symbols == {"bare_param_0": "x", "bare_param_1": "y", "bare_param_2": "n"}
    assert types_of(result, "bare") == {0: "float*", 1: "int*"}


@pytest.mark.parametrize("name", ["twice", "gone", "nowhere"])
def test_what_the_source_does_not_define_once_has_numbers(name: str) -> None:
    result = names_of({name: 1})
    assert result.of_symbols == {f"{name}_param_0": f"{name}_param_0"}
    assert result.pointees == {name: {}}


def test_parameters_that_a_macro_stands_for_have_numbers() -> None:
    result = names_of({"fewer": 2})
    assert result.of_symbols == {"fewer_param_0": "fewer_param_0", "fewer_param_1": "fewer_param_1"}
    assert result.pointees == {"fewer": {}}


def test_commas_in_the_brackets_of_a_type_separate_no_parameters() -> None:
    result = names_of({"map_of": 2})
    assert result.of_symbols == {"map_of_param_0": "m", "map_of_param_1": "x"}
    assert types_of(result, "map_of") == {1: "float*"}


def test_a_pointer_to_a_function_and_one_to_a_pointer_are_of_no_known_elements() -> None:
    result = names_of({OF_FUNCTION: 2})
    assert types_of(result, OF_FUNCTION) == {1: "float*"}


def test_names_known_from_elsewhere_replace_those_of_symbols() -> None:
    result = cpp_names(text_of({OF_FLOAT: 1}), SOURCE, {OF_FLOAT: "ns::scale<float>(1)"})
    assert result.of_symbols == {
        OF_FLOAT: "ns::scale<float>(1)",
        f"{OF_FLOAT}_param_0": "ns::scale<float>(1)_param_0",
    }


def test_parameters_of_a_symbol_that_another_contains_are_its_alone() -> None:
    result = names_of({"bare": 3, "x_bare": 1})
    assert result.of_symbols["x_bare_param_0"] == "x_bare_param_0"
    assert types_of(result, "bare") == {0: "float*", 1: "int*"}
