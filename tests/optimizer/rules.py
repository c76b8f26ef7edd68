"""Every update rule, and how closely two runs of it agree that add in another order.

Such runs differ in the last bits of a gradient, and a rule makes of that its derivative by the
gradient. Rules that divide by a root of past gradients have a steep one at the first steps, up to
rate / epsilon, here 1e5; Ftrl divides by at least 2 * l1 (its operator gets `l1` as both
penalties). In float64 a gradient of terms near 1 is exact to 1e-14, so results agree to 1e-9
however the processor adds. Dpsgd draws no noise here.
"""

from collections.abc import Callable
from typing import Any

from bireme import optimizer as o

Make = Callable[[], Any]
TOLERANCE = 1e-8  # in float64; ten times the bound above

RULES: dict[str, Make] = {
    "sgd": lambda: o.SGD(0.1),
    "momentum": lambda: o.Momentum(0.05, 0.9),
    "nesterov": lambda: o.Momentum(0.05, 0.9, use_nesterov=True),
    "lars_momentum": lambda: o.LarsMomentum(0.5, 0.9, lars_coeff=0.1),
    "dpsgd": lambda: o.Dpsgd(0.1, clip=0.5, batch_size=8.0, sigma=0.0),
    "adagrad": lambda: o.Adagrad(0.1, epsilon=1e-6),
    "decayed_adagrad": lambda: o.DecayedAdagrad(0.1, epsilon=1e-6),
    "adadelta": lambda: o.Adadelta(0.1, epsilon=1e-6),
    "rmsprop": lambda: o.RMSProp(0.1, epsilon=1e-6, momentum=0.5),
    "rmsprop_centered": lambda: o.RMSProp(0.1, epsilon=1e-6, centered=True),
    "ftrl": lambda: o.Ftrl(0.5, l1=0.01, l2=0.01),
    "adam": lambda: o.Adam(0.1, epsilon=1e-6),
    "lazy_adam": lambda: o.Adam(0.1, epsilon=1e-6, lazy_mode=True),
    "adamax": lambda: o.Adamax(0.1, epsilon=1e-6),
    "lamb": lambda: o.Lamb(0.1, epsilon=1e-6),
}
NOT_ROWS = {"lars_momentum", "dpsgd", "decayed_adagrad", "adadelta", "adamax"}
"""Rules without a form for sparse gradients, here and in the original."""
