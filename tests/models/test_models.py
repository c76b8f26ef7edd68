"""Every model learns: its loss falls when it is trained locally."""

import numpy as np
import pytest

from . import ctr, text, transformer, translation, vision
from .model import Model

MODELS = [*vision.MODELS, *ctr.MODELS, *transformer.MODELS, *text.MODELS, *translation.MODELS]


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_the_loss_falls(model: Model) -> None:
    losses = model.losses()
    assert np.isfinite(losses).all()
    start, end = np.mean(losses[:2]), np.mean(losses[-2:])
    assert end < model.falls_to * start, losses


def test_resnet50_has_the_parameters_it_is_known_for() -> None:
    """161 that train among 267; 53 convolutions, 53 normalisations, 49 relus, 17 additions."""
    model = next(m for m in MODELS if m.name == "resnet50")
    main, _, _ = model.programs()
    params = main.all_parameters()
    assert (sum(p.trainable for p in params), len(params)) == (161, 267)
    types = [op.type for op in main.global_block().ops]
    found = [types.count(t) for t in ("conv2d", "batch_norm", "relu", "elementwise_add", "adam")]
    assert found == [53, 53, 49, 17, 161]
