"""recipes.json: a few small routings of every row with the answers of routing_cases.py, for
tests/jobs/golden_test.cpp, and the examples worked by hand in docs/recipes.md, whose numbers are
asserted here. Two hundred a row are compared live by recipes_check.py.

Each case: name, row, options (of RoutingOptions, and eval), stages (recipe custom) or null, input
and want: input and reply of `moe route`.
"""

import json
import os

import common
from routing_cases import flat, make_case
from routing_formulas import answer
from routing_rows import ROWS, stages_of

CORNERS = ["plain", "some tied", "one token", "every expert", "no room", "sequences", "x", "draws"]
SEED = 7
WORKED = [[2.0, 1.0, 0.0, -1.0], [1.5, 1.5, 0.5, 0.0], [3.0, -1.0, 2.0, 0.0], [0.2, 0.1, 0.0, 2.2]]


def rounded(value):
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return common.number(value) if isinstance(value, float) else value


def worked(name, row, k, logits, want, stages=None, more=None, **options):
    """A case whose answer is known: `want` names what must come out."""
    given = {"recipe": "custom" if stages else row, "top_k": k, **options}
    spec = stages or stages_of(row, given)
    inputs = {"logits": logits, **(more or {})}
    reply = answer(spec, inputs, k)
    for key, value in want.items():
        close = all(abs(a - b) < 2e-6 for a, b in zip(flat(reply[key]), flat(value))) and len(
            flat(reply[key])
        ) == len(flat(value))
        assert close, (name, key, reply[key], value)
    return {
        "name": name,
        "row": row,
        "options": given,
        "stages": stages,
        "input": inputs,
        "want": reply,
    }


def top2(order, **more):
    return {
        "score": "raw",
        "weigh": "softmax",
        "capacity": {"type": "buffer", "factor": 1e-6, "minimum": 1, "order": order, **more},
    }


def documented_cases():
    """Those of docs/recipes.md."""
    metrics = {
        "counts": [4, 2, 1, 1],
        "max_vio": 1.0,
        "cv2": 0.375,
        "entropy": 0.875,
        "z": 7.397051,
    }
    raw = [[0.643914, 0.236883], [0.385950, 0.385950], [0.696387, 0.256187], [0.730676, 0.098886]]
    shared = [[0.731059, 0.268941], [0.5, 0.5], [0.731059, 0.268941], [0.880797, 0.119203]]
    chosen = [[0, 1], [0, 1], [0, 2], [3, 0]]
    v3 = {
        "score": "sigmoid",
        "select": {"type": "top_k", "bias": {"rate": 0.001}},
        "weigh": {"type": "scores", "renormalise": "before_drop", "scale": 2.5},
    }
    return [
        worked(
            "worked olmoe",
            "olmoe",
            2,
            WORKED,
            {**metrics, "experts": chosen, "weights": raw, "balance": 1.275060},
        ),
        worked(
            "worked mixtral",
            "mixtral",
            2,
            WORKED,
            {**metrics, "experts": chosen, "weights": shared, "balance": 2.550119 / 2},
        ),
        worked(
            "worked nanomoe",
            "nanomoe",
            2,
            WORKED,
            {**metrics, "weights": shared, "balance": 2.753225 / 2, "capacity": 4},
            capacity_factor=2.0,
        ),
        worked(
            "worked switch",
            "switch",
            1,
            WORKED,
            {"counts": [3, 0, 0, 1], "balance": 1.589734, "capacity": 4},
        ),
        worked(
            "worked capacity 2",
            "nanomoe",
            2,
            WORKED,
            {"kept": [[True, True], [True, True], [False, True], [True, False]], "dropped": 2},
            stages=top2("choice_major", minimum=2),
        ),
        worked(
            "worked expert choice",
            "expert-choice",
            2,
            WORKED,
            {
                "experts": [[0, 1], [1, 2, 3], [0, 2], [3]],
                "weights": [
                    [0.643914, 0.236883],
                    [0.385950, 0.141983, 0.086117],
                    [0.696387, 0.256187],
                    [0.730676],
                ],
            },
        ),
        worked(
            "worked deepseek-v3",
            "deepseek-v3",
            2,
            WORKED,
            {
                "experts": [[1, 0], [1, 2], [2, 0], [3, 2]],
                "weights": [
                    [1.133877, 1.366123],
                    [1.419367, 1.080633],
                    [1.201062, 1.298938],
                    [1.607302, 0.892698],
                ],
            },
            stages=v3,
            more={"bias": [-0.2, 0.0, 0.1, 0.0]},
        ),
    ]


def cases_of_order():
    """Tokens that tell the two orders of placing apart, equal logits, and large ones."""
    rival = [[2.0, 1.0], [1.0, 2.0]]
    return [
        worked(
            "choice-major",
            "custom",
            2,
            rival,
            {"kept": [[True, False], [True, False]]},
            stages=top2("choice_major"),
        ),
        worked(
            "token-major",
            "custom",
            2,
            rival,
            {"kept": [[True, True], [False, False]]},
            stages=top2("token_major"),
        ),
        worked(
            "ties",
            "olmoe",
            3,
            [[1.0] * 6] * 3 + [[0.5, 0.75, 0.75, 0.5, 0.75, 0.5]],
            {"experts": [[0, 1, 2]] * 3 + [[1, 2, 4]]},
        ),
        worked(
            "large logits",
            "mixtral",
            2,
            [[300.0, 299.0, -300.0, 0.0], [-500.0, -501.5, -500.25, -502.0]],
            {"experts": [[0, 1], [0, 2]], "weights": [[0.731059, 0.268941], [0.562177, 0.437823]]},
        ),
    ]


def make_all(folder):
    cases = documented_cases() + cases_of_order()
    for row in ROWS:
        for index, corner in enumerate(CORNERS):
            case = make_case(row, index, SEED, corner)
            cases.append(
                {key: case[key] for key in ("name", "row", "options", "stages", "input", "want")}
            )
    for case in cases:
        case["want"] = {key: rounded(value) for key, value in case["want"].items()}
    with open(os.path.join(folder, "recipes.json"), "w", encoding="utf-8") as out:
        out.write(
            '{"cases": [\n'
            + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
            + "\n]}\n"
        )
