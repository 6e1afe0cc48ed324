#include "api/options.h"

#include <nlohmann/json.hpp>

#include "core/nearest.h"
#include "hub/adapter.h"
#include "jobs/drafting.h"
#include "jobs/route.h"
#include "jobs/run_options.h"
#include "options/common.h"

namespace moe::api {
namespace {

template <class Options>
Json described(Options options) {
  return describe(fields(options));
}

Json described_continue() {
  GenerateOptions options;
  return describe(continue_fields(options));
}

struct Function {
  const char* name;
  Json (*describe)();
};
constexpr Function kFunctions[] = {
    {"train", [] { return described(RunOptions()); }},
    {"load", [] { return described(LoadOptions()); }},
    {"generate", [] { return described(WriteOptions()); }},
    {"score", [] { return described(open_score_options()); }},
    {"session_open", [] { return described(OpenOptions()); }},
    {"session_generate", described_continue},
    {"save", [] { return described(SaveOptions()); }},
    {"route", [] { return described(RouteOptions()); }},
    {"layer_open", [] { return described(LayerOptions()); }},
};

}  // namespace

FieldList fields(LoadOptions& o) {
  FieldList list = cpu_fields(o.compute);
  add_adapter(list, o.adapter);
  add_memory_limits(list, o.memory);
  return list;
}

FieldList fields(WriteOptions& o) {
  FieldList list = fields(o.generate);
  list.add(fields(o.draft));
  return list;
}

FieldList fields(OpenOptions& o) {
  FieldList list;
  list.add("capacity", o.capacity, "most tokens that the session holds; 0: the model's context")
      .unit("tokens");
  list.add("threads", o.threads, "of the session's calls; 0: the model's");
  list.add(fields(o.session));
  list.add(fields(o.draft));
  return list;
}

void check_draft_asked(const DraftOptions& o) {
  const DraftOptions unset;
  Given given;
  if (o.tokens != unset.tokens) given.add("draft_tokens", GivenBy::caller);
  if (o.min_p != unset.min_p) given.add("draft_min_p", GivenBy::caller);
  check_draft_options(o, given);
}

FieldList continue_fields(GenerateOptions& o) {
  FieldList list = fields(o);
  for (const Field& own : fields(o.session)) list.take({own.name});
  return list;
}

FieldList fields(SaveOptions& o) {
  FieldList list;
  list.add_named(
      "dtype", {"f32", "bf16"}, [&o] { return std::string(name_of(o.dtype)); },
      [&o](const std::string& name) { o.dtype = *dtype_named(name); },
      "of the numbers in the file");
  return list;
}

ScoreOptions open_score_options() { return {.window = 0}; }

Json describe_options(const std::string& function) {
  for (const Function& f : kFunctions)
    if (function == f.name) return f.describe();
  fail_usage("moe_options: no function with options is called \"{}\"{}", printable(function),
             suggestion(function, names_of(kFunctions)));
}

}  // namespace moe::api
