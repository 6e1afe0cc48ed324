// From one file of a model to another: Hugging Face folder or GGUF, in the types asked for, a few
// rows at a time, so that a model larger than memory converts.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/error_shares.h"
#include "hub/gguf/quant_policy.h"
#include "hub/hub.h"
#include "hub/importance.h"

namespace moe {

struct ConvertOptions {
  std::optional<WantedType> dtype;  // of the weights of products, embedding and head: --quant or
                                    // --dtype; absent: as they are
  // What the errors of a quantised GGUF weigh; null: the quantisers' own rules. `importance_from`
  // says where it is from: a file, or the text that it was measured on.
  const Importance* importance = nullptr;
  std::string importance_from = {};
  // Of tensors that are weighed: how rounding errors are made good; null: every number is rounded
  // by itself.
  ErrorShares* shares = nullptr;
  int threads = 1;
  int64_t file_bytes = 0;  // of tensors in one GGUF file at most, else several are made; 0: one
  // Told how many bytes of the result are there, of how many; may throw, and then nothing is left
  // behind.
  std::function<void(int64_t done, int64_t total)> progress = {};
  // Told which earlier result the new one will take the place of, before it is made.
  std::function<void(const std::string& path)> replacing = {};
};

// Tensors that went the same way.
struct ConvertedRow {
  DType from = DType::f32, to = DType::f32;
  std::string_view why;  // `to` is not what was asked for; empty where it is
  int64_t sources = 0, targets = 0;
  int64_t bytes_before = 0, bytes_after = 0;
  std::string example;  // the first target's name
};

// What a conversion did: the account of its tensors, which has come out when there is a report.
struct ConvertReport {
  std::vector<ConvertedRow> rows;  // in the order of the targets' first appearance
  int64_t sources = 0, targets = 0;
  int64_t numbers = 0;  // of the model; each was read once and written once
  int64_t bytes_before = 0, bytes_after = 0;
  int64_t aliases = 0;          // sources that hold a tied head a second time, or what nobody needs
  int64_t tables = 0;           // targets that hold no parameter and follow from the configuration
  int64_t quantised_twice = 0;  // targets quantised from quantised numbers
  int64_t weighed = 0;          // targets quantised by the importance of their columns
  int64_t compensated = 0;      // of those, whose rounding errors were made good
  std::vector<std::string> not_weighed;  // that would have been, but nothing is known of them
  std::vector<LayerRows> expert_rows;    // of the text that the importance is from
  std::vector<std::string> files;        // that a GGUF was written as; the first opens all
  std::string why_own;  // why llama.cpp does not run a GGUF that was written; empty where it does
  // what llama.cpp cannot be told of a GGUF that it runs, and what was left out unasked
  std::vector<std::string> notes;
};

// The type that most numbers of a model's matrices have in its file.
DType stored_dtype(const LoadedModel& model);

// A path that ends in .gguf is a GGUF file, any other a folder.
Target target_of(const std::string& out);

// Fails where `out` must not be replaced: the model itself, another model, something that is no
// model. Asked before the work.
void check_convert_target(const std::string& in, const std::string& out, LoadedModel& model);

// Bytes that convert_model() holds at once, a few rows of a tensor before and after.
int64_t converting_bytes(const Model&);

// Writes the model that was loaded from `in` (for inference) to `out`, whole or not at all.
// Refuses, naming tensor or parameter: numbers that are not finite or too large for the new type,
// and any account that does not come out: every tensor of the source is consumed once, every number
// of the model written once, every tensor of the target written once.
ConvertReport convert_model(LoadedModel& model, const std::string& in, const std::string& out,
                            const ConvertOptions& options);

}  // namespace moe
