// The type of the weights that a verb writes when it makes one model out of others: --dtype, --quant, or what the source has.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "hub/convert.h"
#include "options/fields.h"

namespace moe::cli {

struct ResultTypeFlags {
  std::optional<DType> dtype;
  std::string quant;  // neither: as most of the source is, where OUT can hold that
};
FieldList fields(ResultTypeFlags&);

struct ResultType {
  WantedType type = DType::f32;
  std::string why;  // nobody asked for it: "as most of dense.gguf is"; empty where somebody did
};
// What OUT's weights are written as. Fails (usage) where OUT cannot hold what is asked for; `out` and the flags are all that this needs.
void check_result_type(const ResultTypeFlags&, const std::string& out);
ResultType result_type(const ResultTypeFlags&, const std::string& out, const LoadedModel& source, const std::string& source_path);

// "weights: q4_1, as most of dense.gguf is", and below it the tensors of a GGUF file that became something else, and why.
void print_weights(const ResultType&, const std::vector<ConvertedRow>& rows);
Json weights_json(const ResultType&, const std::vector<ConvertedRow>& rows);

}  // namespace moe::cli
