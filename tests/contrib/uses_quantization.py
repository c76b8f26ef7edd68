"""Fake quantization as programs do it that learn with it or were saved with it; see
`tests/detection/uses.py`.
"""

import numpy as np

from tests.detection.uses import data, draw, feeds, maps

USES = {}  # type: ignore[var-annotated]  # read by Python 3.7 as well


def use(function):
    USES[function.__name__] = function
    return function


def append(f, type, inputs, slots, dtype="float32", **attrs):
    """Append an operator, as passes of 1.8.5 do, and return its outputs."""
    helper = f.layer_helper.LayerHelper(type)
    made = {slot: helper.create_variable_for_type_inference(dtype) for slot in slots.split()}
    helper.append_op(type=type, inputs=inputs, outputs=made, attrs=attrs)
    return [made[slot] for slot in slots.split()]


@use
def by_greatest_value(f):
    feed = feeds()
    x = data(f, feed, "x", maps("x", 16, 3, 12, 12))
    out = append(f, "fake_quantize_abs_max", {"X": x}, "Out OutScale", bit_length=8)
    out += append(f, "fake_quantize_abs_max", {"X": x}, "Out OutScale", bit_length=4)
    out += append(
        f, "fake_dequantize_max_abs", {"X": out[0], "Scale": out[1]}, "Out", max_range=127.0
    )
    return out, feed, []


@use
def by_channel(f):
    feed = feeds()
    weight = data(f, feed, "w", maps("w", 16, 8, 3, 3))
    x = data(f, feed, "x", np.rint(50 * maps("x", 4, 16, 7, 7)))
    scale = data(f, feed, "s", np.array([2.5], "float32"))
    type = "fake_channel_wise_quantize_abs_max"
    whole, channels = append(f, type, {"X": weight}, "Out OutScale", bit_length=8)
    type = "fake_channel_wise_dequantize_max_abs"
    back = append(f, type, {"X": whole, "Scales": [channels]}, "Out", quant_bits=[8])
    both = append(f, type, {"X": x, "Scales": [channels, scale]}, "Out", quant_bits=[8, 8])
    return [whole, channels] + back + both, feed, []


def _states(f, feed):
    return {
        "X": data(f, feed, "x", maps("x", 32, 40)),
        "InScale": data(f, feed, "scale", np.array([2.0], "float32")),
        "InState": data(f, feed, "state", np.array([3.5], "float32")),
        "InAccum": data(f, feed, "accum", np.array([8.0], "float32")),
    }


_MOVING = "Out OutScale OutState OutAccum"


@use
def by_moving_average(f):
    feed = feeds()
    given = _states(f, feed)
    type = "fake_quantize_moving_average_abs_max"
    out = append(f, type, given, _MOVING, moving_rate=0.9, bit_length=8, is_test=False)
    out += append(f, type, given, "Out OutScale", bit_length=8, is_test=True)[:1]
    return out, feed, []


@use
def there_and_back_by_moving_average(f):
    feed = feeds()
    given = _states(f, feed)
    type = "fake_quantize_dequantize_moving_average_abs_max"
    out = append(f, type, given, _MOVING, moving_rate=0.8, bit_length=8, is_test=False)
    out += append(f, type, given, "Out OutScale", bit_length=5, is_test=True)[:1]
    return out, feed, []


@use
def scale_alone(f):
    feed = feeds()
    given = _states(f, feed)
    del given["InScale"]
    type = "moving_average_abs_max_scale"
    return append(f, type, given, _MOVING, moving_rate=0.9, is_test=False), feed, []


@use
def by_learnt_range(f):
    feed = feeds()
    given = _states(f, feed)
    given = {"X": given["X"], "InScale": given["InScale"]}
    type = "fake_quantize_range_abs_max"
    return append(f, type, given, "Out OutScale", bit_length=8, is_test=True)[:1], feed, []


@use
def integers_to_floats(f):
    feed = feeds()
    x = data(f, feed, "x", draw("x").randint(-128, 128, (20, 30)).astype("int8"))
    scale = data(f, feed, "s", np.array([0.7], "float32"))
    table = data(f, feed, "d", np.sort(draw("d").uniform(0, 1, 128).astype("float32")))
    out = append(f, "dequantize_abs_max", {"X": x, "Scale": scale}, "Out", max_range=127.0)
    return out + append(f, "dequantize_log", {"X": x, "Dict": table}, "Out"), feed, []


@use
def of_next_to_nothing(f):
    feed = feeds()
    out = []
    for i, scale in enumerate((1e-40, 2e-38, 9e-31, 1e-29)):
        x = data(f, feed, f"x{i}", np.array([[1, -2, 0], [0.1, 0.5, -1]], "float32") * scale)
        for type in ("fake_quantize_abs_max", "fake_channel_wise_quantize_abs_max"):
            out += append(f, type, {"X": x}, "Out OutScale", bit_length=8)
    return out, feed, []
