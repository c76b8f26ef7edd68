"""Small uses of control flow and of layers over sequences, against a `fluid` that is either one."""

USES = {}  # type: ignore[var-annotated]  # read by Python 3.8 as well


def use(build):
    USES[build.__name__] = build
    return build


def fed(f, name, shape, dtype="float32", level=0):
    var = f.data(name, list(shape), dtype, lod_level=level)
    var.stop_gradient = dtype != "float32"
    return var


def seq(f, name="x", width=4, dtype="float32", level=1):
    return fed(f, name, [None, width], dtype, level)


def add(name, build):
    USES[name] = build


# -- branches ----------------------------------------------------------------------------------
def small(f, x, limit=0.0):
    total = f.layers.reduce_sum(x)
    return f.layers.less_than(total, f.layers.fill_constant([1], "float32", limit))


@use
def cond(f):
    x = fed(f, "x", [None, 4])
    first, second = lambda: f.layers.fc(x, 2), lambda: f.layers.square(f.layers.fc(x, 2))
    return f.layers.cond(small(f, x), first, second)


@use
def cond_of_several(f):
    x = fed(f, "x", [None, 4])
    first, second = lambda: [x * 2.0, f.layers.tanh(x)], lambda: [x, f.layers.square(x)]
    return f.layers.cond(small(f, x), first, second)


@use
def case(f):
    x = fed(f, "x", [None, 4])
    pairs = [
        (small(f, x), lambda: f.layers.fc(x, 2)),
        (small(f, x, 9.0), lambda: f.layers.fc(x, 2)),
    ]
    return f.layers.case(pairs, lambda: f.layers.square(f.layers.fc(x, 2)))


@use
def switch_case(f):
    index = f.layers.fill_constant([1], "int32", 1)
    x = fed(f, "x", [None, 4])
    return f.layers.switch_case(index, {1: lambda: x * 2.0, 2: lambda: f.layers.tanh(x)})


@use
def switch(f):
    x = fed(f, "x", [None, 4])
    rate = f.layers.create_global_var([1], 0.0, "float32", persistable=True, name="rate")
    low = f.layers.fill_constant([1], "float32", 0.1)
    with f.layers.Switch() as choice:
        with choice.case(small(f, x)):
            f.layers.assign(low, rate)
        with choice.case(small(f, x, 5.0)):
            f.layers.assign(low * 2.0, rate)
        with choice.default():
            f.layers.assign(f.layers.fill_constant([1], "float32", 0.3), rate)


@use
def if_else(f):
    x, label = fed(f, "x", [None, 4]), fed(f, "label", [None, 1], "int64")
    limit = f.layers.fill_constant([1], "int64", 5)
    either = f.layers.IfElse(f.layers.less_than(label, limit))
    with either.true_block():
        either.output(f.layers.fc(either.input(x), 3))
    with either.false_block():
        either.output(f.layers.fc(either.input(x), 3))
    return either()[0]


# -- loops -------------------------------------------------------------------------------------
@use
def loop_over_an_array(f):
    x = fed(f, "x", [3, 4])
    weight = f.layers.create_parameter([4, 4], "float32", name="w")
    i = f.layers.zeros([1], "int64")
    i.stop_gradient = True
    n = f.layers.fill_constant([1], "int64", 3)
    states = f.layers.array_write(x, i)
    going = f.layers.less_than(i, n)
    with f.layers.While(going).block():
        new = f.layers.tanh(f.layers.matmul(f.layers.array_read(states, i), weight))
        i = f.layers.increment(i, in_place=True)
        f.layers.array_write(new, i, states)
        f.layers.less_than(i, n, cond=going)
    return f.layers.array_read(states, n)


@use
def while_loop(f):
    i, n = (f.layers.fill_constant([1], "int64", v) for v in (0, 3))
    x = f.layers.scale(fed(f, "x", [3, 4]), 1.0)
    weight = f.layers.create_parameter([4, 4], "float32", name="w")

    def body(i, y):
        return [f.layers.increment(i), f.layers.tanh(f.layers.matmul(y, weight))]

    return f.layers.while_loop(lambda i, y: f.layers.less_than(i, n), body, [i, x])[1]


@use
def arrays(f):
    x = fed(f, "x", [3, 4])
    zero, one = (f.layers.fill_constant([1], "int64", v) for v in (0, 1))
    array = f.layers.create_array("float32")
    f.layers.array_write(x, zero, array)
    f.layers.array_write(f.layers.tanh(x), one, array)
    joined, _ = f.layers.tensor_array_to_tensor(array, axis=0)
    return f.layers.array_length(array), f.layers.is_empty(x), joined


