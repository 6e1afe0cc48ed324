"""Mixture-of-Experts language models on the CPU: train, load, generate, score, and look at the
routing.

>>> import moe_cpp as moe
>>> result = moe.train("books/", "out/tiny", preset="tiny", steps=200)
>>> with moe.load("out/tiny") as model:
...     print(model.generate("Once upon ", tokens=50, seed=1))

The engine is native (libmoe.so, called through its C interface without Python's global lock);
arrays go in and come out as NumPy's. Letters in shapes: N tokens, V vocabulary, L layers with
experts, E experts, K experts a token takes, D model width. Whatever is refused or fails ends in
`Error`, whose text says what, where and what to do.
"""

from moe_cpp._errors import Error
from moe_cpp._library import version as _version
from moe_cpp.model import Generation, Model, Routing, Score, Stream, load
from moe_cpp.options import (
    ContinueOptions,
    GenerateOptions,
    LoadOptions,
    RouteOptions,
    SaveOptions,
    ScoreOptions,
    SessionOptions,
    TrainOptions,
)
from moe_cpp.recipes import RouteResult, recipes, route
from moe_cpp.session import Session
from moe_cpp.training import TrainResult, train

__version__: str = _version()

__all__ = [
    "ContinueOptions",
    "Error",
    "GenerateOptions",
    "Generation",
    "LoadOptions",
    "Model",
    "RouteOptions",
    "RouteResult",
    "Routing",
    "SaveOptions",
    "Score",
    "ScoreOptions",
    "Session",
    "SessionOptions",
    "Stream",
    "TrainOptions",
    "TrainResult",
    "__version__",
    "load",
    "recipes",
    "route",
    "train",
]
