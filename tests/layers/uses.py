"""Small uses of every layer, written against a `fluid` argument that is bireme or Fluid itself."""

import numpy

USES = {}  # type: ignore[var-annotated]  # read by Python 3.8 as well


def add(name, build):
    USES[name] = build


def x(f, shape=(4, 6), dtype="float32", name="x", grad=True, batch=False):
    v = f.layers.data(name, list(shape), append_batch_size=batch, dtype=dtype)
    v.stop_gradient = not grad
    return v


def ids(f, shape=(4, 1), dtype="int64", name="ids"):
    return x(f, shape, dtype, name, grad=False)


UNARY = """abs acos asin atan ceil cos exp floor log log1p logsigmoid reciprocal relu round rsqrt
    sigmoid sign sin softplus softsign sqrt square tanh tanh_shrink erf""".split()
for _n in UNARY:
    add(_n, lambda f, n=_n: getattr(f.layers, n)(x(f)))
ATTRS = {
    "brelu": dict(t_min=1.0, t_max=20.0),
    "elu": dict(alpha=0.7),
    "gelu": dict(approximate=True),
    "hard_shrink": dict(threshold=0.4),
    "hard_sigmoid": dict(slope=0.3),
    "hard_swish": {},
    "leaky_relu": dict(alpha=0.1),
    "pow": dict(factor=3.0),
    "relu6": dict(threshold=5.0),
    "scale": dict(scale=2.0, bias=1.0),
    "selu": {},
    "soft_relu": dict(threshold=30.0),
    "softshrink": dict(alpha=0.3),
    "stanh": {},
    "swish": dict(beta=2.0),
    "thresholded_relu": dict(threshold=0.9),
    "mish": {},
    "softmax": {},
    "log_softmax": {},
    "mean": {},
    "clip": dict(min=-1.0, max=1.0),
    "clip_by_norm": dict(max_norm=1.0),
    "cumsum": dict(axis=1, exclusive=True, reverse=True),
    "flatten": {},
    "reverse": dict(axis=1),
    "l2_normalize": dict(axis=1),
    "reshape": dict(shape=[-1, 8]),
    "transpose": dict(perm=[1, 0]),
    "unsqueeze": dict(axes=[1]),
    "label_smooth": {},
    "expand": dict(expand_times=[2, 1]),
    "pad": dict(paddings=[0, 1, 2, 3]),
    "dropout": dict(dropout_prob=0.3),
    "slice": dict(axes=[0, 1], starts=[1, 0], ends=[3, -1]),
    "strided_slice": dict(axes=[1], starts=[0], ends=[6], strides=[2]),
    "crop": dict(shape=[2, 3], offsets=[1, 1]),
    "crop_tensor": dict(shape=[2, 3], offsets=[1, 1]),
    "has_inf": {},
    "has_nan": {},
    "isfinite": {},
    "is_empty": {},
    "shape": {},
    "size": {},
    "rank": {},
    "argmax": {},
    "argmin": dict(axis=1),
    "argsort": dict(axis=0),
    "topk": dict(k=2),
    "zeros_like": {},
    "ones_like": {},
    "cast": dict(dtype="float64"),
    "assign": {},
    "increment": dict(value=2.0),
    "unstack": dict(axis=1),
    "split": dict(num_or_sections=2),
    "stack": {},
    "sum": {},
    "sums": {},
    "unique": {},
    "unique_with_counts": {},
    "multiplex": None,
    "tril": None,
    "fill_constant_batch_size_like": dict(shape=[-1, 3], dtype="float32", value=2.0),
    "prelu": dict(mode="all"),
    "unbind": None,
    "Print": {},
    "create_tensor": None,
    "uniform_random_batch_size_like": dict(shape=[-1, 3]),
    "triu": {},
    "roll": None,
    "trace": None,
    "diag_embed": None,
    "logsumexp": None,
}
for _n, _k in ATTRS.items():
    if _k is not None:
        add(_n, lambda f, n=_n, k=_k: getattr(f.layers, n)(x(f), **k))
