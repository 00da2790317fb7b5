"""Which tests of a project judge."""

from turngym.environments.swe.factory import quick_tests


def test_the_slowest_tests_are_left_out_until_the_rest_is_quick():
    seconds = {"t.py::b": 0.1, "t.py::a": 0.2, "t.py::slow": 9.0, "t.py::c": 2.9}
    assert quick_tests(seconds, 3.0) == ["t.py::a", "t.py::b"]
    assert quick_tests(seconds, 20.0) == sorted(seconds)
    assert quick_tests({"t.py::only": 9.0}, 3.0) == ["t.py::only"]
