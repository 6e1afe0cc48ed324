// One MoE layer as a handle: what it is of, and where its weights lie.
#include "api/layer.h"

#include <unistd.h>

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "hub/wanted_model.h"
#include "model/parameters.h"
#include "ops/memory.h"
#include "ops/ops.h"
#include "options/common.h"
#include "options/read.h"

namespace moe::api {
namespace {

constexpr std::string_view kPrefix = "layers.0.ffn.";

ModelConfig config_of(const LayerOptions& o) {
  if (o.hidden_size < 0 || o.moe_intermediate_size < 0)
    fail_usage("@hidden_size is {} and @moe_intermediate_size {}; neither may be negative",
               o.hidden_size, o.moe_intermediate_size);
  ModelConfig c;
  c.layers = 1;
  c.width = o.hidden_size;
  c.expert_width = o.moe_intermediate_size;
  c.act = o.activation;
  c.gated = o.gated.value_or(true);
  c.ffn_bias = o.bias;
  c.routing = routing_options(o.routing, 1);
  return c;
}

// An array for a parameter: its places are those of experts, empty where there are none.
struct Found {
  Param* param;
  Tensor numbers;
  std::vector<void*> places;
};
using AllFound = std::vector<Found>;

void find_one(AllFound& found, Arrays& arrays, const std::string& name, Param& p, Dtypes dtypes) {
  const auto& s = p.value.shape;
  if (p.value.rank == 3) {
    BankArray bank = arrays.find_bank(name, dtypes, {s[0], s[1], s[2]});
    if (!bank.value.empty()) found.push_back({&p, bank.value, std::move(bank.places)});
    return;
  }
  const Tensor t = p.value.rank == 2 ? arrays.find(name, dtypes, {s[0], s[1]})
                                     : arrays.find(name, dtypes, {s[0]});
  if (!t.empty()) found.push_back({&p, t, {}});
}

// Gate and up of one array, each expert's gate first.
void find_halves(AllFound& found, Arrays& arrays, const std::string& name, Param& gate, Param& up,
                 Dtypes dtypes) {
  const auto& s = up.value.shape;
  BankArray both = arrays.find_bank(name, dtypes, {s[0], 2 * s[1], s[2]});
  if (both.value.empty()) return;
  Tensor half = gate.value;
  half.data = both.value.data;
  half.dtype = both.value.dtype;
  half.row_bytes = both.value.row_bytes;
  found.push_back({&gate, half, both.places});
  const int64_t half_bytes = bytes_of(half.dtype, s[1] * s[2]);
  for (void*& place : both.places) place = static_cast<char*>(place) + half_bytes;
  half.data = static_cast<char*>(half.data) + half_bytes;
  found.push_back({&up, half, std::move(both.places)});
}

// Every parameter for which there is an array of its name behind the prefix. Banks may be of any
// dtype in `banks`; everything else is f32.
AllFound find_all(Arrays& arrays, const std::string& prefix, std::span<Param* const> params,
                  Dtypes banks) {
  AllFound found;
  Param* gate = nullptr;
  for (Param* p : params) {
    const bool is_bank = p->value.rank == 3;
    find_one(found, arrays, prefix + std::string(array_name(*p)), *p, is_bank ? banks : kF32);
    if (is_bank && p->kind == ParamKind::gate) gate = p;
    if (is_bank && p->kind == ParamKind::up && gate != nullptr)
      find_halves(found, arrays, prefix + std::string(kGateUp), *gate, *p, banks);
  }
  return found;
}

struct Pool {
  std::mutex mutex;
  std::multimap<int, std::unique_ptr<Run>> idle;  // by threads
};
Pool& pool() {
  static Pool* const the_pool = new Pool;  // a call may be under way when the process ends
  return *the_pool;
}

// A child of fork() has none of the threads that OpenMP believes in.
int usable_threads(int threads) {
  static const pid_t parent = getpid();
  return getpid() == parent ? threads : 1;
}

Json describe(const Param& p) {
  std::vector<int64_t> shape(p.value.shape.begin(), p.value.shape.begin() + p.value.rank);
  return {{"name", array_name(p)},
          {"shape", shape},
          {"trained", p.is_trained()},
          {"bias", p.is_bias()}};
}

Json describe(const moe_layer& layer) {
  const RoutingOptions& routing = layer.config.routing;
  const Recipe recipe = resolved_recipe(routing);
  Json params = Json::array(), losses = Json::object(), all = Json::array();
  for (const Param* p : layer.params) params.push_back(describe(*p));
  each_loss(routing.coef, [&](const char* name, float coef) {
    all.push_back(name);
    if (has_loss(layer.train, name)) losses[name] = coef;
  });
  return {{"recipe", routing.recipe},
          {"experts", layer.experts()},
          {"top_k", routing.top_k},
          {"slots", layer.train.slots()},
          {"slots_eval", layer.eval.slots()},
          {"params", params},
          {"losses", losses},
          {"loss_order", all},
          {"sum_over_layers", recipe.losses.sum_over_layers},
          {"needs_ids", !needs_logits(layer.train.select)},
          {"zero_init", recipe.zero_init},
          {"first_expert_scale", first_expert_scale(layer.train.weigh)},
          {"shared_experts", recipe.shared.experts},
          {"shared_widths", recipe.shared.widths},
          {"shared_gate", recipe.shared.gate},
          {"running_balance", layer.train.losses.balance && layer.train.losses.balance->shares ==
                                                                BalanceLoss::Shares::running}};
}

}  // namespace

std::string_view array_name(const Param& p) {
  return std::string_view(p.name).substr(kPrefix.size());
}

BorrowedRun::BorrowedRun(int threads, DType compute) {
  threads = usable_threads(threads);
  {
    const std::lock_guard lock(pool().mutex);
    if (auto found = pool().idle.extract(threads)) run_ = std::move(found.mapped());
  }
  if (run_ == nullptr) run_ = std::make_unique<Run>(threads, compute);
  run_->compute = compute;
}

BorrowedRun::~BorrowedRun() {
  run_->saved.rewind({});
  run_->scratch.rewind({});
  const std::lock_guard lock(pool().mutex);
  const int threads = run_->threads;
  pool().idle.emplace(threads, std::move(run_));
}

BoundGrads::BoundGrads(Arrays& arrays, std::span<Param* const> params) : params_(params) {
  for (Found& f : find_all(arrays, "grad.", params, kF32))
    f.param->bind_grad(f.numbers, std::move(f.places));
}

BoundGrads::~BoundGrads() {
  for (Param* p : params_) p->grad = {};
}

void BoundGrads::settle(Run& run) {
  for (Param* p : params_) ops::settle_grad(run, *p);
}

FieldList fields(LayerOptions& o) {
  FieldList list = fields(o.routing);
  list.group("");
  list.add("hidden_size", o.hidden_size, "numbers of a token; 0: it routes logits and has no x");
  list.add("moe_intermediate_size", o.moe_intermediate_size,
           "width of an expert; 0: it routes and has no experts");
  list.add_choice("activation", o.activation, activation_names(), listed(activation_names()));
  list.add("gated", o.gated,
           "true or false: experts are act(gate x) * (up x), or act(up x); default: true");
  list.add("bias", o.bias, "experts have biases");
  list.add_choice(
      "eval", o.eval, eval_routing_names(),
      "how it routes when not training: dropless, as-trained or threshold; default: the recipe's");
  add_threads(list, o.threads);
  return list;
}

}  // namespace moe::api