for _n in "abs relu softmax reshape slice mean".split():
    add(
        _n + "_batch",
        lambda f, n=_n: getattr(f.layers, n)(x(f, (3, 6), batch=True), **(ATTRS.get(n) or {})),
    )
for _n in "add sub mul div max min pow".split():
    add(
        "elementwise_" + _n,
        lambda f, n=_n: getattr(f.layers, "elementwise_" + n)(x(f), x(f, name="y")),
    )
    add(
        f"elementwise_{_n}_axis",
        lambda f, n=_n: getattr(f.layers, "elementwise_" + n)(
            x(f, (2, 3, 4)), x(f, (3,), name="y"), axis=1, act="relu"
        ),
    )
for _n in "mod floordiv".split():
    add(
        "elementwise_" + _n,
        lambda f, n=_n: getattr(f.layers, "elementwise_" + n)(ids(f), ids(f, name="y")),
    )
for _n in "less_than less_equal greater_than greater_equal equal not_equal".split():
    add(_n, lambda f, n=_n: getattr(f.layers, n)(x(f), x(f, name="y")))
add("less_than_cpu", lambda f: f.layers.less_than(x(f), x(f, name="y"), force_cpu=True))
for _n in "and or xor".split():
    add(
        "logical_" + _n,
        lambda f, n=_n: getattr(f.layers, "logical_" + n)(
            x(f, dtype="bool", grad=False), x(f, dtype="bool", name="y", grad=False)
        ),
    )
add("logical_not", lambda f: f.layers.logical_not(x(f, dtype="bool", grad=False)))
for _n in "sum mean max min prod".split():
    add("reduce_" + _n, lambda f, n=_n: getattr(f.layers, "reduce_" + n)(x(f)))
    add(
        f"reduce_{_n}_dim",
        lambda f, n=_n: getattr(f.layers, "reduce_" + n)(
            x(f, (2, 3, 4)), dim=[-1, 0], keep_dim=True
        ),
    )
    add(
        f"reduce_{_n}_1",
        lambda f, n=_n: getattr(f.layers, "reduce_" + n)(x(f, (3, 4), batch=True), dim=1),
    )
for _n in "all any".split():
    add(
        "reduce_" + _n,
        lambda f, n=_n: getattr(f.layers, "reduce_" + n)(x(f, dtype="bool", grad=False), dim=1),
    )

