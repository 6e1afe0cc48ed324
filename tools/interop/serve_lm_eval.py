"""lm_eval's scores of a model through `moe serve` and by its own transformers backend on the same
weights: two small tasks, written here, once by each."""

import contextlib
import io
import json
import os
import random

WORDS = [
    "the",
    "a",
    "small",
    "large",
    "expert",
    "router",
    "token",
    "learns",
    "routes",
    "reads",
    "writes",
    "and",
    "then",
    "of",
    "to",
    "model",
    "line",
    "word",
]
QUESTIONS = 40
GENERATED = 12
NEW_TOKENS = 16

CHOICES_YAML = """task: moe_choices
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
doc_to_choice: "{{{{choices}}}}"
target_delimiter: ""
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""
REPLIES_YAML = """task: moe_replies
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
output_type: generate_until
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{target}}}}"
target_delimiter: ""
generation_kwargs:
  until: {until}
  do_sample: false
  max_gen_toks: {tokens}
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
"""


def phrase(rng, count):
    return " ".join(rng.choice(WORDS) for _ in range(count))


def write_tasks(folder):
    """Both tasks, the same each time; their texts fit a context of 64 bytes."""
    os.makedirs(folder, exist_ok=True)
    rng = random.Random(6)
    choices, replies = [], []
    for number in range(QUESTIONS):
        answers = []
        while len(answers) < 4:
            answer = " " + phrase(rng, 1 + number % 2)
            if answer not in answers:
                answers.append(answer)
        question = phrase(rng, 2 + number % 3)[:30].rstrip()
        choices.append({"question": question, "choices": answers, "answer": rng.randrange(4)})
    for number in range(GENERATED):
        replies.append({"question": phrase(rng, 2 + number % 3)[:30].rstrip(), "target": "the"})
    for name, lines, form in (
        ("choices", choices, CHOICES_YAML),
        ("replies", replies, REPLIES_YAML),
    ):
        data = os.path.join(folder, name + ".jsonl")
        with open(data, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        with open(os.path.join(folder, name + ".yaml"), "w", encoding="utf-8") as file:
            file.write(
                form.format(data=json.dumps(data), until=json.dumps(["\n"]), tokens=NEW_TOKENS)
            )


def evaluate(folder, model, arguments, task, chat=False, batch=1):
    """The task's score and each sample's answers, in order."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    # Progress bars that no option turns off; what the logger says keeps its place.
    with contextlib.redirect_stderr(io.StringIO()):
        result = lm_eval.simple_evaluate(
            model=model,
            model_args=arguments,
            tasks=[task],
            task_manager=TaskManager(include_path=folder, include_defaults=False),
            device="cpu",
            batch_size=batch,
            bootstrap_iters=0,
            log_samples=True,
            apply_chat_template=chat,
            verbosity="ERROR",
        )
    metric = "acc,none" if task == "moe_choices" else "exact_match,none"
    samples = sorted(result["samples"][task], key=lambda sample: sample["doc_id"])
    answers = []
    for sample in samples:
        for response in sample["resps"]:
            answers.append(response[0])
    return result["results"][task][metric], answers


def compare_choices(name, ours, theirs):
    """The same accuracy, log-likelihoods within 1e-3, the same `is_greedy`; the largest distance."""
    assert len(ours[1]) == len(theirs[1]), f"{name}: {len(ours[1])} answers to {len(theirs[1])}"
    largest = 0.0
    for place, (left, right) in enumerate(zip(ours[1], theirs[1])):
        left, right = number_and_truth(left), number_and_truth(right)
        where = f"{name}: question {place // 4}, choice {place % 4}"
        apart = abs(left[0] - right[0])
        assert apart <= 1e-3, f"{where}: log-likelihood {left[0]} against {right[0]}"
        assert left[1] == right[1], f"{where}: is_greedy {left[1]} against {right[1]}"
        largest = max(largest, apart)
    assert ours[0] == theirs[0], f"{name}: accuracy {ours[0]} against {theirs[0]}"
    return largest


def number_and_truth(answer):
    value, greedy = answer
    return float(value), str(greedy) == "True"


def compare_replies(name, ours, theirs):
    for place, (left, right) in enumerate(zip(ours[1], theirs[1])):
        assert left == right, f"{name}: reply {place}: {left!a} against {right!a}"
    assert len(ours[1]) == len(theirs[1]) and ours[0] == theirs[0], (name, ours, theirs)


def check_scores(url, folder, tasks, context):
    """local-completions by ids, batched, at once and with the server's own tokenizer."""
    hf = {"pretrained": folder, "dtype": "float32", "add_bos_token": False, "max_length": context}
    theirs = evaluate(tasks, "hf", hf, "moe_choices")
    base = {"model": folder, "base_url": url + "/v1/completions", "max_length": context}
    by_hf = {**base, "tokenizer_backend": "huggingface"}
    ways = {
        "by ids": by_hf,
        "4 in a request": by_hf,
        "4 at once": {**by_hf, "num_concurrent": 4},
        "by text": {**by_hf, "tokenized_requests": False},
        "by the server's tokenizer": {**base, "tokenizer_backend": "remote"},
    }
    largest, broken = 0.0, []
    for name, arguments in ways.items():
        try:
            batch = 4 if name == "4 in a request" else 1
            ours = evaluate(tasks, "local-completions", arguments, "moe_choices", batch=batch)
            largest = max(largest, compare_choices(name, ours, theirs))
        except AssertionError as error:
            broken.append(str(error))
        except Exception as error:  # noqa: BLE001 - the next way may tell more
            broken.append(f"{name}: {type(error).__name__}: {error}")
    assert not broken, "\n".join(broken)
    return f"accuracy {theirs[0]:.3f}, log-likelihoods within {largest:.1e} by {len(ways)} ways"


def check_replies(url, folder, tasks, context):
    hf = {"pretrained": folder, "dtype": "float32", "add_bos_token": False, "max_length": context}
    theirs = evaluate(tasks, "hf", hf, "moe_replies")
    base = {"model": folder, "base_url": url + "/v1/completions", "max_length": context}
    by_hf = {**base, "tokenizer_backend": "huggingface"}
    for name, arguments in (
        ("by ids", by_hf),
        ("by text", {**by_hf, "tokenized_requests": False}),
        ("4 at once", {**by_hf, "num_concurrent": 4}),
    ):
        ours = evaluate(tasks, "local-completions", arguments, "moe_replies")
        compare_replies(name, ours, theirs)
    size = sum(map(len, theirs[1]))
    return f"{len(theirs[1])} greedy replies of {size} characters"


def check_chat_replies(url, folder, tasks, context):
    hf = {"pretrained": folder, "dtype": "float32", "add_bos_token": False, "max_length": context}
    theirs = evaluate(tasks, "hf", hf, "moe_replies", chat=True)
    chat = {
        "model": folder,
        "base_url": url + "/v1/chat/completions",
        "max_length": context,
        "eos_string": eos_of(folder),
    }
    ours = evaluate(tasks, "local-chat-completions", chat, "moe_replies", chat=True)
    compare_replies("in chat", ours, theirs)
    size = sum(map(len, theirs[1]))
    return f"{len(theirs[1])} greedy replies of {size} characters"


def eos_of(folder):
    with open(os.path.join(folder, "tokenizer_config.json"), encoding="utf-8") as file:
        return json.load(file).get("eos_token")
