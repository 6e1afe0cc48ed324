#!/usr/bin/env python3
"""Asks a running `moe serve` with OpenAI's client, and shows which experts each token went to.

  moe serve MODEL &
  pip install openai
  examples/ask.py "What is an expert?" [http://127.0.0.1:8080/v1] [KEY]
"""

import sys

from openai import OpenAI

question = sys.argv[1] if len(sys.argv) > 1 else "What is an expert?"
url = sys.argv[2] if len(sys.argv) > 2 else "http://127.0.0.1:8080/v1"
key = sys.argv[3] if len(sys.argv) > 3 else "none"

client = OpenAI(base_url=url, api_key=key)
model = client.models.list().data[0]
routes = model.meta["num_experts"] > 0
stream = client.chat.completions.create(
    model=model.id,
    messages=[{"role": "user", "content": question}],
    max_tokens=200,
    temperature=0,
    stream=True,
    extra_body={"routing": routes},
)
first_layer = []  # of each token read: its text and the experts of the first MoE layer
for chunk in stream:
    choice = chunk.choices[0]
    print(choice.delta.content or "", end="", flush=True)
    for token in (getattr(choice, "routing", None) or {}).get("tokens", []):
        first_layer.append((token["text"], token["experts"][0]))
print()
for text, experts in first_layer[-10:]:
    print(f"{text!r:>16}  experts {experts}")