# -- recurrences -------------------------------------------------------------------------------
@use
def static_rnn(f):
    x = fed(f, "x", [3, 2, 4])
    rnn = f.layers.StaticRNN()
    with rnn.step():
        word = rnn.step_input(x)
        state = rnn.memory(shape=[-1, 5], batch_ref=word)
        new = f.layers.fc([word, state], 5, act="tanh")
        rnn.update_memory(state, new)
        rnn.step_output(new)
    return rnn()


def _dynamic(f, two):
    x, y = seq(f), fed(f, "y", [None, 3])
    rnn = f.layers.DynamicRNN()
    with rnn.block():
        word, kept = rnn.step_input(x), rnn.static_input(y)
        state = rnn.memory(init=y, need_reorder=True)
        other = rnn.memory(shape=[3], value=0.5)
        new = f.layers.fc([word, state, kept, other], 3, act="tanh")
        rnn.update_memory(state, new)
        rnn.update_memory(other, new)
        rnn.output(new)
        if two:
            rnn.output(f.layers.square(new))
    return rnn()


add("dynamic_rnn", lambda f: _dynamic(f, False))
add("dynamic_rnn_of_two", lambda f: _dynamic(f, True))
add("dynamic_rnn_half_used", lambda f: _dynamic(f, True)[0])


# -- sequences ---------------------------------------------------------------------------------
for _kind in ("sum", "average", "sqrt", "max", "last", "first"):
    add("pool_" + _kind, lambda f, k=_kind: f.layers.sequence_pool(seq(f), k))
add("pool_nested", lambda f: f.layers.sequence_pool(seq(f, level=2), "sum"))
add("first_step", lambda f: f.layers.sequence_first_step(seq(f)))
add("last_step", lambda f: f.layers.sequence_last_step(seq(f)))
add("softmax", lambda f: f.layers.sequence_softmax(seq(f, width=1)))
add("conv", lambda f: f.layers.sequence_conv(seq(f), 6, 3, act="tanh"))
add("conv_start", lambda f: f.layers.sequence_conv(seq(f), 6, 4, padding_start=0))
add("row_conv", lambda f: f.layers.row_conv(seq(f), 2, act="relu"))
add("expand", lambda f: f.layers.sequence_expand(seq(f, "a", level=0), seq(f, "y")))
add("expand_as", lambda f: f.layers.sequence_expand_as(seq(f, "a", level=0), seq(f, "y")))
add("concat", lambda f: f.layers.sequence_concat([seq(f, "a"), seq(f, "b")]))
add("reshape", lambda f: f.layers.sequence_reshape(seq(f), 2))
add("reverse", lambda f: f.layers.sequence_reverse(seq(f)))
add("lod_reset", lambda f: f.layers.lod_reset(seq(f, "a", level=0), seq(f, "y")))
add("lod_reset_to", lambda f: f.layers.lod_reset(seq(f, level=0), target_lod=[0, 2, 4]))
add("lod_append", lambda f: f.layers.lod_append(seq(f), [0, 2, 4]))
add("enumerate", lambda f: f.layers.sequence_enumerate(seq(f, width=1, dtype="int64"), 2))
add("mask", lambda f: f.layers.sequence_mask(fed(f, "n", [None], "int64"), maxlen=7))
add("mask_open", lambda f: f.layers.sequence_mask(fed(f, "n", [None], "int64"), dtype="float32"))


@use
def expand_by_level(f):
    return f.layers.sequence_expand(seq(f, "a"), seq(f, "y", level=2), ref_level=0)


@use
def pad(f):
    fill = f.layers.fill_constant([1], "float32", 0.0)
    return f.layers.sequence_pad(seq(f), fill, maxlen=5)


@use
def unpad(f):
    return f.layers.sequence_unpad(fed(f, "x", [None, 5, 4]), fed(f, "n", [None], "int64"))


@use
def slice_of_each(f):
    where = (fed(f, name, [None, 1], "int64") for name in ("offset", "length"))
    return f.layers.sequence_slice(seq(f), *where)


@use
def scatter(f):
    return f.layers.sequence_scatter(
        seq(f, "i", level=0), seq(f, "ids", 1, "int64"), seq(f, "u", 1)
    )


@use
def images(f):
    return f.layers.im2sequence(fed(f, "im", [None, 3, 8, 8]), filter_size=2, stride=2)


# -- recurrent layers --------------------------------------------------------------------------
def gates(f, count):
    return seq(f, width=3 * count)


add("lstm", lambda f: f.layers.dynamic_lstm(gates(f, 4), 12)[0])
add("lstm_cell_too", lambda f: f.layers.dynamic_lstm(gates(f, 4), 12))
add(
    "lstm_plain",
    lambda f: f.layers.dynamic_lstm(gates(f, 4), 12, use_peepholes=False, is_reverse=True)[0],
)
add("lstmp", lambda f: f.layers.dynamic_lstmp(gates(f, 4), 12, 2)[0])
add("lstmp_cell_too", lambda f: f.layers.dynamic_lstmp(gates(f, 4), 12, 2))
add("gru", lambda f: f.layers.dynamic_gru(gates(f, 3), 3))
add("gru_from", lambda f: f.layers.dynamic_gru(gates(f, 3), 3, h_0=fed(f, "h", [None, 3])))
add("gru_unit", lambda f: f.layers.gru_unit(fed(f, "x", [None, 9]), fed(f, "h", [None, 3]), 9))


