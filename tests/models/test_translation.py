"""A translator that was trained finds its training sentences by beam search."""

from itertools import pairwise

import numpy as np

import bireme as fluid

from .translation import END, MODELS, beginnings, searching, sources, tensor


def test_beam_search_finds_what_was_learnt() -> None:
    (model,) = MODELS
    main, startup, loss = model.programs()
    search = fluid.Program()
    with fluid.program_guard(search, fluid.Program()), fluid.unique_name.guard():
        ids, scores = searching(beam=3, longest=7)
    given = sources(0)
    with fluid.scope_guard(fluid.Scope()), fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(startup)
        for _ in range(80):
            exe.run(main, model.feed(0), [loss])
        feed = {"source": tensor(given), **beginnings(len(given))}
        found, found_scores = exe.run(search, feed, [ids, scores], return_numpy=False)
    offsets, cuts = found.lod()
    words = np.asarray(found).reshape(-1)
    best = [words[cuts[i] : cuts[i + 1]].tolist() for i in offsets[:-1]]
    right = sum(b[1:] == [*s[::-1], END] for b, s in zip(best, given, strict=True))
    assert right >= 0.75 * len(given), best
    totals = np.asarray(found_scores).reshape(-1)[np.array(cuts[1:]) - 1]
    for begin, end in pairwise(offsets):
        assert (np.diff(totals[begin:end]) <= 0).all(), "the best sentence comes first"