moe_layer::moe_layer(const moe::api::LayerOptions& o)
    : config(moe::api::config_of(o)), threads(moe::thread_count(o.threads)) {
  using namespace moe;
  if (config.routing.zero_experts > 0)
    fail_usage(
        "a layer over arrays of the caller's has no zero experts; leave @zero_experts out, or take "
        "a whole model");
  train = train_spec(config.routing);
  eval = eval_spec(config.routing, o.eval.value_or(default_eval(config.routing)));
  list_ffn(config, 0, layer, [&](Param& p) {
    const bool routes = p.part == Part::router;
    // Given logits, nothing that makes them is needed.
    const bool there = routes
                           ? config.width > 0 || (p.kind != ParamKind::weight && p.value.rank == 1)
                           : config.width > 0 && config.expert_width > 0;
    if (there) params.push_back(&p);
  });
  ops::limit_copies(params, {});
}

using namespace moe;
using namespace moe::api;

extern "C" {

moe_status moe_layer_open(moe_layer** layer, const char* options) {
  return guarded([&] {
    need(layer, "moe_layer_open: layer") = nullptr;
    LayerOptions asked;
    read_caller_options(fields(asked), options);
    *layer = new moe_layer(asked);
  });
}

void moe_layer_close(moe_layer* layer) { delete layer; }

moe_status moe_layer_inspect(moe_layer* layer, char** json) {
  return guarded([&] {
    need(json, "moe_layer_inspect: json") = nullptr;
    *json = given(describe(need(layer, "moe_layer_inspect: layer")).dump());
  });
}

moe_status moe_layer_bind(moe_layer* layer, const moe_array* arrays, size_t count) {
  return guarded([&] {
    moe_layer& l = need(layer, "moe_layer_bind: layer");
    const std::lock_guard lock(l.busy);
    Arrays given_arrays(arrays, count, "moe_layer_bind");
    const AllFound found = find_all(given_arrays, "", l.params, kFloats);
    given_arrays.done();
    for (const Found& f : found) f.param->bind(f.numbers, {f.places.begin(), f.places.end()});
  });
}

moe_status moe_layer_threads(moe_layer* layer, int threads) {
  return guarded([&] {
    moe_layer& l = need(layer, "moe_layer_threads: layer");
    const std::lock_guard lock(l.busy);
    l.threads = thread_count(threads);
  });
}
}
