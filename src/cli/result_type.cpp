#include "cli/result_type.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "core/words.h"

namespace moe::cli {
namespace {

std::optional<WantedType> asked_type(const ResultTypeFlags& f, const std::string& out) {
  if (!f.quant.empty() && f.dtype) fail_usage("--quant and --dtype both choose the type of the weights; give one of them");
  if (!f.quant.empty()) {
    const QuantMix& mix = find_quant_mix(f.quant, "--quant");
    if (target_of(out) == Target::folder) fail_usage("--quant writes quantised weights, which only a GGUF file holds; let OUT end in .gguf");
    return mix;
  }
  if (!f.dtype) return std::nullopt;
  return WantedType(*f.dtype);
}

// The same tensors by what became of them: a row for each type and reason.
std::vector<ConvertedRow> by_result(const std::vector<ConvertedRow>& rows) {
  std::vector<ConvertedRow> out;
  for (const ConvertedRow& row : rows) {
    const auto same = std::find_if(out.begin(), out.end(), [&](const ConvertedRow& r) { return r.to == row.to && r.why == row.why; });
    if (same == out.end()) out.push_back(row);
    else same->targets += row.targets;
  }
  return out;
}

// What was asked for, as it was asked: a mix by its name.
std::string_view written_name(const WantedType& type) { return type.mix != nullptr ? type.mix->name : name_of(type.dtype); }

}  // namespace

FieldList fields(ResultTypeFlags& f) {
  FieldList list;
  list.add_named(
      "dtype", {"f32", "bf16"}, [&f] { return f.dtype ? std::string(name_of(*f.dtype)) : ""; }, [&f](const std::string& name) { f.dtype = dtype_named(name); },
      "write the weights as f32 or bf16. Default: the type that most of the source's are, quantised too where OUT is a GGUF file; in a folder "
      "bf16 for a quantised source and f32 for f16");
  list.add("quant", f.quant, "write the weights quantised (GGUF only): as moe convert --quant").values(quant_mix_names());
  return list;
}

void check_result_type(const ResultTypeFlags& f, const std::string& out) { asked_type(f, out); }

ResultType result_type(const ResultTypeFlags& f, const std::string& out, const LoadedModel& source, const std::string& source_path) {
  if (const std::optional<WantedType> asked = asked_type(f, out)) return {*asked, ""};
  const DType most = stored_dtype(source);
  const bool file = target_of(out) == Target::gguf;
  const std::string name(name_of(most));
  if (most == DType::f32 || most == DType::bf16 || (file && (most == DType::f16 || is_quantised(most)))) return {most, "as most of " + source_path + " is"};
  // A folder is rounded to what is small beside what quantising has rounded already, and not where nothing has been.
  if (most == DType::f16)
    return {DType::f32, fmt::format("most of {} is f16, which is written to a GGUF file only; --dtype bf16 takes half the room", source_path)};
  return {DType::bf16, fmt::format("most of {} is {}, which only a GGUF file holds: an OUT that ends in .gguf keeps it", source_path, name)};
}

void print_weights(const ResultType& type, const std::vector<ConvertedRow>& rows) {
  const char* between = type.why.starts_with("as ") ? ", " : "; ";
  fmt::print("weights: {}{}{}\n", written_name(type.type), type.why.empty() ? "" : between, type.why);
  for (const ConvertedRow& row : by_result(rows))
    if (!row.why.empty()) fmt::print("  {} of {}: {}\n", counted(row.targets, "tensor"), name_of(row.to), row.why);
}

Json weights_json(const ResultType& type, const std::vector<ConvertedRow>& rows) {
  Json others = Json::array();
  for (const ConvertedRow& row : by_result(rows))
    if (!row.why.empty()) others.push_back({{"dtype", name_of(row.to)}, {"tensors", row.targets}, {"why", row.why}});
  return {{"dtype", written_name(type.type)}, {"why", type.why}, {"others", others}};
}

}  // namespace moe::cli
