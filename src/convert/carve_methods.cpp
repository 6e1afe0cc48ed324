// The table of methods of carving. Adding one is adding a row, and a stage where it needs a new
// one.
#include <algorithm>

#include "convert/carve_steps.h"
#include "core/error.h"
#include "core/nearest.h"
#include "options/fields.h"

namespace moe {
namespace {

constexpr CarveStage kPartitions[] = {
    {"marks", by_marks, false, true},
    {"weights", by_weights, false, true, true},
    {"random", by_chance, false, false, true},
    {"energy", by_energy, true},
    {"neurons", by_itself},
};
constexpr RouterStage kRouters[] = {
    {"analytic", analytic_router, "cmoe", false, true},
    {"similarity", similarity_router, "carved"},
    {"learned", learned_router, "carved"},
    {"energy", energy_router, "carved", true},
    {"sketch", sketch_router, "sketch"},
};
constexpr FitStage kFits[] = {
    {"none", no_fit},
    {"refit", refit, true, true},
};
constexpr CarveMethod kMethods[] = {
    {"fitted", "energy", "energy", "refit",
     "ours: neurons sorted by what they add to the output and by what a linear router foresees of "
     "it, the last matrix refitted"},
    {"cmoe", "marks", "analytic", "none",
     "neurons that are strong for the same tokens together, scored by one neuron of each expert "
     "(arXiv 2502.04416)"},
    {"kmeans", "weights", "similarity", "none",
     "neurons of similar weights together, scored by the mean of their directions (MoEfication, "
     "LLaMA-MoE)"},
    {"random", "random", "learned", "none",
     "neurons dealt out at random, scored by a linear map fitted to their activations (LLaMA-MoE)"},
    {"sketch", "neurons", "sketch", "refit",
     "ours: every neuron an expert, scored by a copy of its rows in few bits, the last matrix "
     "refitted; takes @budget in place of @shared, @active and @experts",
     true},
};

template <class Row, size_t N>
const Row& find(const Row (&rows)[N], std::string_view name, const char* what,
                const char* name_of_field, const std::vector<std::string>& offered) {
  for (const Row& row : rows)
    if (row.name == name && std::ranges::find(offered, name) != offered.end()) return row;
  fail_usage("{}: no {} of carving is called '{}'{}", field(name_of_field), what, name,
             suggestion(std::string(name), offered));
}
template <class Row, size_t N>
const Row& find(const Row (&rows)[N], std::string_view name, const char* what,
                const char* name_of_field) {
  return find(rows, name, what, name_of_field, names_of(rows));
}

}  // namespace

const std::vector<std::string>& profile_names() {
  static const std::vector<std::string> names = {"cosine", "raw"};
  return names;
}
std::span<const CarveMethod> carve_methods() { return kMethods; }
bool is_carved(std::string_view recipe) {
  return std::any_of(std::begin(kRouters), std::end(kRouters),
                     [&](const RouterStage& router) { return router.recipe == recipe; });
}
const CarveMethod& find_carve_method(std::string_view name) {
  return find(kMethods, name, "method", "method");
}
const std::vector<std::string>& carve_method_names() {
  static const std::vector<std::string> names = names_of(kMethods);
  return names;
}
const std::vector<std::string>& carve_routers() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> of_slices;
    for (const RouterStage& router : kRouters)
      if (std::none_of(std::begin(kMethods), std::end(kMethods), [&](const CarveMethod& method) {
            return method.by_neuron && method.router == router.name;
          }))
        of_slices.emplace_back(router.name);
    return of_slices;
  }();
  return names;
}
const std::vector<std::string>& carve_fits() {
  static const std::vector<std::string> names = names_of(kFits);
  return names;
}

bool marks_neurons(const CarveOptions& options) {
  const CarveStages stages = carve_stages(options);
  return stages.partition->marks || stages.router->marks;
}
bool draws(const CarveOptions& options) { return carve_stages(options).partition->draws; }

CarveStages carve_stages(const CarveOptions& options) {
  const CarveMethod& method = find_carve_method(options.method);
  return {&find(kPartitions, method.partition, "partition", "method"),
          options.router.empty()
              ? &find(kRouters, method.router, "router", "router")
              : &find(kRouters, options.router, "router", "router", carve_routers()),
          &find(kFits, options.fit.empty() ? method.fit : options.fit, "fit", "fit")};
}

}  // namespace moe
