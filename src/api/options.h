// The options of the functions of include/moe/moe.h, by the function's name without "moe_".
#pragma once

#include <string>

#include "core/memory.h"
#include "evaluate/options.h"
#include "infer/options.h"
#include "moe/recipes/wanted_routing.h"

namespace moe::api {

struct LoadOptions {
  std::string adapter;
  ComputeOptions compute;
  MemoryLimits memory;
};
FieldList fields(LoadOptions&);

// Of a text that is written whole.
struct WriteOptions {
  GenerateOptions generate;
  DraftOptions draft;
};
FieldList fields(WriteOptions&);

struct OpenOptions {
  int64_t capacity = 0;  // tokens; 0: the model's context
  int threads = 0;       // 0: the model's
  SessionOptions session;
  DraftOptions draft;
};
FieldList fields(OpenOptions&);
// Fails (usage) as check_draft_options(); a default that a program gives back says nothing.
void check_draft_asked(const DraftOptions&);
// Of a text that goes on in a session: all but the session's own.
FieldList continue_fields(GenerateOptions&);

struct SaveOptions {
  DType dtype = DType::f32;  // of the numbers in the file
};
FieldList fields(SaveOptions&);

// Of one MoE layer.
struct LayerOptions {
  WantedRouting routing;
  std::optional<EvalRouting> eval;    // absent: the recipe's default
  int64_t hidden_size = 0;            // D; 0: logits are routed
  int64_t moe_intermediate_size = 0;  // F; 0: no experts
  ops::Act activation = ops::Act::silu;
  std::optional<bool> gated;  // absent: yes
  bool bias = false;
  int threads = 0;
};
FieldList fields(LayerOptions&);

// Score options whose window is still open.
ScoreOptions open_score_options();

// What there is to know of a function's options: a list of {name, also, kind, help, unit, group,
// default, values, required}.
Json describe_options(const std::string& function);

}  // namespace moe::api
