"""What a user may say about a parameter: its name, initial value, rate, decay, and whether it
trains.
"""

from typing import Any

from bireme.errors import WrongType

__all__ = ["ParamAttr", "WeightNormParamAttr"]


class ParamAttr:
    """Attributes of a parameter that a layer creates.

    `learning_rate` multiplies the optimizer's rate; `regularizer` overrides the optimizer's; a
    parameter with `trainable=False` gets no gradient.
    """

    def __init__(
        self,
        name: str | None = None,
        initializer: Any = None,
        learning_rate: Any = 1.0,
        regularizer: Any = None,
        trainable: bool = True,
        do_model_average: bool = True,
        gradient_clip: Any = None,
    ) -> None:
        self.name = name
        self.initializer = initializer
        self.learning_rate = learning_rate
        self.regularizer = regularizer
        self.trainable = trainable
        self.do_model_average = do_model_average
        self.gradient_clip = gradient_clip

    @staticmethod
    def _to_attr(arg: Any) -> Any:
        """What a layer argument means: an attribute, a name, an initializer, a list of them, or
        False.

        Raises:
            WrongType: the argument is none of these.
        """
        if arg is None or arg is True:
            return ParamAttr()
        if arg is False or isinstance(arg, ParamAttr):
            return arg
        if isinstance(arg, str):
            return ParamAttr(name=arg)
        if isinstance(arg, list | tuple):
            return [ParamAttr._to_attr(a) for a in arg]
        if callable(arg):
            return ParamAttr(initializer=arg)
        raise WrongType(
            f"{arg!r} is not a parameter attribute",
            hint="give a ParamAttr, a name, an initializer, or False for no parameter",
        )

    def _to_kwargs(self, with_initializer: bool = False) -> dict[str, Any]:
        """The arguments of `Block.create_parameter`."""
        kwargs = {
            "name": self.name,
            "optimize_attr": {"learning_rate": self.learning_rate},
            "regularizer": self.regularizer,
            "trainable": self.trainable,
            "do_model_average": self.do_model_average,
            "gradient_clip_attr": self.gradient_clip,
        }
        if with_initializer:
            kwargs["initializer"] = self.initializer
        return kwargs


class WeightNormParamAttr(ParamAttr):
    """A weight written as g * v / |v|, with the norm over every dimension but `dim` (arXiv
    1602.07868).
    """

    def __init__(
        self,
        dim: int | None = None,
        name: str | None = None,
        initializer: Any = None,
        learning_rate: float = 1.0,
        regularizer: Any = None,
        trainable: bool = True,
        do_model_average: bool = False,
    ) -> None:
        super().__init__(name, initializer, learning_rate, regularizer, trainable, do_model_average)
        self.dim = dim
