"""Cases of convolution, pooling and interpolation, against references that loop."""

import itertools
from typing import Any

import numpy as np

from .case import Array, Case, numbers

_CONV: dict[str, Any] = {"dilations": [1, 1], "groups": 1, "padding_algorithm": "EXPLICIT"}
_POOL: dict[str, Any] = {
    "ksize": [2, 2],
    "strides": [2, 2],
    "paddings": [0, 0],
    "exclusive": True,
    "adaptive": False,
    "global_pooling": False,
    "ceil_mode": False,
    "padding_algorithm": "EXPLICIT",
    "data_format": "NCHW",
}


def _index(*parts: Any) -> Any:
    return parts


def _pads(paddings: Any, rank: int) -> list[tuple[int, int]]:
    if len(paddings) == rank:
        return [(p, p) for p in paddings]
    return list(zip(paddings[::2], paddings[1::2], strict=True))


def _conv(
    Input: Array, Filter: Array, strides: Any, paddings: Any, dilations: Any, groups: int
) -> Array:
    """Direct convolution of float64 arrays, one output element at a time."""
    rank = Input.ndim - 2
    x = np.pad(Input.astype("float64"), [(0, 0), (0, 0), *_pads(paddings, rank)])
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, Filter.shape[2:], strict=True)]
    out = [(n - r) // s + 1 for n, r, s in zip(x.shape[2:], reach, strides, strict=True)]
    per = Filter.shape[0] // groups
    y = np.zeros((len(x), Filter.shape[0], *out))
    for o in range(Filter.shape[0]):
        channels = slice(o // per * Filter.shape[1], (o // per + 1) * Filter.shape[1])
        for at in itertools.product(*map(range, out)):
            places = zip(at, strides, reach, dilations, strict=True)
            window = tuple(slice(a * s, a * s + r, d) for a, s, r, d in places)
            part = x[_index(slice(None), channels, *window)].reshape(len(x), -1)
            y[_index(slice(None), o, *at)] = part @ Filter[o].astype("float64").reshape(-1)
    return y.astype("float32")


def _relu_conv(
    Input: Array, Filter: Array, strides: Any, paddings: Any, dilations: Any, groups: int
) -> Array:
    return _conv(np.maximum(Input, 0), Filter, strides, paddings, dilations, groups)


def _conv_transpose(
    Input: Array,
    Filter: Array,
    strides: Any,
    paddings: Any,
    dilations: Any,
    groups: int,
    output_size: Any,
) -> Array:
    """Every input element spreads its filter over the output."""
    rank = Input.ndim - 2
    pads = _pads(paddings, rank)
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, Filter.shape[2:], strict=True)]
    full = [(n - 1) * s + r for n, s, r in zip(Input.shape[2:], strides, reach, strict=True)]
    size = list(output_size) or [n - sum(p) for n, p in zip(full, pads, strict=True)]
    room = [max(n, m + sum(p)) for n, m, p in zip(full, size, pads, strict=True)]
    y = np.zeros((len(Input), Filter.shape[1] * groups, *room))
    for c in range(Input.shape[1]):
        group = c // (Input.shape[1] // groups)
        channels = slice(group * Filter.shape[1], (group + 1) * Filter.shape[1])
        for at in itertools.product(*map(range, Input.shape[2:])):
            places = zip(at, strides, reach, dilations, strict=True)
            window = tuple(slice(a * s, a * s + r, d) for a, s, r, d in places)
            value = Input[_index(slice(None), c, *at)].astype("float64")
            y[_index(slice(None), channels, *window)] += np.multiply.outer(value, Filter[c])
    cut = tuple(slice(lo, lo + n) for (lo, _), n in zip(pads, size, strict=True))
    return y[_index(..., *cut)].astype("float32")


