#include "jobs/result_type.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "tensor/quant.h"

namespace moe {
namespace {

std::optional<WantedType> asked_type(const ResultTypeOptions& o, const std::string& out) {
  if (!o.quant.empty() && o.dtype)
    fail_usage("@quant and @dtype both choose the type of the weights; give one of them");
  if (!o.quant.empty()) {
    const QuantMix& mix = find_quant_mix(o.quant, field("quant"));
    if (target_of(out) == Target::folder)
      fail_usage(
          "@quant writes quantised weights, which only a GGUF file holds; let OUT end in .gguf");
    return mix;
  }
  if (!o.dtype) return std::nullopt;
  return WantedType(*o.dtype);
}

}  // namespace

FieldList fields(ResultTypeOptions& o) {
  FieldList list;
  list.add_named(
      "dtype", {"f32", "bf16"}, [&o] { return o.dtype ? std::string(name_of(*o.dtype)) : ""; },
      [&o](const std::string& name) { o.dtype = dtype_named(name); },
      "write the weights as f32 or bf16. Default: the type that most of the source's are, "
      "quantised too where OUT is a GGUF file; in a folder "
      "bf16 for a quantised source and f32 for f16");
  list.add("quant", o.quant, "write the weights quantised (GGUF only): as moe convert --quant")
      .values(quant_mix_names());
  return list;
}

void check_result_type(const ResultTypeOptions& o, const std::string& out) { asked_type(o, out); }

ResultType result_type(const ResultTypeOptions& o, const std::string& out,
                       const LoadedModel& source, const std::string& source_path) {
  if (const std::optional<WantedType> asked = asked_type(o, out)) return {*asked, ""};
  const DType most = stored_dtype(source);
  const bool file = target_of(out) == Target::gguf;
  const std::string name(name_of(most));
  if (file && !can_make(most))
    fail_usage("most of {} is {}, which is read, not made; choose a type with @quant or @dtype",
               source_path, name);
  if (most == DType::f32 || most == DType::bf16 ||
      (file && (most == DType::f16 || is_quantised(most))))
    return {most, "as most of " + source_path + " is"};
  // A folder is rounded to what is small beside what quantising has rounded already, and not where
  // nothing has been.
  if (most == DType::f16)
    return {DType::f32, message("most of {} is f16, which is written to a GGUF file only; @dtype "
                                "bf16 takes half the room",
                                source_path)};
  return {DType::bf16,
          fmt::format(
              "most of {} is {}, which only a GGUF file holds: an OUT that ends in .gguf keeps it",
              source_path, name)};
}

std::string_view written_name(const WantedType& type) {
  return type.mix != nullptr ? type.mix->name : name_of(type.dtype);
}

std::vector<ConvertedRow> otherwise_written(const std::vector<ConvertedRow>& rows) {
  std::vector<ConvertedRow> out;
  for (const ConvertedRow& row : rows) {
    if (row.why.empty()) continue;
    const auto same = std::find_if(out.begin(), out.end(), [&](const ConvertedRow& r) {
      return r.to == row.to && r.why == row.why;
    });
    if (same == out.end()) out.push_back(row);
    else same->targets += row.targets;
  }
  return out;
}

Json weights_json(const ResultType& type, const std::vector<ConvertedRow>& rows,
                  const Spelling& spell) {
  Json others = Json::array();
  for (const ConvertedRow& row : otherwise_written(rows))
    others.push_back({{"dtype", name_of(row.to)}, {"tensors", row.targets}, {"why", row.why}});
  return {
      {"dtype", written_name(type.type)}, {"why", spelled(type.why, spell)}, {"others", others}};
}

}  // namespace moe