add("fc", lambda f: f.layers.fc(x(f, (6,), batch=True), 5, act="tanh"))
add("fc_3d", lambda f: f.layers.fc(x(f, (3, 6), batch=True), 5, num_flatten_dims=2, act="softmax"))
add(
    "fc_two",
    lambda f: f.layers.fc(
        [x(f, (6,), batch=True), x(f, (2, 4), batch=True, name="y")], 5, act="relu", name="out"
    ),
)
add("fc_nobias", lambda f: f.layers.fc(x(f, (6,), batch=True), 5, bias_attr=False))
add(
    "fc_attr",
    lambda f: f.layers.fc(
        x(f, (6,), batch=True),
        5,
        param_attr=f.ParamAttr(name="w", learning_rate=0.5),
        bias_attr=f.ParamAttr(name="b", initializer=f.initializer.Constant(0.5)),
    ),
)
add("mul", lambda f: f.layers.mul(x(f), x(f, (6, 3), name="y")))
add(
    "mul_cols",
    lambda f: f.layers.mul(
        x(f, (2, 3, 4)), x(f, (2, 2, 3), name="y"), x_num_col_dims=2, y_num_col_dims=2
    ),
)
add(
    "matmul",
    lambda f: f.layers.matmul(
        x(f, (2, 3, 4)), x(f, (2, 5, 4), name="y"), transpose_y=True, alpha=0.5
    ),
)
add("matmul_vec", lambda f: f.layers.matmul(x(f, (4,)), x(f, (4,), name="y")))
add("matmul_mv", lambda f: f.layers.matmul(x(f, (2, 3, 4)), x(f, (4,), name="y")))
add("matmul_batch", lambda f: f.layers.matmul(x(f, (3, 4), batch=True), x(f, (4, 5), name="y")))
add("bmm", lambda f: f.layers.bmm(x(f, (2, 3, 4)), x(f, (2, 4, 5), name="y")))
add("dot", lambda f: f.layers.dot(x(f), x(f, name="y")))
add("cos_sim", lambda f: f.layers.cos_sim(x(f), x(f, name="y")))
add(
    "bilinear",
    lambda f: f.layers.bilinear_tensor_product(
        x(f, (5,), batch=True), x(f, (4,), name="y", batch=True), 3
    ),
)
add("cross_entropy", lambda f: f.layers.cross_entropy(x(f, (6,), batch=True), ids(f, (-1, 1))))
add("cross_entropy_ignore", lambda f: f.layers.cross_entropy(x(f), ids(f), ignore_index=3))
add(
    "cross_entropy_soft",
    lambda f: f.layers.cross_entropy(x(f), x(f, name="y", grad=False), soft_label=True),
)
add("swce", lambda f: f.layers.softmax_with_cross_entropy(x(f), ids(f)))
add(
    "swce_soft",
    lambda f: f.layers.softmax_with_cross_entropy(
        x(f), x(f, name="y", grad=False), soft_label=True, return_softmax=True
    ),
)
add(
    "swce_axis",
    lambda f: f.layers.softmax_with_cross_entropy(
        x(f, (2, 3, 4)), ids(f, (2, 1, 4)), axis=1, ignore_index=2
    ),
)
add(
    "sigmoid_ce",
    lambda f: f.layers.sigmoid_cross_entropy_with_logits(
        x(f), x(f, name="y", grad=False), normalize=True
    ),
)
add("square_error_cost", lambda f: f.layers.square_error_cost(x(f), x(f, name="y")))
add("smooth_l1", lambda f: f.layers.smooth_l1(x(f), x(f, name="y")))
add(
    "smooth_l1_w",
    lambda f: f.layers.smooth_l1(
        x(f), x(f, name="y"), x(f, name="i", grad=False), x(f, name="o", grad=False), sigma=2.0
    ),
)
add("huber_loss", lambda f: f.layers.huber_loss(x(f), x(f, name="y"), 0.5))
add("log_loss", lambda f: f.layers.log_loss(x(f, (4, 1)), x(f, (4, 1), name="y", grad=False)))
add("mse_loss", lambda f: f.layers.mse_loss(x(f), x(f, name="y")))
for _r in "mean sum batchmean none".split():
    add(
        "kldiv_" + _r,
        lambda f, r=_r: f.layers.kldiv_loss(x(f), x(f, name="y", grad=False), reduction=r),
    )
