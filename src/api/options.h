// The options of the functions of include/moe/moe.h, by the function's name without "moe_".
#pragma once

#include <string>

#include "core/memory.h"
#include "evaluate/options.h"
#include "infer/options.h"

namespace moe::api {

struct LoadOptions {
  ComputeOptions compute;
  MemoryLimits memory;
};
FieldList fields(LoadOptions&);

struct OpenOptions {
  int64_t capacity = 0;  // tokens; 0: the model's context
  int threads = 0;       // 0: the model's
  SessionOptions session;
};
FieldList fields(OpenOptions&);
// Of a text that goes on in a session: all but the session's own.
FieldList continue_fields(GenerateOptions&);

struct SaveOptions {
  DType dtype = DType::f32;  // of the numbers in the file
};
FieldList fields(SaveOptions&);

// Score options whose window is still open.
ScoreOptions open_score_options();

// What there is to know of a function's options: a list of {name, also, kind, help, unit, group,
// default, values, required}.
Json describe_options(const std::string& function);

}  // namespace moe::api
