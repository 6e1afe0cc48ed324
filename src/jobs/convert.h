// The body of `moe convert`: from one file of a model to another, with an adapter merged and both
// scored where that is asked for.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "hub/adapter.h"
#include "hub/convert.h"
#include "jobs/calibration.h"
#include "jobs/forward_memory.h"
#include "jobs/importance.h"
#include "options/read.h"

namespace moe {

struct ConvertJob {
  std::string in, out, adapter, quant, dtype, verify;
  bool text_only = false, adapter_only = false;
  std::optional<int64_t> split_size;
  ImportanceOptions importance;
  MemoryOptions memory;
  ScoreOptions rule{.window = 0};  // of the text to verify by; 0: default_window
  int threads = 0;
};
FieldList fields(ConvertJob&);
// Fails (usage) on what does not go together; asked first.
void check_given(const ConvertJob&, const Given&);

// An adapter that was merged into what is written.
struct MergedAdapter : AttachedAdapter {
  double largest = 0;  // hub/adapter.h, largest_term
};

// An adapter that was written alone.
struct WrittenAdapter {
  int64_t matrices = 0, rank = 0;
  std::string why_own;  // why llama.cpp does not run its model; empty where it does
};

struct ConvertReply {
  std::string adapter;
  std::optional<WrittenAdapter> adapter_alone;  // then nothing else
  std::vector<Beside> left_out;
  std::optional<MergedAdapter> merged;
  std::optional<MeasuredImportance> importance;
  ConvertReport account;
  struct Verified {
    VerifyText text;
    Score before, after;
  };
  std::optional<Verified> verified;
};
struct ConvertCallbacks {
  std::function<void(const MergedAdapter&)> on_merged = [](const MergedAdapter&) {};
  // Once for each kind of what IN has beside the model of text.
  std::function<void(const Beside&)> on_left_out = [](const Beside&) {};
  std::function<void(const MeasuredImportance&)> on_importance = [](const MeasuredImportance&) {};
  // OUT is there and has not been scored yet.
  std::function<void(const ConvertReport&)> on_written = [](const ConvertReport&) {};
};
ConvertReply convert_model(const ConvertJob&, const Watch&, const ConvertCallbacks& = {});
Json to_json(const ConvertReply&);

}  // namespace moe
