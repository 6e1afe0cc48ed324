#include "convert/options.h"

#include <nlohmann/json.hpp>

namespace moe {
namespace {

void add_layers(FieldList& list, LayerChoice& layers) {
  const FieldValue value{
      Field::Kind::text, [&layers] { return Json(to_text(layers)); },
      [&layers](const Json& text) { layers = parse_layers(text.get<std::string>()); }};
  list.add("layers", value,
           "which layers get experts: every:P (0, P, 2P ...), or a list such as 1,3,8-11; the "
           "others stay dense");
}

std::string methods_help() {
  std::string out = "how neurons are dealt out, routed and fitted: ";
  for (const CarveMethod& m : carve_methods())
    out += fmt::format("{}{}: {}", &m == carve_methods().data() ? "" : "; ", m.name, m.what);
  return out + " (docs/carving.md)";
}

}  // namespace

FieldList fields(CarveOptions& o) {
  FieldList list;
  list.add("shared", o.shared, "S: slices of each FFN that are always on").no_default();
  list.add("active", o.active,
           "A: experts that a token takes of the E - S others; (S + A) / E of each carved FFN "
           "works for a token")
      .no_default();
  list.add("experts", o.experts, "E: slices in all; divides the width of the FFN").no_default();
  list.add("budget", o.budget,
           "with @method sketch, in place of the three above: the share of the bytes of a carved "
           "FFN that a decoded token reads, the sketch among them (0.75, 0.5, 0.25)");
  list.add(
      "sketch_bits", o.sketch_bits,
      "with @method sketch: bits of a number of the sketch, 2 or 4, or 3: 2 of `gate` and 4 of "
      "`up`; 0: those that lose least at the @budget");
  add_layers(list, o.layers);
  list.add("method", o.method, methods_help()).values(carve_method_names());
  list.add("router", o.router,
           "another router than the method's: analytic, similarity, learned or energy")
      .values(carve_routers());
  list.add("fit", o.fit, "another fit of what the experts give than the method's: none or refit")
      .values(carve_fits());
  list.add_choice("profile", o.profile, profile_names(),
                  "where the method or the router marks the strongest neurons of a token, by what: "
                  "activations of products divided by the norms of token and neuron (cosine), or "
                  "as they are (raw)");
  list.add("marks", o.marks, "how many neurons of a token are marked");
  list.add("seed", o.seed, "of what the method draws, where it draws anything");
  return list;
}

FieldList fields(UpcycleOptions& o) {
  FieldList list;
  list.add("granularity", o.granularity,
           "G: cut each copy into G experts of a G-th of its width (virtual groups). @experts / G "
           "copies are made, and a token that takes a multiple of G "
           "experts begins with whole copies");
  add_layers(list, o.layers);
  list.add("noise", o.noise,
           "draw a share of each expert's numbers anew from a normal distribution of this standard "
           "deviation; 0: all copies are alike");
  list.add("noise_share", o.noise_share, "the share of the numbers that @noise draws anew");
  list.add("down_scale", o.down_scale,
           "multiply the experts' last matrices by this; default: what makes the weights of a "
           "token whose logits are alike count as 1 together");
  list.add("seed", o.seed, "of routers and noise");
  return list;
}

FieldList fields(PruneOptions& o) {
  FieldList list;
  list.add("experts", o.experts,
           "how many experts stay in each MoE layer: at least as many as a token takes, and of "
           "experts in groups as many of each")
      .required();
  list.add_choice("saliency", o.saliency, saliency_names(),
                  "what an expert counts, over the tokens that choose it: output, the sum of what "
                  "it adds (its weight times the norm of its output); mean, "
                  "the mean of that (REAP); frequency, how many they are");
  return list;
}

FieldList fields(MergeOptions& o) {
  FieldList list;
  list.add_choice("gates", o.gates, gates_names(),
                  "what a gate is made of: hidden, what the router sees at the last token of the "
                  "expert's prompts; hidden_avg, the mean over their tokens; "
                  "random, nothing, the routers are drawn and have to be trained");
  list.add("seed", o.seed, "of @gates random");
  return list;
}

}  // namespace moe