@use
def lstm_from(f):
    states = (fed(f, name, [None, 3]) for name in ("h", "c"))
    return f.layers.dynamic_lstm(gates(f, 4), 12, *states)[0]


@use
def lstm_unit(f):
    states = (fed(f, name, [None, 3]) for name in ("h", "c"))
    return f.layers.lstm_unit(fed(f, "x", [None, 5]), *states)


# -- labels ------------------------------------------------------------------------------------
@use
def crf(f):
    attr = f.ParamAttr(name="crfw")
    scores, label = seq(f), seq(f, "label", 1, "int64")
    cost = f.layers.linear_chain_crf(scores, label, param_attr=attr)
    return cost, f.layers.crf_decoding(scores, attr), f.layers.crf_decoding(scores, attr, label)


@use
def crf_of_lengths(f):
    scores, label = fed(f, "x", [None, 7, 4]), fed(f, "label", [None, 7, 1], "int64")
    length = fed(f, "n", [None, 1], "int64")
    attr = f.ParamAttr(name="crfw")
    return f.layers.linear_chain_crf(scores, label, param_attr=attr, length=length)


@use
def chunks(f):
    return f.layers.chunk_eval(seq(f, "i", 1, "int64"), seq(f, "l", 1, "int64"), "IOB", 3)


add("ctc", lambda f: f.layers.warpctc(seq(f), seq(f, "l", 1, "int32")))
add("ctc_decoder", lambda f: f.layers.ctc_greedy_decoder(seq(f), 0))
add(
    "edit_distance",
    lambda f: f.layers.edit_distance(seq(f, "i", 1, "int64"), seq(f, "l", 1, "int64")),
)


@use
def beam_search(f):
    before = seq(f, "pi", 1, "int64", 2), seq(f, "ps", 1, level=2)
    return f.layers.beam_search(
        *before, seq(f, "ii", 4, "int64", 2), seq(f, "ss", 4, level=2), 4, 1
    )


@use
def gather_tree(f):
    return f.layers.gather_tree(*(fed(f, name, [5, 2, 2], "int64") for name in ("i", "p")))


# -- networks ----------------------------------------------------------------------------------
add("glu", lambda f: f.nets.glu(fed(f, "x", [3, 6])))
add("conv_pool", lambda f: f.nets.sequence_conv_pool(seq(f), 4, 3))
add(
    "image_conv_pool",
    lambda f: f.nets.simple_img_conv_pool(fed(f, "x", [None, 3, 8, 8]), 4, 3, 2, 2, act="relu"),
)


@use
def conv_group(f):
    return f.nets.img_conv_group(
        fed(f, "x", [None, 3, 8, 8]),
        [4, 4],
        2,
        conv_act="relu",
        conv_with_batchnorm=True,
        conv_batchnorm_drop_rate=[0.3, 0.0],
        pool_stride=2,
    )


@use
def attention(f):
    return f.nets.scaled_dot_product_attention(*(fed(f, n, [3, 5, 8]) for n in "qkv"))


@use
def attention_of_heads(f):
    return f.nets.scaled_dot_product_attention(*(fed(f, n, [3, 5, 8]) for n in "qkv"), 2, 0.1)


# -- cells -------------------------------------------------------------------------------------
def over_time(f, cell, lengths=False, **options):
    length = fed(f, "n", [None], "int64") if lengths else None
    return f.layers.rnn(cell, fed(f, "x", [None, 5, 4]), sequence_length=length, **options)


add("rnn_gru", lambda f: over_time(f, f.layers.GRUCell(3)))
add("rnn_lstm", lambda f: over_time(f, f.layers.LSTMCell(3)))
add("rnn_lengths", lambda f: over_time(f, f.layers.LSTMCell(3), lengths=True))
add("rnn_back", lambda f: over_time(f, f.layers.GRUCell(3), is_reverse=True))
add("rnn_time_major", lambda f: over_time(f, f.layers.GRUCell(3), time_major=True))


@use
def beam_decoder(f):
    decoder = f.layers.BeamSearchDecoder(
        f.layers.GRUCell(3),
        start_token=0,
        end_token=1,
        beam_size=2,
        embedding_fn=lambda ids: f.embedding(ids, [10, 4], param_attr="e"),
        output_fn=lambda x: f.layers.fc(x, 10, num_flatten_dims=2, param_attr="o", bias_attr="ob"),
    )
    begin = f.data("begin", [None, 3])
    return f.layers.dynamic_decode(decoder, inits=begin, max_step_num=5)[0]
