"""Which options are keywords of which function, and their types in Python. Imports nothing:
setup.py reads it too, before the package can be imported."""

# By an option's kind (include/moe/moe.h, moe_options).
TYPES = {
    "toggle": "bool",
    "boolean": "bool",
    "whole": "int",
    "natural": "int",
    "number": "float",
    "text": "str",
    "text_or_object": "str | Mapping[str, Any]",
    "path": "Folder",
    "texts": "str | Sequence[str]",
    "paths": "Folder | Sequence[Folder]",
    "wholes": "Sequence[int]",
    "weighted": "Mapping[str, float]",
}

# The library's function, and those of its options that are arguments of their own in Python, or are
# always given.
FUNCTIONS = {
    "TrainOptions": ("train", ("data", "out")),
    "LoadOptions": ("load", ()),
    "SaveOptions": ("save", ()),
    "GenerateOptions": ("generate", ()),
    "SessionOptions": ("session_open", ()),
    "ContinueOptions": ("session_generate", ()),
    "ScoreOptions": ("score", ("per_token",)),
    "RouteOptions": ("route", ("recipe", "top_k")),
}