add(
    "label_smooth_prior",
    lambda f: f.layers.label_smooth(x(f), x(f, (1, 6), name="p", grad=False), 0.2),
)
add(
    "rank_loss",
    lambda f: f.layers.rank_loss(
        x(f, (4, 1), name="l", grad=False), x(f, (4, 1)), x(f, (4, 1), name="r")
    ),
)
add(
    "margin_rank_loss",
    lambda f: f.layers.margin_rank_loss(
        x(f, (4, 1), name="l", grad=False), x(f, (4, 1)), x(f, (4, 1), name="r")
    ),
)
add("bpr_loss", lambda f: f.layers.bpr_loss(x(f), ids(f)))
add("dice_loss", lambda f: f.layers.dice_loss(x(f), ids(f)))
add(
    "npair_loss",
    lambda f: f.layers.npair_loss(x(f), x(f, name="p"), x(f, (4,), name="l", grad=False)),
)
add(
    "ts_loss",
    lambda f: f.layers.teacher_student_sigmoid_loss(
        x(f, (4, 1)), x(f, (4, 1), name="l", grad=False)
    ),
)
add("sampled_softmax", lambda f: f.layers.sampled_softmax_with_cross_entropy(x(f), ids(f), 3))
add("center_loss", lambda f: f.layers.center_loss(x(f), ids(f), 5, 0.1, f.ParamAttr(name="c")))
add("concat", lambda f: f.layers.concat([x(f), x(f, name="y")], axis=1))
add(
    "concat_batch",
    lambda f: f.layers.concat([x(f, (3,), batch=True), x(f, (5,), name="y", batch=True)], axis=-1),
)
add("split_sections", lambda f: f.layers.split(x(f), [1, 2, -1], dim=1)[1])
add("stack_two", lambda f: f.layers.stack([x(f), x(f, name="y")], axis=-1))
add("sums_two", lambda f: f.layers.sums([x(f), x(f, name="y")]))
add(
    "sums_out",
    lambda f: f.layers.sums(
        [x(f), x(f, name="y")], out=f.layers.create_tensor("float32", name="o")
    ),
)
add("squeeze", lambda f: f.layers.squeeze(x(f, (4, 1, 3, 1)), [1]))
add("squeeze_all", lambda f: f.layers.squeeze(x(f, (4, 1, 3, 1)), []))
add("unsqueeze_two", lambda f: f.layers.unsqueeze(x(f), [0, -1]))
add("reshape_act", lambda f: f.layers.reshape(x(f, (3, 6), batch=True), [0, -1, 2], act="relu"))
add("reshape_inplace", lambda f: f.layers.reshape(x(f), [3, 8], inplace=True))
add("reshape_var", lambda f: f.layers.reshape(x(f), f.layers.shape(x(f, (8, 3), name="y"))))
add("reshape_list", lambda f: f.layers.reshape(x(f), [f.layers.fill_constant([1], "int32", 3), -1]))
add("flatten_2", lambda f: f.layers.flatten(x(f, (2, 3, 4), batch=True), axis=2))
add(
    "slice_var", lambda f: f.layers.slice(x(f), [0], [f.layers.fill_constant([1], "int32", 1)], [3])
)
add(
    "slice_tensor",
    lambda f: f.layers.slice(
        x(f), [0], f.layers.fill_constant([1], "int32", 1), f.layers.fill_constant([1], "int32", 3)
    ),
)
add("gather", lambda f: f.layers.gather(x(f), ids(f, (3,))))
add("gather_nd", lambda f: f.layers.gather_nd(x(f), ids(f, (3, 2))))
add("scatter", lambda f: f.layers.scatter(x(f), ids(f, (3,)), x(f, (3, 6), name="u")))
add(
    "scatter_add",
    lambda f: f.layers.scatter(x(f), ids(f, (3,)), x(f, (3, 6), name="u"), overwrite=False),
)
add("scatter_nd", lambda f: f.layers.scatter_nd(ids(f, (3, 1)), x(f, (3, 6)), [4, 6]))
add(
    "scatter_nd_add",
    lambda f: f.layers.scatter_nd_add(x(f), ids(f, (3, 1)), x(f, (3, 6), name="u")),
)
add("expand_as", lambda f: f.layers.expand_as(x(f, (2, 3)), x(f, name="t", grad=False)))
add("expand_list", lambda f: f.layers.expand(x(f), [f.layers.fill_constant([1], "int32", 2), 1]))
add("one_hot", lambda f: f.layers.one_hot(ids(f), 7))
add("one_hot_v2", lambda f: f.one_hot(ids(f, (4,)), 7))
add("topk_var", lambda f: f.layers.topk(x(f), f.layers.fill_constant([1], "int32", 2)))
add("where", lambda f: f.layers.where(x(f, dtype="bool", grad=False)))
for _m in "constant reflect edge".split():
    add("pad2d_" + _m, lambda f, m=_m: f.layers.pad2d(x(f, (1, 2, 3, 4)), [1, 0, 1, 2], mode=m))
