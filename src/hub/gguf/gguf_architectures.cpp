#include "hub/gguf/gguf_architectures.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "core/nearest.h"
#include "hub/gguf/gguf_first_rows.h"
#include "hub/gguf/gguf_later_rows.h"

namespace moe {
namespace {

// Its config is config.json's, so that only names are said here.
constexpr GgufArchitecture kOwn = {.name = "moe_cpp", .title = "moe.cpp", .tensors = &kGgufTensors};

// Each of the later ones is of its own models alone: in front they are the nearest of these.
constexpr auto kRows = [] {
  std::array<GgufArchitecture, std::size(kLaterGgufRows) + std::size(kFirstGgufRows)> all{};
  std::ranges::copy(kFirstGgufRows, std::ranges::copy(kLaterGgufRows, all.begin()).out);
  return all;
}();

// Files of models of pictures and text hold the model of text, which is another's.
struct TextOf {
  std::string_view name, text;
};
constexpr TextOf kTextOf[] = {
    {"qwen2vl", "qwen2"}, {"qwen3vl", "qwen3"}, {"qwen3vlmoe", "qwen3moe"}};

}  // namespace

std::span<const GgufArchitecture> gguf_architectures() { return kRows; }

const GgufArchitecture& own_gguf_architecture() { return kOwn; }

int64_t full_attention_every(const ModelConfig& c) {
  int64_t first = 0;
  while (first < c.layers && c.is_linear(first)) ++first;
  return first + 1;
}

float gemma_score_factor(const GgufArchitecture& row, const ModelConfig& c) {
  const int64_t width = c.layers == row.gemma ? c.width / c.heads : c.head_width;
  return 1 / std::sqrt(static_cast<float>(width));
}

GgufForm gguf_form_of(const ModelConfig& config) {
  // Its graph of Phi-3.5-MoE takes RMSNorms for LayerNorms and a softmax of the chosen (github
  // ggml-org/llama.cpp, src/models/phi3.cpp), which is another model; sigmoids it takes of all
  // experts, and a bias of theirs chooses; Llama 4's of the chosen multiply what experts are given.
  const WeighStage weigh =
      config.moe_layer_count() > 0 ? eval_spec(config.routing).weigh : WeighStage{};
  if (std::holds_alternative<NearSoftmax>(weigh) ||
      (std::holds_alternative<ChosenSigmoids>(weigh) && !config.weigh_inputs))
    return {&kOwn, fmt::format("none of its graphs weighs experts as recipe '{}' does",
                               config.routing.recipe)};
  const GgufArchitecture* nearest_row = nullptr;
  std::string nearest_reason;
  int furthest = -1;
  for (const GgufArchitecture& row : kRows) {
    if (row.read_only) continue;
    int passed = 0;
    std::string reason = why_not(row, config, &passed);
    if (reason.empty()) return {&row, ""};
    if (passed <= furthest) continue;
    furthest = passed;
    nearest_row = &row;
    nearest_reason = std::move(reason);
  }
  return {
      &kOwn,
      fmt::format(
          "none of its architectures that are known here supports this model; {} (\"{}\") comes "
          "nearest, but {}",
          nearest_row->title, nearest_row->name, nearest_reason)};
}

const GgufArchitecture& find_gguf_architecture(std::string_view name, const GgufTraits& file,
                                               const std::string& where) {
  std::vector<std::string> known = {std::string(kOwn.name)};
  for (const TextOf& with_pictures : kTextOf) {
    if (with_pictures.name == name) return find_gguf_architecture(with_pictures.text, file, where);
    known.emplace_back(with_pictures.name);
  }
  bool is_known = false;
  const GgufArchitecture* first = nullptr;
  for (const GgufArchitecture& row : kRows) {
    if (row.name == name && row.routes() == file.routes) {
      const bool scores = file.gating == 0
                              ? (row.selection_bias == Biases::yes) == file.selection_bias
                              : static_cast<int64_t>(row.gating) == file.gating;
      if (file.windows == row.windows() && scores) return row;
      if (first == nullptr || first->windows() != file.windows) first = &row;
    }
    is_known = is_known || row.name == name;
    if (std::ranges::find(known, row.name) == known.end()) known.emplace_back(row.name);
  }
  if (first != nullptr) return *first;
  if (is_known)
    fail("{}: architecture \"{}\" {}", where, printable(name),
         file.routes ? "has no experts, but \"expert_count\" is given" : "needs \"expert_count\"");
  fail("{}: architecture \"{}\" of key \"general.architecture\" is not supported{}", where,
       printable(name), suggestion(name, known));
}

}  // namespace moe
