"""Translation: an encoder, a decoder that attends to it, and beam search over the same weights.

The task is to repeat a sentence in reverse. Words 0 and 1 begin and end a sentence.
"""

from typing import Any

import numpy as np

import bireme as fluid
from bireme.arrays.values import LoDTensor, lengths_to_lod

from .model import Feed, Model, random

layers = fluid.layers
BEGIN, END, WORDS, WIDTH = 0, 1, 12, 24


def _attr(name: str) -> Any:
    return fluid.ParamAttr(name=name)


def _vectors(ids: Any, name: str) -> Any:
    return layers.embedding(ids, [WORDS, WIDTH], param_attr=_attr(name))


def _encoded() -> tuple[Any, Any]:
    """Both directions of each source word, and the state to begin with."""
    source = fluid.data("source", [None, 1], "int64", lod_level=1)
    vectors = _vectors(source, "source_words")
    sides = [
        layers.dynamic_gru(
            layers.fc(vectors, 3 * WIDTH, param_attr=_attr(f"enc{k}"), bias_attr=_attr(f"enc{k}b")),
            WIDTH,
            is_reverse=bool(k),
            param_attr=_attr(f"gru{k}"),
            bias_attr=_attr(f"gru{k}b"),
        )
        for k in (0, 1)
    ]
    words = layers.concat(sides, axis=1)
    first = layers.sequence_first_step(sides[1])
    state = layers.fc(first, WIDTH, act="tanh", param_attr=_attr("boot"), bias_attr=_attr("boot_b"))
    return words, state


def _attended(words: Any, state: Any) -> Any:
    """The source words, weighted by how well they fit the state."""
    spread = layers.sequence_expand(state, words)
    mixed = layers.concat([words, spread], axis=1)
    hidden = layers.fc(mixed, WIDTH, act="tanh", param_attr=_attr("att"), bias_attr=_attr("att_b"))
    scores = layers.fc(hidden, 1, bias_attr=False, param_attr=_attr("att_v"))
    weights = layers.sequence_softmax(scores)
    weighted = layers.elementwise_mul(words, layers.reshape(weights, [-1]), axis=0)
    return layers.sequence_pool(weighted, "sum")


def _next(word: Any, state: Any, words: Any) -> tuple[Any, Any]:
    """(new state, probabilities of the next word)."""
    inputs = layers.concat([_attended(words, state), word], axis=1)
    gates = layers.fc(inputs, 3 * WIDTH, param_attr=_attr("dec"), bias_attr=_attr("dec_b"))
    new, _, _ = layers.gru_unit(
        gates, state, 3 * WIDTH, param_attr=_attr("dec_u"), bias_attr=_attr("dec_ub")
    )
    guess = layers.fc(new, WORDS, act="softmax", param_attr=_attr("out"), bias_attr=_attr("out_b"))
    return new, guess


def training() -> Any:
    """The mean cross entropy of the next word, the right words being fed."""
    words, boot = _encoded()
    target = fluid.data("target", [None, 1], "int64", lod_level=1)
    vectors = _vectors(target, "target_words")
    rnn = layers.DynamicRNN()
    with rnn.block():
        word = rnn.step_input(vectors)
        seen = rnn.static_input(words)
        state = rnn.memory(init=boot, need_reorder=True)
        new, guess = _next(word, state, seen)
        rnn.update_memory(state, new)
        rnn.output(guess)
    label = fluid.data("label", [None, 1], "int64", lod_level=1)
    return layers.mean(layers.cross_entropy(rnn(), label))


def searching(beam: int, longest: int) -> tuple[Any, Any]:
    """The best sentences of each source and their scores, by beam search in a While loop."""
    words, boot = _encoded()
    limit = layers.fill_constant([1], "int64", longest)
    step = layers.fill_constant([1], "int64", 0)
    first = fluid.data("first_ids", [None, 1], "int64", lod_level=2)
    score = fluid.data("first_scores", [None, 1], "float32", lod_level=2)
    states = layers.array_write(boot, step)
    ids, scores = layers.array_write(first, step), layers.array_write(score, step)
    going = layers.less_than(step, limit)
    with layers.While(going).block():
        before, before_score = layers.array_read(ids, step), layers.array_read(scores, step)
        state = layers.sequence_expand(layers.array_read(states, step), before_score)
        seen = words
        for level in (0, 1):  # a copy for each prefix, and for each of its continuations
            seen = layers.sequence_expand(seen, before_score, ref_level=level)
        new, guess = _next(_vectors(before, "target_words"), state, seen)
        best, choice = layers.topk(layers.lod_reset(guess, before_score), k=beam)
        total = layers.elementwise_add(layers.log(best), layers.reshape(before_score, [-1]), axis=0)
        chosen, chosen_score = layers.beam_search(
            before, before_score, choice, layers.lod_reset(total, before_score), beam, END
        )
        layers.increment(step)
        layers.array_write(new, step, states)
        layers.array_write(chosen, step, ids)
        layers.array_write(chosen_score, step, scores)
        more = layers.less_than(step, limit)
        some = layers.logical_not(layers.is_empty(chosen))
        layers.logical_and(more, some, out=going)
    found: tuple[Any, Any] = layers.beam_search_decode(ids, scores, beam, END)
    return found


# -- data --------------------------------------------------------------------------------------
def sources(step: int, count: int = 16) -> list[list[int]]:
    rng = random(step)
    return [rng.integers(2, WORDS, size=rng.integers(2, 5)).tolist() for _ in range(count)]


def tensor(sentences: list[list[int]]) -> LoDTensor:
    rows = np.concatenate([np.array(s, "int64") for s in sentences]).reshape(-1, 1)
    return LoDTensor(rows, lengths_to_lod([[len(s) for s in sentences]]))


def pairs(step: int) -> Feed:
    given = sources(step)
    return {
        "source": tensor(given),
        "target": tensor([[BEGIN, *s[::-1]] for s in given]),
        "label": tensor([[*s[::-1], END] for s in given]),
    }


def beginnings(count: int) -> Feed:
    """One empty sentence per source."""
    structure = lengths_to_lod([[1] * count, [1] * count])
    return {
        "first_ids": LoDTensor(np.full((count, 1), BEGIN, "int64"), structure),
        "first_scores": LoDTensor(np.zeros((count, 1), "float32"), structure),
    }


def _adam() -> Any:
    return fluid.optimizer.Adam(learning_rate=0.02)


MODELS = [Model("translation", training, pairs, _adam, steps=20, falls_to=0.8)]