add("pad2d_var", lambda f: f.layers.pad2d(x(f, (1, 2, 3, 4)), x(f, (4,), "int32", "p", False)))
add(
    "pad_constant_like",
    lambda f: f.layers.pad_constant_like(x(f, grad=False), x(f, (2, 3), name="y"), 1.0),
)
add("reverse_two", lambda f: f.layers.reverse(x(f), [0, 1]))
add("diag", lambda f: f.layers.diag(x(f, (4,), grad=False)))
add("eye", lambda f: f.layers.eye(3, 4))
add("eye_batch", lambda f: f.layers.eye(3, batch_shape=[2]))
add("linspace", lambda f: f.layers.linspace(0.0, 1.0, 5, "float32"))
add("range", lambda f: f.layers.range(0, 10, 2, "int64"))
add("range_f", lambda f: f.layers.range(0.0, 1.0, 0.5, "float32"))
add("multiplex", lambda f: f.layers.multiplex([x(f), x(f, name="y")], ids(f, (4, 1), "int32")))
add("assign_np", lambda f: f.layers.assign(numpy.array([[1.5, 2.0]], "float32")))
add("assign_int", lambda f: f.layers.assign(numpy.array([1, 2, 3], "int64")))
add("assign_bool", lambda f: f.layers.assign(numpy.array([True, False])))
add("fill_constant", lambda f: f.layers.fill_constant([2, 3], "float32", 1.5))
add("fill_constant_int", lambda f: f.layers.fill_constant([2, 3], "int64", 3))
add("fill_constant_big", lambda f: f.layers.fill_constant([1], "int64", 2**40 + 1, force_cpu=True))
add(
    "fill_constant_var",
    lambda f: f.layers.fill_constant(
        f.layers.shape(x(f)), "float32", f.layers.fill_constant([1], "float32", 2.0)
    ),
)
add(
    "fill_constant_list",
    lambda f: f.layers.fill_constant([2, f.layers.fill_constant([1], "int32", 2)], "float32", 2.0),
)
add(
    "fcbsl",
    lambda f: f.layers.fill_constant_batch_size_like(
        x(f, (3,), batch=True), [4, 2], "int64", 1, 0, 1, True
    ),
)
add("zeros", lambda f: f.layers.zeros([2], "float32"))
add("ones", lambda f: f.layers.ones([2], "int32"))
add("create_tensor", lambda f: f.layers.create_tensor("float32", name="t", persistable=True))
add(
    "create_global_var",
    lambda f: f.layers.create_global_var([1], 2.0, "float32", persistable=True, force_cpu=True),
)
add("create_parameter", lambda f: f.layers.create_parameter([2, 3], "float32", name="w"))
add("create_parameter_bias", lambda f: f.layers.create_parameter([3], "float32", is_bias=True))
add("accuracy", lambda f: f.layers.accuracy(x(f), ids(f)))
add("accuracy_k", lambda f: f.layers.accuracy(x(f), ids(f), k=3))
add("auc", lambda f: f.layers.auc(x(f, (4, 2)), ids(f))[0])
add(
    "dropout_up",
    lambda f: f.layers.dropout(x(f), 0.3, seed=7, dropout_implementation="upscale_in_train"),
)
add("dropout_test", lambda f: f.layers.dropout(x(f), 0.3, is_test=True))
add("hsigmoid", lambda f: f.layers.hsigmoid(x(f), ids(f), 6))
add(
    "hsigmoid_custom",
    lambda f: f.layers.hsigmoid(
        x(f),
        ids(f),
        6,
        path_table=ids(f, (4, 3), name="pt"),
        path_code=ids(f, (4, 3), name="pc"),
        is_custom=True,
        is_sparse=True,
    ),
)
add("nce", lambda f: f.layers.nce(x(f), ids(f), 20, num_neg_samples=5))
add(
    "nce_log",
    lambda f: f.layers.nce(
        x(f),
        ids(f),
        20,
        sample_weight=x(f, (4, 1), name="w", grad=False),
        sampler="log_uniform",
        seed=3,
        bias_attr=False,
    ),
)
add(
    "nce_custom",
    lambda f: f.layers.nce(
        x(f),
        ids(f),
        4,
        sampler="custom_dist",
        custom_dist=[0.1, 0.2, 0.3, 0.4],
        num_neg_samples=2,
        is_sparse=True,
    ),
)
add("prelu_channel", lambda f: f.layers.prelu(x(f, (2, 3, 4, 4)), "channel"))
add("prelu_element", lambda f: f.layers.prelu(x(f, (2, 3, 4, 4)), "element"))
add("maxout", lambda f: f.layers.maxout(x(f, (2, 4, 3, 3)), 2))
add("softmax_axis", lambda f: f.layers.softmax(x(f, (2, 3, 4)), axis=1))
add("log_softmax_axis", lambda f: f.layers.log_softmax(x(f, (2, 3, 4)), axis=1, dtype="float32"))
add("scale_act", lambda f: f.layers.scale(x(f), 3.0, bias_after_scale=False, act="relu"))
add("scale_var", lambda f: f.layers.scale(x(f), f.layers.fill_constant([1], "float32", 2.0)))
add("pow_var", lambda f: f.layers.pow(x(f), f.layers.fill_constant([1], "float32", 2.0)))
add("clip_by_norm2", lambda f: f.layers.clip_by_norm(x(f), 0.5))
add("increment_int", lambda f: f.layers.increment(ids(f, (1,)), 1, in_place=False))
add("step_counter", lambda f: f.layers.autoincreased_step_counter(begin=2, step=3))
add(
    "data_pair",
    lambda f: (
        f.layers.data("a", [3]),
        f.layers.data("b", [1], dtype="int64", lod_level=1),
        f.data("c", [None, 4]),
        f.layers.data("d", [-1, 3]),
    )[0],
)
add("gelu_exact", lambda f: f.layers.gelu(x(f)))
add("logsumexp", lambda f: f.layers.logsumexp(x(f), dim=1))
add("addcmul", lambda f: f.layers.addcmul(x(f), x(f, name="a"), x(f, name="b"), 0.5))
add(
    "addmm",
    lambda f: f.layers.addmm(
        x(f, (4, 5)), x(f, (4, 6), name="a"), x(f, (6, 5), name="b"), 2.0, 0.5
    ),
)
add("allclose", lambda f: f.layers.allclose(x(f), x(f, name="y")))
add("arange", lambda f: f.layers.arange(0, 5, 1, "int64"))
add("clamp", lambda f: f.layers.clamp(x(f), -1.0, 1.0))
add("cross", lambda f: f.layers.cross(x(f, (4, 3)), x(f, (4, 3), name="y")))
add("diag_embed", lambda f: f.layers.diag_embed(x(f), offset=1))
add("dist", lambda f: f.layers.dist(x(f), x(f, name="y"), 3))
add("elementwise_equal", lambda f: f.layers.elementwise_equal(x(f), x(f, name="y")))
add("flip", lambda f: f.layers.flip(x(f), [0]))
add("full", lambda f: f.layers.full([2, 2], 3.0))
add("full_like", lambda f: f.layers.full_like(x(f), 3.0))
add("index_sample", lambda f: f.layers.index_sample(x(f), ids(f, (4, 2))))
add("index_select", lambda f: f.layers.index_select(x(f), ids(f, (2,)), dim=1))
add("kron", lambda f: f.layers.kron(x(f, (2, 2)), x(f, (3, 1), name="y")))
add("meshgrid", lambda f: f.layers.meshgrid([x(f, (3,)), x(f, (4,), name="y")])[0])
add("nonzero", lambda f: f.layers.nonzero(x(f)))
add("roll", lambda f: f.layers.roll(x(f), [1], [0]))
add("t", lambda f: f.layers.t(x(f)))
add("trace", lambda f: f.layers.trace(x(f)))
add("tril", lambda f: f.layers.tril(x(f), 1))
add("pixel_shuffle", lambda f: f.layers.pixel_shuffle(x(f, (1, 8, 2, 2)), 2))
add("space_to_depth", lambda f: f.layers.space_to_depth(x(f, (1, 4, 4, 4)), 2))
add("shuffle_channel", lambda f: f.layers.shuffle_channel(x(f, (1, 4, 4, 4)), 2))
add("temporal_shift", lambda f: f.layers.temporal_shift(x(f, (4, 4, 2, 2)), 2))
add("shard_index", lambda f: f.layers.shard_index(ids(f), 20, 2, 0))
add(
    "cvm",
    lambda f: f.layers.continuous_value_model(x(f, (4, 6)), x(f, (4, 2), name="c", grad=False)),
)
add("fsp", lambda f: f.layers.fsp_matrix(x(f, (1, 2, 3, 3)), x(f, (1, 4, 3, 3), name="y")))
add("add_pos", lambda f: f.layers.add_position_encoding(x(f, (2, 3, 4)), 1.0, 1.0))
add(
    "affine_channel",
    lambda f: f.layers.affine_channel(
        x(f, (1, 2, 3, 3)),
        f.layers.create_parameter([2], "float32"),
        f.layers.create_parameter([2], "float32"),
    ),
)
add("mean_iou", lambda f: f.layers.mean_iou(ids(f, (4,), "int32"), ids(f, (4,), "int32", "l"), 3))
add("sampling_id", lambda f: f.layers.sampling_id(x(f)))
add("space", lambda f: f.layers.unfold(x(f, (1, 2, 4, 4)), [2, 2]))

