// What a user says about a new model, each thing in a field of its own, and the model that comes of
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"
#include "moe/recipes/wanted_routing.h"

namespace moe {

// Absent ones take the recipe's or architecture's value.
struct WantedModel {
  std::string architecture;
  int64_t layers = 4, width = 128, heads = 4;
  std::optional<int64_t> kv_heads, head_width, dense_width;
  std::optional<ops::Act> activation;
  std::optional<QkNorm> qk_norm;
  std::optional<NormPlacement> norm_placement;
  std::optional<bool> bias, tied;
  int64_t streams = 0;
  std::optional<bool> mix_streams;  // absent: true
  std::optional<double> rope_theta;
  double dropout = 0;

  WantedRouting routing;
  std::optional<int64_t> expert_width, shared_experts, shared_width;
  std::optional<bool> shared_gate;
  int64_t moe_every = 1, dense_first = 0;
  std::vector<int64_t> moe_layers;
  std::optional<double> balance, z_loss, importance_loss, load_loss, device_loss,
      communication_loss;
  bool no_router_noise = false;
};
FieldList fields(WantedModel&);

// In the order of ops::Act.
const std::vector<std::string>& activation_names();

// Names of its fields that say how a model is trained and nothing about the model: the coefficients
// of the losses.
bool is_loss_field(std::string_view name);
// The coefficients of the auxiliary losses that are given, into `routing`; the others stay. Refused
// where its recipe has no such loss.
void set_losses(RoutingOptions& routing, WantedModel wanted);

// The model, validated. Usage errors name the field.
ModelConfig make_config(const WantedModel&, int64_t vocab, int64_t context);

}  // namespace moe
