// The type of the weights that are written when one model is made out of others: what is asked for,
// or what the source has.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "hub/convert.h"
#include "options/fields.h"

namespace moe {

struct ResultTypeOptions {
  std::optional<DType> dtype;
  std::string quant;  // neither: as most of the source is, where OUT can hold that
};
FieldList fields(ResultTypeOptions&);

struct ResultType {
  WantedType type = DType::f32;
  std::string why;  // nobody asked for it: "as most of dense.gguf is", fields marked; empty where
                    // somebody did
};
// What OUT's weights are written as. Fails (usage) where OUT cannot hold what is asked for; `out`
// and the options are all that this needs.
void check_result_type(const ResultTypeOptions&, const std::string& out);
ResultType result_type(const ResultTypeOptions&, const std::string& out, const LoadedModel& source,
                       const std::string& source_path);

// What was asked for, as it was asked: a mix by its name.
std::string_view written_name(const WantedType&);
// The tensors of a GGUF file that became something else than the type says: a row for each type and
// reason.
std::vector<ConvertedRow> otherwise_written(const std::vector<ConvertedRow>& rows);
Json weights_json(const ResultType&, const std::vector<ConvertedRow>& rows,
                  const Spelling& spell = {});

}  // namespace moe
