"""Small uses of decoders and distributions, against a `fluid` that is bireme or Fluid itself.

Only what they compute is compared: they are compositions, and ours are shorter.
"""

USES = {}  # type: ignore[var-annotated]  # read by Python 3.8 as well


def use(build):
    USES[build.__name__] = build
    return build


def decoded(f, helper, steps):
    cell = f.layers.GRUCell(5)
    weights = f.ParamAttr(name="words")

    def score(x):
        return f.layers.fc(x, 7, num_flatten_dims=len(x.shape) - 1, param_attr=weights)

    decoder = f.layers.BasicDecoder(cell, helper, output_fn=score)
    first = f.data("first", [3, 5])
    out, state, lengths = f.layers.dynamic_decode(
        decoder, inits=first, max_step_num=steps, return_length=True
    )
    return [out.cell_outputs, out.sample_ids, state, lengths]


def embedded(f):
    return lambda ids: f.embedding(ids, [7, 4], param_attr=f.ParamAttr(name="vectors"))


@use
def along_given_words(f):
    ids, lengths = f.data("ids", [3, 6], "int64"), f.layers.assign(_array([6, 2, 4]))
    return decoded(f, f.layers.TrainingHelper(embedded(f)(ids), lengths), None)


@use
def along_given_words_time_major(f):
    ids, lengths = f.data("ids", [6, 3], "int64"), f.layers.assign(_array([6, 2, 4]))
    return decoded(f, f.layers.TrainingHelper(embedded(f)(ids), lengths, time_major=True), None)


@use
def along_the_likeliest(f):
    start = f.layers.fill_constant([3], "int64", 0)
    return decoded(f, f.layers.GreedyEmbeddingHelper(embedded(f), start, 1), 8)


def _array(numbers, dtype="int64"):
    import numpy

    return numpy.array(numbers, dtype)


def _variable(f, numbers):
    return f.layers.assign(_array(numbers, "float32"))


@use
def normal(f):
    one, two = f.layers.Normal([0.5, 1.0], [1.0, 2.0]), f.layers.Normal([0.0, 0.0], [2.0, 1.0])
    value = _variable(f, [0.3, 0.8])
    return [one.entropy(), one.kl_divergence(two), one.log_prob(value)]


@use
def uniform(f):
    one = f.layers.Uniform([0.0, 0.0], [1.0, 2.0])
    return [one.entropy(), one.log_prob(_variable(f, [0.3, 0.8]))]


@use
def categorical(f):
    one = f.layers.Categorical(_variable(f, [[1.0, 2.0, 0.5]]))
    two = f.layers.Categorical(_variable(f, [[0.1, 0.2, 0.5]]))
    return [one.entropy(), one.kl_divergence(two)]


@use
def normal_of_several(f):
    wide, narrow = [[0.4, 0.0], [0.0, 0.5]], [[0.3, 0.0], [0.0, 0.4]]
    one = f.layers.MultivariateNormalDiag(_variable(f, [0.3, 0.5]), _variable(f, wide))
    two = f.layers.MultivariateNormalDiag(_variable(f, [0.2, 0.4]), _variable(f, narrow))
    return [one.entropy(), one.kl_divergence(two)]
