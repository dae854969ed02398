"""The scalar types: one object for each."""

from __future__ import annotations

import copy
import pickle

import pytest

from ptxgen.errors import ModifierError
from ptxgen.types import TYPES, ScalarType, scalar_type


@pytest.mark.parametrize("type", TYPES.values(), ids=str)
def test_a_copy_of_a_type_is_the_type(type: ScalarType) -> None:
    assert copy.copy(type) is type
    assert copy.deepcopy([type])[0] is type
    assert pickle.loads(pickle.dumps(type)) is type
    assert scalar_type(str(type)) is type


def test_an_unknown_type_names_the_nearest() -> None:
    with pytest.raises(ModifierError, match=r"^no PTX type 'f23'; did you mean 'f32'"):
        scalar_type("f23")