def _pool(
    X: Array,
    ksize: Any,
    strides: Any,
    paddings: Any,
    pooling_type: str,
    exclusive: bool,
    ceil_mode: bool,
) -> Array:
    pads = _pads(paddings, X.ndim - 2)
    out = []
    for n, k, s, p in zip(X.shape[2:], ksize, strides, pads, strict=True):
        room = n + sum(p) - k
        out.append((-(-room // s) if ceil_mode else room // s) + 1)
    y = np.zeros((*X.shape[:2], *out), dtype="float32")
    for at in itertools.product(*map(range, out)):
        window = []
        for a, k, s, (lo, _), n in zip(at, ksize, strides, pads, X.shape[2:], strict=True):
            start = a * s - lo
            window.append(slice(max(start, 0), min(start + k, n)))
        part = X[_index(..., *window)].reshape(*X.shape[:2], -1)
        if pooling_type == "max":
            y[_index(..., *at)] = part.max(axis=-1)
        else:
            count = part.shape[-1] if exclusive else int(np.prod(ksize))
            y[_index(..., *at)] = part.sum(axis=-1) / count
    return y


def _adaptive(X: Array, ksize: Any, pooling_type: str) -> Array:
    y = np.zeros((*X.shape[:2], *ksize), dtype="float32")
    for at in itertools.product(*map(range, ksize)):
        axes = zip(at, ksize, X.shape[2:], strict=True)
        window = tuple(slice(a * n // m, -(-(a + 1) * n // m)) for a, m, n in axes)
        part = X[_index(..., *window)].reshape(*X.shape[:2], -1)
        y[_index(..., *at)] = part.max(axis=-1) if pooling_type == "max" else part.mean(axis=-1)
    return y


def _with_index(X: Array, ksize: Any, strides: Any) -> dict[str, Array]:
    plane = np.arange(np.prod(X.shape[2:])).reshape(X.shape[2:])
    out = [(n - k) // s + 1 for n, k, s in zip(X.shape[2:], ksize, strides, strict=True)]
    y = np.zeros((*X.shape[:2], *out), dtype="float32")
    mask = np.zeros(y.shape, dtype="int32")
    for at in itertools.product(*map(range, out)):
        axes = zip(at, ksize, strides, strict=True)
        window = tuple(slice(a * s, a * s + k) for a, k, s in axes)
        part = X[_index(..., *window)].reshape(*X.shape[:2], -1)
        y[_index(..., *at)] = part.max(axis=-1)
        mask[_index(..., *at)] = plane[window].reshape(-1)[part.argmax(axis=-1)]
    return {"Out": y, "Mask": mask}


def _interp(
    X: Array, out_h: int, out_w: int, align_corners: bool, align_mode: int, nearest: bool
) -> Array:
    y = np.zeros((*X.shape[:2], out_h, out_w), dtype="float32")

    def source(i: int, n: int, m: int) -> float:
        if align_corners:
            return i * (n - 1) / (m - 1) if m > 1 else 0.0
        return max((i + 0.5) * n / m - 0.5, 0) if align_mode == 0 and not nearest else i * n / m

    h, w = X.shape[2:]
    for i, j in itertools.product(range(out_h), range(out_w)):
        a, b = source(i, h, out_h), source(j, w, out_w)
        if nearest:
            half = 0.5 if align_corners else 0.0
            y[:, :, i, j] = X[:, :, min(int(a + half), h - 1), min(int(b + half), w - 1)]
            continue
        i0, j0 = int(a), int(b)
        i1, j1 = min(i0 + 1, h - 1), min(j0 + 1, w - 1)
        p, q = a - i0, b - j0
        top = X[:, :, i0, j0] * (1 - q) + X[:, :, i0, j1] * q
        y[:, :, i, j] = top * (1 - p) + (X[:, :, i1, j0] * (1 - q) + X[:, :, i1, j1] * q) * p
    return y


def _unfold(X: Array) -> Array:
    padded = np.pad(X, [(0, 0), (0, 0), (1, 0), (0, 1)])
    columns = [
        padded[:, :, i : i + 2, j * 2 : j * 2 + 3].reshape(len(X), -1)
        for i in range(padded.shape[2] - 1)
        for j in range((padded.shape[3] - 3) // 2 + 1)
    ]
    return np.stack(columns, axis=2)


def _spread_channels(X: Array) -> Array:
    """Two channels remain; the others fill each pixel's block of two by two."""
    image = np.zeros((2, 2, 4, 8), X.dtype)
    for k in range(8):
        i, j = divmod(k // 2, 2)
        image[:, k % 2, i::2, j::2] = X[:, k]
    return image.reshape(2, 32, 1, 2)


def _spectral(Weight: Array, U: Array, V: Array) -> Array:
    w, u = Weight.astype("float64"), U.astype("float64")
    for _ in range(2):
        v = w.T @ u
        v /= np.sqrt(v @ v)
        u = w @ v
        u /= np.sqrt(u @ u)
    return Weight / (u @ w @ v)


def _conv_case(label: str, x: Array, w: Array, op: str = "conv2d", **attrs: Any) -> Case:
    rank = x.ndim - 2
    full = {
        **_CONV,
        "strides": [1] * rank,
        "paddings": [0] * rank,
        "dilations": [1] * rank,
        **attrs,
    }
    return Case(op, {"Input": x, "Filter": w}, _conv, full, label=label, tolerance=1e-4, step=1e-3)


def _back_case(label: str, x: Array, w: Array, op: str = "conv2d_transpose", **attrs: Any) -> Case:
    rank = x.ndim - 2
    full = {
        **_CONV,
        "strides": [1] * rank,
        "paddings": [0] * rank,
        "dilations": [1] * rank,
        **attrs,
    }
    full.setdefault("output_size", [])
    inputs = {"Input": x, "Filter": w}
    return Case(op, inputs, _conv_transpose, full, label=label, tolerance=1e-4, step=1e-3)


_image = numbers(2, 4, 5, 6)
_volume = numbers(2, 2, 3, 4, 3)

_WINDOWS: dict[str, dict[str, Any]] = {
    "plain": {},
    "padded": {"ksize": [3, 3], "paddings": [1, 1]},
    "counted": {"ksize": [3, 3], "paddings": [1, 1], "exclusive": False},
    "ceil": {"ceil_mode": True, "ksize": [2, 3]},
    "overlap": {"strides": [1, 1]},
}

CASES = [
    _conv_case("plain", _image, numbers(3, 4, 3, 3)),
    _conv_case("pointwise", _image, numbers(3, 4, 1, 1)),
    _conv_case("padded", _image, numbers(3, 4, 3, 2), paddings=[1, 0]),
    _conv_case("strided", _image, numbers(3, 4, 2, 3), strides=[2, 2], paddings=[1, 1]),
    _conv_case("pointwise-strided", _image, numbers(3, 4, 1, 1), strides=[2, 2]),
    _conv_case("dilated", _image, numbers(3, 4, 2, 2), dilations=[2, 3]),
    _conv_case("uneven", _image, numbers(3, 4, 3, 3), paddings=[0, 1, 2, 1]),
    _conv_case("grouped", _image, numbers(6, 2, 2, 2), groups=2, strides=[1, 2]),
    _conv_case("far-padded", _image, numbers(3, 4, 2, 2), paddings=[3, 3]),
    _conv_case("", _image, numbers(4, 1, 3, 3), "depthwise_conv2d", groups=4, paddings=[1, 1]),
    Case(
        "fused_relu_depthwise_conv2d",
        {"Input": _image, "Filter": numbers(4, 1, 3, 3)},
        _relu_conv,
        {**_CONV, "strides": [1, 1], "paddings": [1, 1], "dilations": [1, 1], "groups": 4},
        tolerance=1e-4,
        step=1e-3,
    ),
    _conv_case("", _volume, numbers(3, 2, 2, 2, 2), "conv3d", paddings=[1, 0, 1]),
    _back_case("plain", _image, numbers(4, 3, 2, 3)),
    _back_case("strided", _image, numbers(4, 3, 3, 3), strides=[2, 2], paddings=[1, 1]),
    _back_case("grouped", _image, numbers(4, 2, 2, 2), groups=2, dilations=[1, 2]),
    _back_case(
        "sized", _image, numbers(4, 3, 4, 4), strides=[2, 2], paddings=[1, 1], output_size=[11, 13]
    ),
    _back_case("", _image, numbers(4, 1, 3, 3), "depthwise_conv2d_transpose", groups=4),
    _back_case("", _volume, numbers(2, 3, 2, 2, 2), "conv3d_transpose", strides=[2, 1, 2]),
    *(
        Case(
            "pool2d",
            {"X": _image},
            _pool,
            {**_POOL, "pooling_type": kind, **more},
            label=f"{kind}-{label}",
        )
        for kind in ("max", "avg")
        for label, more in _WINDOWS.items()
    ),
    *(
        Case(
            "pool2d",
            {"X": _image},
            _adaptive,
            {**_POOL, "pooling_type": kind, "ksize": [3, 4], "adaptive": True},
            label=f"{kind}-adaptive",
        )
        for kind in ("max", "avg")
    ),
    Case(
        "pool2d",
        {"X": _image},
        lambda X: X.mean(axis=(2, 3), keepdims=True),
        {**_POOL, "pooling_type": "avg", "global_pooling": True},
        label="global",
    ),
    Case(
        "pool2d",
        {"X": _image},
        lambda X: X[:, ::2, ::2].astype("float32"),
        {**_POOL, "pooling_type": "max", "ksize": [1, 1], "data_format": "NHWC"},
        label="channels-last",
    ),
    Case(
        "pool3d",
        {"X": _volume},
        _pool,
        {
            **_POOL,
            "pooling_type": "max",
            "ksize": [2, 2, 2],
            "strides": [1, 2, 1],
            "paddings": [0, 0, 0],
            "data_format": "NCDHW",
        },
    ),
    *(
        Case(
            f"max_pool{rank}d_with_index",
            {"X": x},
            _with_index,
            {
                "ksize": [2] * rank,
                "strides": [1] * rank,
                "paddings": [0] * rank,
                "adaptive": False,
                "global_pooling": False,
            },
            without=("Mask",),
        )
        for rank, x in ((2, _image), (3, _volume))
    ),
    *(
        Case(
            f"{kind}_interp",
            {"X": _image},
            lambda X, out_h, out_w, align_corners, align_mode, interp_method: _interp(
                X, out_h, out_w, align_corners, align_mode, interp_method == "nearest"
            ),
            {
                "out_h": h,
                "out_w": w,
                "align_corners": corners,
                "align_mode": mode,
                "interp_method": kind,
            },
            label=f"{h}x{w}-{corners}-{mode}",
            tolerance=1e-4,
        )
        for kind in ("bilinear", "nearest")
        for h, w, corners, mode in ((9, 11, True, 1), (3, 4, False, 0), (7, 3, False, 1))
    ),
    Case(
        "trilinear_interp",
        {"X": _volume},
        lambda X: X.astype("float32"),
        {"out_d": 3, "out_h": 4, "out_w": 3, "interp_method": "trilinear"},
    ),
    Case(
        "pixel_shuffle",
        {"X": _image},
        lambda X: X.reshape(2, 2, 2, 5, 6).transpose(0, 3, 1, 4, 2).reshape(2, 1, 10, 12),
        {"upscale_factor": 2},
    ),
    Case(
        "space_to_depth",
        {"X": numbers(2, 8, 2, 4)},
        _spread_channels,
        {"blocksize": 2},
    ),
    Case(
        "shuffle_channel",
        {"X": numbers(2, 6, 2, 2)},
        lambda X: X[:, [0, 3, 1, 4, 2, 5]],
        {"group": 2},
    ),
    Case(
        "temporal_shift",
        {"X": numbers(4, 4, 2, 1)},
        lambda X: np.stack(
            [
                np.stack([0 * X[0, 0], X[1, 1], X[0, 2], X[0, 3]]),
                np.stack([X[0, 0], 0 * X[1, 1], X[1, 2], X[1, 3]]),
                np.stack([0 * X[2, 0], X[3, 1], X[2, 2], X[2, 3]]),
                np.stack([X[2, 0], 0 * X[3, 1], X[3, 2], X[3, 3]]),
            ]
        ),
        {"seg_num": 2, "shift_ratio": 0.25},
    ),
    Case(
        "affine_channel",
        {"X": _image, "Scale": numbers(4, seed=3), "Bias": numbers(4, seed=4)},
        lambda X, Scale, Bias: X * Scale[:, None, None] + Bias[:, None, None],
        {"data_layout": "NCHW"},
    ),
    Case(
        "unfold",
        {"X": numbers(2, 2, 3, 4)},
        _unfold,
        {"kernel_sizes": [2, 3], "strides": [1, 2], "paddings": [1, 0, 0, 1], "dilations": [1, 1]},
    ),
    Case(
        "spectral_norm",
        {"Weight": numbers(4, 3), "U": numbers(4, seed=1), "V": numbers(3, seed=2)},
        _spectral,
        {"dim": 0, "power_iters": 2, "eps": 1e-12},
        grads=(),
        tolerance=1e-4,
    ),
]
