"""What users call to build a program: one function per layer."""

from . import math_op_patch
from .classes import *
from .control_flow import *
from .decode import *
from .draws import *
from .elementwise import *
from .features import *
from .io import *
from .labelling import *
from .learning_rate_scheduler import *
from .loss import *
from .metric_op import *
from .nn import *
from .normalise import *
from .ops import *
from .order import *
from .picking import *
from .pixels import *
from .random import *
from .reduction import *
from .rnn import *
from .sequence_lod import *
from .shaping import *
from .sparse import *
from .tensor import *
from .vision import *
