#!/bin/sh
# Asks a running `moe serve` with curl, and shows the reply as it comes.
#   moe serve MODEL &
#   examples/ask.sh "What is an expert?" [http://127.0.0.1:8080]
set -eu
question=$(printf '%s' "${1:-What is an expert?}" | sed 's/\\/\\\\/g; s/"/\\"/g')
url=${2:-http://127.0.0.1:8080}
curl --no-buffer --silent --show-error --fail-with-body "$url/v1/chat/completions" \
  --header 'Content-Type: application/json' --data @- <<JSON
{"messages": [{"role": "user", "content": "$question"}], "max_tokens": 200, "temperature": 0,
 "stream": true, "stream_options": {"include_usage": true}}
JSON
