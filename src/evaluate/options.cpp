#include "evaluate/options.h"

#include "infer/options.h"

namespace moe {

FieldList fields(ScoreOptions& o) {
  FieldList list;
  list.add("window", o.window,
           "tokens a window; windows do not overlap, the remainder is dropped; default: 2048, or "
           "the model's context where that is shorter")
      .no_default();
  list.add("windows", o.windows, "at most this many; 0: all");
  list.add("chunk", o.chunk,
           "read a window through the cache that generation uses, this many tokens at a time; 0: "
           "in one piece")
      .unit("tokens");
  list.add_choice("routing", o.routing, eval_routing_names(),
                  "dropless; as-trained: with the recipe's capacity for evaluation; or threshold, "
                  "learned in training where experts choose. Default: dropless, "
                  "or threshold where experts choose");
  add_top_k_experts(list, o.top_k_experts);
  list.add("per_token", o.per_token,
           "with @json: the ids and their log-probabilities (null for the first of each window)");
  return list;
}

FieldList fields(SpeedOptions& o) {
  FieldList list;
  list.add("prompt", o.prompt, "tokens of the timed prompt, drawn at random");
  list.add("tokens", o.tokens, "tokens of the timed decoding");
  list.add("repeats", o.repeats,
           "how often each is timed, after prompts that are not counted because weights are packed "
           "while they are read; the median counts");
  list.add("seed", o.seed, "of the tokens");
  return list;
}

}  // namespace moe
