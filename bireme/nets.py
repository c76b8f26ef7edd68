"""Small networks that models are built from: convolution groups, attention, gated units."""

from collections.abc import Sequence
from typing import Any

from bireme import layers
from bireme.errors import InvalidArgument
from bireme.ir import Variable

__all__ = [
    "glu",
    "img_conv_group",
    "scaled_dot_product_attention",
    "sequence_conv_pool",
    "simple_img_conv_pool",
]


def simple_img_conv_pool(
    input: Variable,
    num_filters: int,
    filter_size: Any,
    pool_size: Any,
    pool_stride: Any,
    pool_padding: Any = 0,
    pool_type: str = "max",
    global_pooling: bool = False,
    conv_stride: Any = 1,
    conv_padding: Any = 0,
    conv_dilation: Any = 1,
    conv_groups: int = 1,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: Any = None,
    use_cudnn: bool = True,
) -> Variable:
    """A convolution and a pooling."""
    convolved = layers.conv2d(
        input=input,
        num_filters=num_filters,
        filter_size=filter_size,
        stride=conv_stride,
        padding=conv_padding,
        dilation=conv_dilation,
        groups=conv_groups,
        param_attr=param_attr,
        bias_attr=bias_attr,
        act=act,
        use_cudnn=use_cudnn,
    )
    pooled: Variable = layers.pool2d(
        input=convolved,
        pool_size=pool_size,
        pool_type=pool_type,
        pool_stride=pool_stride,
        pool_padding=pool_padding,
        global_pooling=global_pooling,
        use_cudnn=use_cudnn,
    )
    return pooled


def img_conv_group(
    input: Variable,
    conv_num_filter: Sequence[int],
    pool_size: Any,
    conv_padding: Any = 1,
    conv_filter_size: Any = 3,
    conv_act: Any = None,
    param_attr: Any = None,
    conv_with_batchnorm: Any = False,
    conv_batchnorm_drop_rate: Any = 0.0,
    pool_stride: Any = 1,
    pool_type: str = "max",
    use_cudnn: bool = True,
) -> Variable:
    """Convolutions, each with batch norm and dropout if asked, and a pooling at the end.

    Settings are given once for all convolutions, or one for each.
    """
    count = len(conv_num_filter)
    paddings, sizes, attrs, norms, rates = (
        _each(value, count)
        for value in (
            *(conv_padding, conv_filter_size, param_attr),
            *(conv_with_batchnorm, conv_batchnorm_drop_rate),
        )
    )
    out = input
    for i, filters in enumerate(conv_num_filter):
        out = layers.conv2d(
            input=out,
            num_filters=filters,
            filter_size=sizes[i],
            padding=paddings[i],
            param_attr=attrs[i],
            act=None if norms[i] else conv_act,
            use_cudnn=use_cudnn,
        )
        if norms[i]:
            out = layers.batch_norm(input=out, act=conv_act)
            if abs(rates[i]) > 1e-5:
                out = layers.dropout(x=out, dropout_prob=rates[i])
    return layers.pool2d(
        input=out,
        pool_size=pool_size,
        pool_type=pool_type,
        pool_stride=pool_stride,
        use_cudnn=use_cudnn,
    )


def _each(value: Any, count: int) -> list[Any]:
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise InvalidArgument(f"{count} convolutions but {len(value)} settings: {value}")
    return list(value)


def sequence_conv_pool(
    input: Variable,
    num_filters: int,
    filter_size: int,
    param_attr: Any = None,
    act: Any = "sigmoid",
    pool_type: str = "max",
    bias_attr: Any = None,
) -> Variable:
    """A convolution along each sequence, pooled to one row."""
    convolved = layers.sequence_conv(
        input=input,
        num_filters=num_filters,
        filter_size=filter_size,
        param_attr=param_attr,
        bias_attr=bias_attr,
        act=act,
    )
    return layers.sequence_pool(input=convolved, pool_type=pool_type)


def glu(input: Variable, dim: int = -1) -> Variable:
    """Half of `input` along `dim`, gated by the sigmoid of the other half."""
    kept, gate = layers.split(input, num_or_sections=2, dim=dim)
    return layers.elementwise_mul(x=kept, y=layers.sigmoid(x=gate))


def scaled_dot_product_attention(
    queries: Variable,
    keys: Variable,
    values: Variable,
    num_heads: int = 1,
    dropout_rate: float = 0.0,
) -> Variable:
    """Attention of `queries` over `keys` and `values`, all (batch, step, width).

    With several heads, each input is projected first.
    """
    _check_attention(queries, keys, values, num_heads)
    if num_heads > 1:
        queries, keys, values = (
            layers.fc(input=x, size=x.shape[-1], num_flatten_dims=2)
            for x in (queries, keys, values)
        )
    q, k, v = (_split_heads(x, num_heads) for x in (queries, keys, values))
    width = keys.shape[-1] // num_heads
    product = layers.matmul(x=layers.scale(x=q, scale=width**-0.5), y=k, transpose_y=True)
    weights = layers.reshape(x=product, shape=[-1, product.shape[-1]], act="softmax")
    weights = layers.reshape(x=weights, shape=product.shape)
    if dropout_rate:
        weights = layers.dropout(weights, dropout_prob=dropout_rate, is_test=False)
    return _joined_heads(layers.matmul(weights, v))


def _check_attention(queries: Variable, keys: Variable, values: Variable, heads: int) -> None:
    if any(len(x.shape) != 3 for x in (queries, keys, values)):
        raise InvalidArgument("queries, keys and values must have three dimensions")
    if queries.shape[-1] != keys.shape[-1]:
        raise InvalidArgument(
            f"queries are {queries.shape[-1]} wide, keys {keys.shape[-1]}: they must be equal"
        )
    if keys.shape[-2] != values.shape[-2]:
        raise InvalidArgument(
            f"there are {keys.shape[-2]} keys but {values.shape[-2]} values: they must be equal"
        )
    if keys.shape[-1] % heads or values.shape[-1] % heads:
        raise InvalidArgument(
            f"keys ({keys.shape[-1]}) and values ({values.shape[-1]}) cannot be cut into "
            f"{heads} heads"
        )


def _split_heads(x: Variable, heads: int) -> Variable:
    if heads == 1:
        return x
    shape = [*_outer(x.shape[:2]), heads, x.shape[-1] // heads]
    return layers.transpose(x=layers.reshape(x=x, shape=shape), perm=[0, 2, 1, 3])


def _joined_heads(x: Variable) -> Variable:
    if len(x.shape) == 3:
        return x
    x = layers.transpose(x, perm=[0, 2, 1, 3])
    return layers.reshape(x=x, shape=[*_outer(x.shape[:2]), x.shape[2] * x.shape[3]])


def _outer(sizes: Sequence[int]) -> list[int]:
    """Sizes to keep; a reshape can find out one of them by itself, and copies the others."""
    return [0, 0] if list(sizes).count(-1) > 1 else list(sizes)
