// The fields of residual streams (transformers:hy_v4/configuration_hy_v4.py), and of routed experts
// that hold their gates and what stands beside them.
#include "hub/folder/family_parts.h"

namespace moe {
namespace {

constexpr const char* kLimit = "swiglu_limit";
constexpr double kKnownLimit = 10;  // ops::Act has it

template <class Visitor, class Config>
void visit_streams(Visitor& v, Config& c) {
  v.size("hc_mult", c.hyper.streams, 2);
  v.number("hc_magnitude", c.hyper.magnitude, 0);
  v.number("hc_eps", c.hyper.eps, 0);
}

}  // namespace

// The norm of an indexer's keys has the model's epsilon.
void read_streams(const JsonReader& reader, ModelConfig& c) {
  FieldReader fields(reader);
  visit_streams(fields, c);
  if (const auto limit = reader.get<double>(kLimit); limit != kKnownLimit)
    fail("{}: \"{}\" is {}; only {} is known here", reader.where(), kLimit, text_of(reader, kLimit),
         kKnownLimit);
  c.experts_held = true;
  c.sparse.norm_eps = c.norm_eps;
}

void write_streams(Json& json, const ModelConfig& c) {
  FieldWriter fields(json);
  visit_streams(fields, c);
  json[kLimit] = kKnownLimit;
}

std::string why_not_streams(const ModelConfig& c, const Family& f) {
  if (!f.streams) return "";
  if (!c.hyper.present()) return "it has one residual stream";
  if (c.hyper.mixes) return "its residual streams are mixed";
  if (!c.experts_held) return "its routed experts are not held";
  return c.sparse.norm_eps == c.norm_eps ? ""
                                         : "norms of its indexers have an epsilon of their own";
}

}  // namespace moe
