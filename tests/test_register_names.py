from ptxgen.ir import RegisterRange
from ptxgen.register_names import range_of


def test_a_prefix_may_end_in_digits():
    ranges = {"%v1_": RegisterRange("%v1_", "b32", 3), "%q1": RegisterRange("%q1", "b32", 20)}
    assert range_of("%v1_2", ranges) is ranges["%v1_"]
    assert range_of("%q119", ranges) is ranges["%q1"]
    assert range_of("%q120", ranges) is None
    assert range_of("%q101", ranges) is None
    assert range_of("%r1", ranges) is None
