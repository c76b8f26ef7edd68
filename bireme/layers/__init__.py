"""What users call to build a program: one function per layer."""

from .control_flow import *
from .elementwise import *
from .io import *
from .loss import *
from .metric_op import *
from .nn import *
from .ops import *
from .reduction import *
from .sparse import *
from .tensor import *
