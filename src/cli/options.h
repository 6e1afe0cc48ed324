// The options of `moe train` and `moe bench train`: one list, read from flags, from a --config file and from presets under the same names.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/routing_options.h"
#include "model/config.h"
#include "train/options.h"

namespace moe::cli {

// What shapes a model. Optionals take the recipe's or architecture's value when absent.
struct ModelFlags {
  std::string preset, config_file, tokenizer = "bytes";
  RoutingFlags routing;
  std::string architecture;
  int64_t layers = 4, width = 128, heads = 4;
  std::optional<int64_t> kv_heads, head_width, dense_width, expert_width, shared_experts, shared_width;
  std::optional<bool> shared_gate;
  int64_t moe_every = 1, dense_first = 0;
  std::vector<int64_t> moe_layers;
  std::optional<double> balance, z_loss, importance_loss, load_loss, device_loss, communication_loss;
  bool no_router_noise = false;
  std::optional<bool> bias, tied;
  std::optional<std::string> activation, qk_norm, norm_placement;
  std::optional<double> rope_theta;
  double dropout = 0;
};

// Adds the options to `app`, writing to `flags` and `train`; both must outlive the parse.
void add_model_options(CLI::App& app, ModelFlags& flags);
void add_train_options(CLI::App& app, TrainOptions& train);

// What the products of the other verbs run in.
struct ComputeFlags {
  std::string dtype = "auto";
  int threads = 0;
};
void add_compute_options(CLI::App& app, ComputeFlags& flags);
// Of a --dtype of inference; nothing for auto, where the model decides (natural_dtype).
std::optional<DType> parse_compute_dtype(const std::string& name);
// --cache-dtype; nothing where it was not given: as the products compute.
void add_cache_dtype(CLI::App& app, std::string& dtype);
std::optional<DType> parse_cache_dtype(const std::string& name);
// --seed, a number from 0 to 2^64 - 1; one with a sign, which would wrap, is refused.
CLI::Option* add_seed(CLI::App& app, uint64_t& seed, const std::string& of_what);
// An option that takes words such as german=2, each name once; in JSON it is an object. `form` (DOMAIN=WEIGHT) and `example` stand in what is refused.
CLI::Option* add_named_numbers(CLI::App& app, const char* flag, std::map<std::string, double>& numbers, const char* form, const char* example,
                               const std::string& help);
// Whether the option of this name, with dashes or underscores, is one of those.
bool takes_named_numbers(std::string_view name);
// Of --threads: 0 means all cores.
int thread_count(int asked);

// Makes every option of `app` and its verbs that takes a whole number take it as 1e6 too.
void allow_exponents(CLI::App& app);
// The digits of a whole number written with a point or an exponent, 1e6 or 2.50e2; anything else as it is.
std::string whole_number(const std::string& word);

// Gives every option of `app` that has no value yet the one that a JSON object has under its name ("top-k" or "top_k"; a null is refused). Unknown names
// are refused with the nearest one, and so are those of `refused`, which can only be flags. `where` opens every message.
void apply_json(CLI::App& app, const std::string& text, const std::string& where, const std::vector<std::string>& refused = {});

// Gives every option that was not on the command line the value that --config and then --preset have for it. Unknown names are refused with the nearest one.
// What a file sets also gives way to what makes it meaningless and was said before it (the command line, for a preset --config too): its steps to --minutes, a
// warm-up as long as all --steps, experts to a --recipe that has none. Defaults take its place.
void apply_files(CLI::App& app, ModelFlags& flags, TrainOptions& train);

// Beside weights that are there already: refuses every flag given so far that describes a model, but for those of set_losses.
void refuse_model_flags(const CLI::App& app);
// Whether any was given, in whatever way.
bool describes_model(const CLI::App& app);
// The coefficients of the auxiliary losses that the flags give, into `routing`; the others stay. Refused where its recipe has no such loss.
void set_losses(RoutingOptions& routing, ModelFlags flags);

// The model these flags describe, validated.
ModelConfig make_config(const ModelFlags& flags, int64_t vocab, int64_t context);

}  // namespace moe::cli