OPS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "pow": lambda a, b: a**b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}
for _n, _op in OPS.items():
    if _n not in ("floordiv", "mod"):
        add(f"op_{_n}", lambda f, op=_op: op(x(f), x(f, name="y")))
        add(f"op_{_n}_scalar", lambda f, op=_op: op(x(f), 3))
        add(f"op_{_n}_batch", lambda f, op=_op: op(x(f, (3,), batch=True), 0.5))
        add(f"op_{_n}_right", lambda f, op=_op: op(3.5, x(f)))
        add(
            f"op_{_n}_mixed",
            lambda f, op=_op: op(x(f), x(f, dtype="float64", name="y", grad=False)),
        )
    add(f"op_{_n}_int", lambda f, op=_op: op(ids(f), ids(f, name="y")))
    add(f"op_{_n}_int_scalar", lambda f, op=_op: op(ids(f), 3))
    add(f"op_{_n}_int_right", lambda f, op=_op: op(3, ids(f)))
add("op_neg", lambda f: -x(f))
add("op_matmul", lambda f: x(f) * f.layers.transpose(x(f, (6, 4), name="y"), [1, 0]))
add("op_small_left", lambda f: x(f, (6,)) + x(f, name="y"))
add("getitem_int", lambda f: x(f)[1])
add("getitem_slice", lambda f: x(f)[1:3, :-1])
add("getitem_step", lambda f: x(f)[::2])
add("getitem_neg", lambda f: x(f, (2, 3, 4))[..., -1])
add("getitem_batch", lambda f: x(f, (3, 4), batch=True)[:, 0])
add("getitem_var", lambda f: x(f)[f.layers.fill_constant([1], "int32", 1)])
add("astype", lambda f: x(f).astype("float64"))
add("name_arg", lambda f: f.layers.relu(x(f), name="mine"))
add(
    "py_func",
    lambda f: f.layers.py_func(
        max,
        x(f),
        f.default_main_program()
        .current_block()
        .create_var(name="o", dtype="float32", shape=[4, 6]),
        backward_func=min,
    ),
)
add("print_back", lambda f: f.layers.mean(f.layers.Print(x(f), message="m", print_phase="both")))
add("randint", lambda f: f.layers.randint(2, 5, [3, 4], dtype="int32"))
add("randint_low", lambda f: f.layers.randint(5))
add("randperm", lambda f: f.layers.randperm(6))
