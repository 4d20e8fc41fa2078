"""Arrays in JSON."""

import base64
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from isomargin.core import json_values
from isomargin.core.errors import InputError
from isomargin.core.json_values import KINDS, pack_array, unpack_array


@given(st.sampled_from(KINDS).flatmap(lambda kind: arrays.arrays(kind, st.sampled_from([(3,), (65,), (9, 31)]))))
def test_what_is_read_has_the_bits_of_what_was_written(array):
    read = unpack_array(pack_array(array))
    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    if array.size > 64:
        assert read.tobytes() == array.tobytes()  # NaN and the sign of zero as they were
    else:
        np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize(("length", "what"), [(99, "too short"), (101, "too long")])
def test_an_array_of_another_length_than_its_shape_is_refused(length, what):
    packed = pack_array(np.arange(100, dtype=np.uint32))
    packed["zlib"] = base64.b64encode(zlib.compress(bytes(4 * length))).decode()
    with pytest.raises(InputError, match=what):
        unpack_array(packed)


@pytest.mark.parametrize(("shape", "what"), [([10**6], "of memory is available"), ([10**6, 10**9], "too short")])
def test_an_array_larger_than_its_bytes_or_the_memory_can_be_is_refused_before_it_is_unpacked(monkeypatch, shape, what):
    packed = {"dtype": "float64", "shape": shape, "zlib": base64.b64encode(zlib.compress(bytes(8 * 10**6), 9)).decode()}
    assert unpack_array({**packed, "shape": [10**6]}).shape == (10**6,)
    monkeypatch.setattr("isomargin.core.memory.available_memory", lambda: 10**6)
    monkeypatch.setattr(json_values, "join_planes", lambda *_: pytest.fail("the array was unpacked"))
    with pytest.raises(InputError, match=what):
        unpack_array(packed)
