// Turns the FFNs of a dense model into experts, and prints what that did to each layer.
#include "jobs/carve.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "analyze/texts/tables.h"
#include "cli/flags.h"
#include "cli/made_model.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "model/cost.h"

namespace moe::cli {
namespace {

struct Flags {
  CarveJob job;
  bool json = false;
  Given given;
};

void print_carved(const CarvedLayer& l, bool first) {
  if (first) fmt::print("layer  active  shared mass    error  agreement   largest smallest load\n");
  fmt::print("{:5} {:7} {:11.1f}% {:8.3f} {:9.1f}% {:8.2f} {:8.2f}\n", l.layer, l.active,
             100 * l.shared_mass, l.error, 100 * l.agreement, l.largest_load, l.smallest_load);
  std::fflush(stdout);
}

double mean_of(const std::vector<CarvedLayer>& layers, double CarvedLayer::*what) {
  double sum = 0;
  for (const CarvedLayer& l : layers) sum += l.*what;
  return sum / static_cast<double>(layers.size());
}

void print_written(const CarveReply& r) {
  const CarveOptions& o = r.options;
  const ParamCount params = count_params(r.carved);
  const std::vector<CarvedLayer>& layers = r.result.layers;
  fmt::print(" mean         {:11.1f}% {:8.3f} {:9.1f}% {:8.2f} {:8.2f}\n",
             100 * mean_of(layers, &CarvedLayer::shared_mass), mean_of(layers, &CarvedLayer::error),
             100 * mean_of(layers, &CarvedLayer::agreement),
             mean_of(layers, &CarvedLayer::largest_load),
             mean_of(layers, &CarvedLayer::smallest_load));
  if (r.carved.by_neuron())
    fmt::print("{}: {}, {} (method {})\n", r.out, r.layers_carved(), r.shape(), o.method);
  else
    fmt::print(
        "{}: {} cut into {} slices each, {} always on and {} of {} chosen: {:.1f}% of the FFN "
        "works for a token (method {})\n",
        r.out, r.layers_carved(), o.experts, o.shared, o.active, o.experts - o.shared,
        100 * active_ffn_share(r.dense, o), o.method);
  fmt::print("{} parameters, {} of them for a token (dense: {}); calibrated on {} tokens in {}\n",
             human_count(static_cast<double>(params.total())),
             human_count(static_cast<double>(params.active())),
             human_count(static_cast<double>(count_params(r.dense).total())), r.result.tokens,
             name_of(r.compute));
  fmt::print("{:.1f} s: {:.1f} s to load, {:.1f} s to carve, {:.1f} s to write\n", r.seconds(),
             r.load_seconds, r.carve_seconds, r.write_seconds);
  print_weights(r.type, r.rows);
}

int run_carve(const Flags& f) {
  check_given(f.job, f.given);
  if (f.json) {
    print_json(to_json(carve_model(f.job, on_screen()), flag_of));
    return 0;
  }
  bool first = true;
  const auto on_layer = [&](const CarvedLayer& l) { print_carved(l, std::exchange(first, false)); };
  const CarveReply reply = carve_model(f.job, on_screen(), {on_layer, print_written});
  if (reply.report) fmt::print("\n{}", conversion_tables(*reply.report));
  if (!f.job.verify.html.empty()) fmt::print("the page is in {}\n", f.job.verify.html);
  return 0;
}

}  // namespace

Action add_carve(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  FieldList list = fields(f->job);
  list.add("json", f->json, "one JSON object on standard output");
  list.add(verify_fields(f->job));
  add_flags(app, std::move(list), f->given);
  return [f] { return run_carve(*f); };
}

}  // namespace moe::cli
